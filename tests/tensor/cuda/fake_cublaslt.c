/* fake_cublaslt.c - all of cuBLASLt that the search for it calls; its version is that of the environment. */
#include <stddef.h>
#include <stdlib.h>

__attribute__((visibility("default"))) size_t cublasLtGetVersion(void);
size_t cublasLtGetVersion(void)
{
    const char *version = getenv("COUPLET_TEST_CUBLASLT");
    return version ? strtoul(version, NULL, 10) : 130100;
}
