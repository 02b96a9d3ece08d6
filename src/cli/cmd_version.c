/* cmd_version.c - couplet version: the libraries of this program, and the code paths that this
 * machine allows. */
#include <jansson.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>
#include <xxhash.h>
#include <yaml.h>
#include <zlib.h>
#include <zstd.h>

#include "cli/arguments/flags.h"
#include "tensor/backend/backend.h"

#ifndef COUPLET_FLAGS
#    define COUPLET_FLAGS "unknown"
#endif

static void row(const char *name, const char *value)
{
    printf("%-14s %s\n", name, value);
}

static void print_build(void)
{
#if defined(__clang__)
    printf("%-14s clang %s\n", "compiler", __clang_version__);
#elif defined(__GNUC__)
    printf("%-14s gcc %s\n", "compiler", __VERSION__);
#else
    row("compiler", "unknown");
#endif
    row("flags", COUPLET_FLAGS);
}

/* Prints the versions that libraries report at run time, and for other libraries the versions at
 * compilation. */
static void print_libraries(void)
{
    const dnnl_version_t *dnnl = dnnl_version();
    unsigned xxhash            = XXH_versionNumber();
    printf("%-14s %d.%d.%d\n", "oneDNN", dnnl->major, dnnl->minor, dnnl->patch);
    printf("%-14s %d\n", "OpenMP", _OPENMP);
    row("zlib", zlibVersion());
    row("zstd", ZSTD_versionString());
    row("jansson", JANSSON_VERSION);
    row("libyaml", yaml_get_version_string());
    row("utf8proc", utf8proc_version());
    printf("%-14s %u.%u.%u\n", "xxHash", xxhash / 10000, xxhash / 100 % 100, xxhash % 100);
}

/* Returns true if `word` is among the blank-separated words of `line`. */
static bool has_word(const char *line, const char *word)
{
    size_t length = strlen(word);
    for (const char *at = line; (at = strstr(at, word)); at += length)
        if ((at == line || strchr(" \t", at[-1])) && strchr(" \t\n", at[length])) return true;
    return false;
}

/* Prints the processor's features that the kernels use and that Linux lets programs use. */
static void print_features(void)
{
    static const char *const features[] = {"avx2", "fma", "avx512f", "avx512_bf16", "amx_bf16"};
    char line[16384];
    FILE *file = fopen("/proc/cpuinfo", "r");
    bool found = false, any = false;
    while (file && !found && fgets(line, sizeof line, file)) found = strncmp(line, "flags", 5) == 0;
    if (file) fclose(file);
    printf("%-14s", "features");
    for (size_t i = 0; found && i < sizeof features / sizeof *features; i++)
        if (has_word(line, features[i])) any = printf(" %s", features[i]) > 0;
    printf("%s\n", any ? "" : " none of those that matter here");
}

/* Prints the waiting policy that libgomp read from the environment when it was loaded; see
 * main.c. */
static void print_waiting(void)
{
    const char *policy = getenv("OMP_WAIT_POLICY"), *count = getenv("GOMP_SPINCOUNT");
    printf("%-14s %s%s\n", "waiting", count ? "GOMP_SPINCOUNT " : "OMP_WAIT_POLICY ",
           count    ? count
           : policy ? policy
                    : "undefined");
}

static cpl_status run(const cpl_arguments *args)
{
    (void)args;
    row("couplet", COUPLET_VERSION);
    print_build();
    print_libraries();
    row("processor", cpl_cpu_name());
    printf("%-14s %d\n", "processors", cpl_cpu_count());
    print_features();
    print_waiting();
    row("kernels", cpl_cpu_isa());
    row("compute.dtype", cpl_cpu_has_bf16()
                             ? "auto is bf16: the processor multiplies bf16 itself"
                             : "auto is f32: the processor does not multiply bf16 itself");
    return CPL_OK;
}

const cpl_verb cpl_verb_version = {
    .name    = "version",
    .summary = "print the version, the libraries, the processor and what was selected for it",
    .usage   = "",
    .about =
        "Prints one line each: the version, the compiler and its flags, the libraries in use, "
        "the processor with its features, the instruction set of the kernels, and the value of "
        "compute.dtype auto on this machine, with the reason.",
    .run = run,
};
