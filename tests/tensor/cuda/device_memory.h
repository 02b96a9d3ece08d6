/* device_memory.h - the memory of the emulated GPU: the host reaches it inside an operation alone.
 *
 * Room:   tests/tensor/cuda. Each block is a mapping without access. Work on it (a kernel, a copy,
 *         a product) holds a `reach`. Any other read or write is a fault that ends the program,
 *         with the stack in a build with sanitizers. Bytes behind a block, and a block that was
 *         given back, are faults inside of kernels too (AddressSanitizer).
 * Memory: It holds 0xff before its first use, a NaN in F32, BF16 and F64, so that a kernel shows
 *         when it reads memory that was never set.
 * Use:    The counts are of work enqueued and waits since the program began. With
 *         COUPLET_TEST_CUDA_DRY in the environment nothing runs and memory is not touched, so that
 *         the work of a model of any size can be counted. */
#ifndef CPL_TESTS_TENSOR_CUDA_DEVICE_MEMORY_H
#define CPL_TESTS_TENSOR_CUDA_DEVICE_MEMORY_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <mutex>
#include <vector>

#include "counts.h"

#ifdef __SANITIZE_ADDRESS__
#    define ON_HOST_ASAN 1
#elif defined(__has_feature)
#    if __has_feature(address_sanitizer)
#        define ON_HOST_ASAN 1
#    endif
#endif
#ifdef ON_HOST_ASAN
#    include <sanitizer/asan_interface.h>
#endif

namespace on_host
{

inline cpl_on_host_counts counts;

inline bool is_dry()
{
    return getenv("COUPLET_TEST_CUDA_DRY") != NULL;
}

struct block {
    char *at;
    size_t mapped, bytes;
};

inline std::mutex memory_lock;
inline std::vector<block> taken;
inline size_t held, peak; /* bytes of blocks, now and at most */
inline int reaching;      /* operations that run */

inline void set_access(const block &b)
{
    mprotect(b.at, b.mapped, reaching ? PROT_READ | PROT_WRITE : PROT_NONE);
}

/* The host can reach the memory while an object of this type exists. */
struct reach {
    reach()
    {
        change(1);
    }
    ~reach()
    {
        change(-1);
    }
    reach(const reach &)            = delete;
    reach &operator=(const reach &) = delete;

    static void change(int by)
    {
        const std::lock_guard<std::mutex> alone(memory_lock);
        reaching += by;
        if (reaching == (by > 0))
            for (const block &b : taken) set_access(b);
    }
};

/* Returns a new block, or NULL if the device has no memory left. */
inline void *take_memory(size_t bytes)
{
    const size_t page = 4096, mapped = (bytes / page + 2) * page;
    if (mapped < bytes) return NULL;
    char *at = (char *)mmap(NULL, mapped, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return NULL;
    if (!is_dry()) memset(at, 0xff, bytes);
#ifdef ON_HOST_ASAN
    __asan_poison_memory_region(at + bytes, mapped - bytes);
#endif
    const std::lock_guard<std::mutex> alone(memory_lock);
    taken.push_back({at, mapped, bytes});
    held += bytes;
    peak = held > peak ? held : peak;
    set_access(taken.back());
    return at;
}

inline void give_memory(void *memory)
{
    const std::lock_guard<std::mutex> alone(memory_lock);
    for (size_t i = 0; i < taken.size(); i++) {
        if (taken[i].at != memory) continue;
#ifdef ON_HOST_ASAN
        __asan_unpoison_memory_region(memory, taken[i].mapped);
#endif
        munmap(memory, taken[i].mapped);
        held -= taken[i].bytes;
        taken.erase(taken.begin() + (long)i);
        return;
    }
    fprintf(stderr, "cuda_on_host: memory is given back that was not taken\n");
    abort();
}

} // namespace on_host

#endif /* CPL_TESTS_TENSOR_CUDA_DEVICE_MEMORY_H */
