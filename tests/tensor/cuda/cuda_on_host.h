/* cuda_on_host.h - CUDA kernels on the host, for tests: the threads of a block as fibers.
 *
 * Room:     tests/tensor/cuda. tensor/cuda/device.h includes it where a .cu file is compiled by g++
 *           (C++17, x86-64, with sanitizers or without). One file of a program defines
 *           CPL_ON_HOST_MAIN before including this header.
 * Order:    Blocks run one after another, shuffled. Fibers of a block run in random order and some
 *           warps are many operations ahead of others, so that a missing barrier changes results.
 *           Shared memory is NaN at the beginning of every block. A copy of CPL_COPY_ASYNC_16 lands
 *           at any moment until its wait. cpl_on_host_seed chooses another order.
 * Errors:   Faults that a GPU may let pass end the program by one sentence and abort(): threads
 *           that wait at different __syncthreads() or leave before one, warp operations that not
 *           all lanes of their mask reach, launches over the limits, writes behind the shared
 *           memory (with ASan: reads), matrices whose rows share banks.
 * Limits:   The emulation does not show races that need an order inside a stretch between two
 *           barriers, wgmma, registers and speed.
 * Threads:  Several threads of the host may launch at once. Kernels run one after another. */
#ifndef CPL_TESTS_TENSOR_CUDA_CUDA_ON_HOST_H
#define CPL_TESTS_TENSOR_CUDA_CUDA_ON_HOST_H

#ifndef __x86_64__
#    error "cuda_on_host.h needs an x86-64 processor: it switches fibers in x86-64 assembly"
#endif

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <functional>
#include <mutex>
#include <numeric>
#include <tuple>
#include <type_traits>
#include <vector>

#include "device_memory.h"
#include "tensor/numbers.h"

#ifdef ON_HOST_ASAN
#    include <sanitizer/common_interface_defs.h>
#endif

/* ---- words and types of CUDA ---- */

#define __global__ static
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__    __attribute__((noinline))
#define __restrict__
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c)
    {
    }
};

/* may_alias: kernels read arrays of one number through pairs. */
#define ON_HOST_PAIR(name, type)                                                                   \
    struct __attribute__((may_alias, aligned(2 * sizeof(type)))) name {                            \
        type x, y;                                                                                 \
    };                                                                                             \
    static inline name make_##name(type x, type y)                                                 \
    {                                                                                              \
        return {x, y};                                                                             \
    }
#define ON_HOST_FOUR(name, type)                                                                   \
    struct __attribute__((may_alias, aligned(16))) name {                                          \
        type x, y, z, w;                                                                           \
    };                                                                                             \
    static inline name make_##name(type x, type y, type z, type w)                                 \
    {                                                                                              \
        return {x, y, z, w};                                                                       \
    }
ON_HOST_PAIR(float2, float)
ON_HOST_PAIR(int2, int)
ON_HOST_PAIR(uint2, unsigned)
ON_HOST_PAIR(double2, double)
ON_HOST_PAIR(ushort2, unsigned short)
ON_HOST_FOUR(float4, float)
ON_HOST_FOUR(int4, int)
ON_HOST_FOUR(uint4, unsigned)

/* Limits: bytes of shared memory, threads of a block, bytes of a thread's stack. */
enum { ON_HOST_SHARED = 96 << 10, ON_HOST_THREADS = 1024, ON_HOST_STACK = 128 << 10 };

/* Saves the registers of a call and the stack at *save, and goes on where `load` was saved. */
extern "C" void cpl_on_host_switch(void **save, void *load);
/* Sets the order of everything that is launched later. */
extern "C" void cpl_on_host_seed(uint32_t seed);

namespace on_host
{

enum {
    WARP        = 32,
    GUARD       = 4096,
    BEHIND      = 1024, /* bytes behind the shared memory that nothing may change */
    LAST_FRAMES = 4096, /* bytes of an ended thread with red zones: frames of entry and leave */
};

enum wait { RUNS, AT_BLOCK, AT_WARP, DONE };

/* A pending 16-byte copy of CPL_COPY_ASYNC_16. `group`: commits of the thread before the copy. */
struct copy {
    char *to;
    const char *from;
    int bytes, group;
};

struct fiber {
    void *sp;
    char *stack; /* its lowest page is closed */
    dim3 tid;
    int index;
    wait state;
    const char *where; /* file and line of the operation at which the thread waits */
    unsigned mask;
    void (*finish)(fiber *warp, unsigned mask); /* done when all lanes have arrived; or NULL */
    uint32_t give[6];                           /* the lane's numbers for a warp operation */
    int from;                                   /* the lane from which it reads */
    uint64_t got;
    const char *matrix; /* the row of a matrix that this lane holds */
    uint32_t take[4];   /* the numbers that the lane receives */
    float sums[4];
    std::vector<copy> copies; /* copies that have not landed */
    int commits;
};

inline std::mutex running;
inline std::function<void()> body;
inline std::vector<fiber> fibers;
inline fiber *me;
inline int n_threads; /* threads of the block */
inline void *scheduler_sp;
inline dim3 block_at, block_size, grid_size;
inline const char *kernel_name;
inline uint32_t random_state = 1;
alignas(128) inline char shared_memory[ON_HOST_SHARED + BEHIND];
inline size_t shared_bytes;

/* Ends the program with a sentence. `where`: file and line, or NULL. */
[[noreturn]] inline void abort_kernel(const char *what, const char *where, const char *other = NULL)
{
    fprintf(stderr, "cuda_on_host: kernel %s: %s", kernel_name, what);
    if (where) fprintf(stderr, ", at %s", where);
    if (other) fprintf(stderr, " and %s", other);
    if (me)
        fprintf(stderr, ", block (%u, %u, %u), thread (%u, %u, %u)", block_at.x, block_at.y,
                block_at.z, me->tid.x, me->tid.y, me->tid.z);
    fprintf(stderr, "\n");
    abort();
}

inline uint32_t random32()
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 17;
    return random_state ^= random_state << 5;
}

/* ---- switches ---- */

#ifdef ON_HOST_ASAN
inline const void *main_bottom;
inline size_t main_size;

inline void leave_fiber(fiber *f)
{
    void *fake;
    __sanitizer_start_switch_fiber(f->state == DONE ? NULL : &fake, main_bottom, main_size);
    cpl_on_host_switch(&f->sp, scheduler_sp);
    __sanitizer_finish_switch_fiber(fake, NULL, NULL);
}

inline void enter_fiber(fiber *f)
{
    void *fake;
    __sanitizer_start_switch_fiber(&fake, f->stack + GUARD, ON_HOST_STACK);
    cpl_on_host_switch(&scheduler_sp, f->sp);
    __sanitizer_finish_switch_fiber(fake, NULL, NULL);
}

inline void begin_fiber()
{
    __sanitizer_finish_switch_fiber(NULL, &main_bottom, &main_size);
}

inline void open_memory(void *at, size_t bytes)
{
    __asan_unpoison_memory_region(at, bytes);
}

inline void close_memory(void *at, size_t bytes)
{
    __asan_poison_memory_region(at, bytes);
}
#else
inline void leave_fiber(fiber *f)
{
    cpl_on_host_switch(&f->sp, scheduler_sp);
}

inline void enter_fiber(fiber *f)
{
    cpl_on_host_switch(&scheduler_sp, f->sp);
}

inline void begin_fiber()
{
}

inline void open_memory(void *, size_t)
{
}

inline void close_memory(void *, size_t)
{
}
#endif

/* Refuses 16 bytes that are not aligned or lie outside of the shared memory. */
inline void check_address(const void *at, const char *where)
{
    const char *first = (const char *)at;
    if ((uintptr_t)first % 16)
        abort_kernel("the address in shared memory is not a multiple of 16", where);
    if (first < shared_memory || first + 16 > shared_memory + shared_bytes)
        abort_kernel("16 bytes outside of the shared memory", where);
}

/* ---- copies that land later ---- */

inline void land_copy(const copy &c)
{
    memset(c.to, 0, 16);
    if (c.bytes) memcpy(c.to, c.from, (size_t)c.bytes);
}

/* Lands some of the thread's copies. */
inline void land_some(fiber *f)
{
    for (size_t i = f->copies.size(); i-- > 0;)
        if (random32() % 4 == 0) {
            land_copy(f->copies[i]);
            f->copies.erase(f->copies.begin() + (long)i);
        }
}

inline void copy_async(void *to, const void *from, int bytes, const char *where)
{
    if (bytes && (uintptr_t)from % 16)
        abort_kernel("the source of an asynchronous copy is not aligned to 16 bytes", where);
    if (bytes < 0 || bytes > 16) abort_kernel("an asynchronous copy of more than 16 bytes", where);
    check_address(to, where);
    me->copies.push_back({(char *)to, (const char *)from, bytes, me->commits});
    land_some(me);
}

/* Lands all copies but those of the latest n groups that were committed. */
inline void copy_wait(int n)
{
    std::vector<copy> later;
    for (const copy &c : me->copies)
        if (c.group < me->commits - n)
            land_copy(c);
        else
            later.push_back(c);
    me->copies = later;
}

/* ---- waiting ---- */

inline void wait_at(wait kind, const char *where, unsigned mask = 0,
                    void (*finish)(fiber *, unsigned) = NULL)
{
    fiber *f = me;
    if (kind == AT_WARP && !(mask >> f->index % WARP & 1))
        abort_kernel("the mask of a warp operation does not include the calling lane", where);
    f->state  = kind;
    f->where  = where;
    f->mask   = mask;
    f->finish = finish;
    if (!f->copies.empty()) land_some(f);
    leave_fiber(f);
}

/* Returns whether all lanes of first's mask wait at first's operation. */
inline bool warp_is_met(const fiber *warp, const fiber *first)
{
    for (int i = 0; i < WARP; i++)
        if ((first->mask >> i & 1) && (warp[i].state != AT_WARP || warp[i].where != first->where ||
                                       warp[i].mask != first->mask))
            return false;
    return true;
}

/* Resumes the lanes of a mask when all of them wait at the same operation. */
inline void release_warps()
{
    for (int begin = 0; begin + WARP <= n_threads; begin += WARP) {
        fiber *warp = &fibers[(size_t)begin];
        for (int i = 0; i < WARP; i++) {
            if (warp[i].state != AT_WARP || !warp_is_met(warp, &warp[i])) continue;
            const unsigned mask = warp[i].mask;
            if (warp[i].finish) warp[i].finish(warp, mask);
            for (int k = 0; k < WARP; k++)
                if (mask >> k & 1) warp[k].state = RUNS;
        }
    }
}

/* Lets a block leave its barrier when no fiber can run. Returns false if all threads ended. */
inline bool release_block()
{
    const char *where = NULL;
    bool done         = false;
    for (int i = 0; i < n_threads; i++) {
        me = &fibers[(size_t)i];
        if (me->state == DONE) {
            done = true;
            continue;
        }
        if (me->state == AT_WARP)
            abort_kernel("a warp operation that not all lanes of its mask reach", me->where);
        if (!where) where = me->where;
        if (me->where != where)
            abort_kernel("threads of a block wait at different __syncthreads()", where, me->where);
    }
    if (where && done) abort_kernel("a __syncthreads() that a thread does not reach", where);
    for (int i = 0; i < n_threads; i++)
        if (fibers[(size_t)i].state == AT_BLOCK) fibers[(size_t)i].state = RUNS;
    return where != NULL;
}

/* ---- the launch ---- */

inline void entry()
{
    begin_fiber();
    body();
    if (!me->copies.empty()) abort_kernel("a thread ends before its asynchronous copies", NULL);
    me->state = DONE;
    leave_fiber(me);
    __builtin_unreachable();
}

/* Prepares a thread at its beginning: entry's address and six registers on its stack. */
inline void prepare_thread(int index)
{
    fiber *f = &fibers[(size_t)index];
    if (!f->stack) {
        void *at = mmap(NULL, GUARD + ON_HOST_STACK, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED || mprotect(at, GUARD, PROT_NONE))
            abort_kernel("no memory for a thread", NULL);
        f->stack = (char *)at;
    }
    void **top = (void **)(void *)(f->stack + GUARD + ON_HOST_STACK);
    open_memory((char *)top - LAST_FRAMES, LAST_FRAMES);
    *--top = NULL;
    *--top = (void *)entry;
    for (int i = 0; i < 6; i++) *--top = NULL;
    f->sp             = top;
    f->index          = index;
    f->state          = RUNS;
    f->commits        = 0;
    const unsigned at = (unsigned)index, x = block_size.x, y = block_size.y;
    f->tid = dim3(at % x, at / x % y, at / x / y);
}

/* Each turn runs some of the warps, so that one can be many operations ahead of another. */
inline void run_block()
{
    for (int i = 0; i < n_threads; i++) prepare_thread(i);
    for (;;) {
        const uint32_t from = random32() % (uint32_t)n_threads, some = random32();
        const bool back = random32() & 1;
        bool any = false, left = false;
        for (int k = 0; k < n_threads; k++) {
            me = &fibers[(from + (uint32_t)(back ? n_threads - k : k)) % (uint32_t)n_threads];
            if (me->state != RUNS) continue;
            if (some >> me->index / WARP & 1) {
                any = true;
                enter_fiber(me);
            } else {
                left = true;
            }
        }
        release_warps();
        if (!any && !left && !release_block()) return;
    }
}

inline void prepare_shared()
{
    open_memory(shared_memory, sizeof shared_memory);
    memset(shared_memory, 0xff, shared_bytes + BEHIND);
    close_memory(shared_memory + shared_bytes, sizeof shared_memory - shared_bytes);
}

inline void check_shared()
{
    open_memory(shared_memory, sizeof shared_memory);
    for (size_t i = 0; i < BEHIND; i++)
        if ((unsigned char)shared_memory[shared_bytes + i] != 0xff)
            abort_kernel("a write behind the shared memory", NULL);
}

inline void check_launch(dim3 grid, dim3 block, size_t bytes)
{
    me = NULL;
    if ((uint64_t)block.x * block.y * block.z > ON_HOST_THREADS || block.z > 64)
        abort_kernel("a block of more than 1024 threads", NULL);
    if (block.x == 0 || block.y == 0 || block.z == 0) abort_kernel("a block without threads", NULL);
    if (block.x * block.y * block.z % WARP) abort_kernel("a block with part of a warp", NULL);
    if (bytes > ON_HOST_SHARED) abort_kernel("more shared memory than a block has", NULL);
    if (grid.x > 0x7fffffffu) abort_kernel("a grid.x above 2^31 - 1", NULL);
    if (grid.y > 65535 || grid.z > 65535) abort_kernel("a grid.y or grid.z above 65535", NULL);
}

/* Runs all blocks, in steps that have no common divisor with the number of blocks. */
inline void run(const char *name, dim3 grid, dim3 block, size_t bytes, std::function<void()> kernel)
{
    const std::lock_guard<std::mutex> alone(running);
    const reach memory;
    counts.kernels++;
    kernel_name = name;
    check_launch(grid, block, bytes);
    if (is_dry()) return;
    n_threads    = (int)(block.x * block.y * block.z);
    body         = kernel;
    shared_bytes = bytes;
    block_size   = block;
    grid_size    = grid;
    if (fibers.size() < (size_t)n_threads) fibers.resize((size_t)n_threads);
    const uint64_t blocks = (uint64_t)grid.x * grid.y * grid.z;
    uint64_t step = random32() % blocks + 1, at = random32() % blocks;
    while (std::gcd(blocks, step) != 1) step++;
    for (uint64_t k = 0; k < blocks; k++, at = (at + step) % blocks) {
        block_at = dim3((unsigned)(at % grid.x), (unsigned)(at / grid.x % grid.y),
                        (unsigned)(at / grid.x / grid.y));
        prepare_shared();
        run_block();
        me = NULL;
        check_shared();
    }
}

/* ---- operations of a warp ---- */

/* The bits of numbers that no lane gives: a NaN. */
enum : uint64_t { NOTHING = ~(uint64_t)0 };

inline void finish_exchange(fiber *warp, unsigned mask)
{
    for (int i = 0; i < WARP; i++) {
        if (!(mask >> i & 1)) continue;
        warp[i].got = NOTHING;
        if (mask >> warp[i].from & 1) memcpy(&warp[i].got, warp[warp[i].from].give, 8);
    }
}

template <class T> T exchange(unsigned mask, T value, int from, const char *where)
{
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "a shuffle of 4 or 8 bytes");
    T got;
    memcpy(me->give, &value, sizeof value);
    me->from = from & (WARP - 1);
    wait_at(AT_WARP, where, mask, finish_exchange);
    memcpy(&got, &me->got, sizeof got);
    return got;
}

inline int lane()
{
    return me->index % WARP;
}

inline void finish_ballot(fiber *warp, unsigned mask)
{
    uint64_t all = 0;
    for (int i = 0; i < WARP; i++)
        if (mask >> i & 1) all |= (uint64_t)warp[i].give[0] << i;
    for (int i = 0; i < WARP; i++) warp[i].got = mask >> i & 1 ? all : warp[i].got;
}

inline unsigned ballot(unsigned mask, bool is, const char *where)
{
    me->give[0] = is;
    wait_at(AT_WARP, where, mask, finish_ballot);
    return (unsigned)me->got;
}

inline float half_of(uint32_t pair, int which)
{
    return cpl_bf16_to_f32((uint16_t)(pair >> 16 * which));
}

/* Computes a product. The places of a lane's sums and operands are those of PTX (mma.m16n8k16). */
inline void finish_mma(fiber *warp, unsigned)
{
    for (int lane = 0; lane < WARP; lane++)
        for (int i = 0; i < 4; i++) {
            const int row = lane / 4 + 8 * (i / 2), col = lane % 4 * 2 + i % 2;
            float sum = warp[lane].sums[i];
            for (int k = 0; k < 16; k++) {
                const uint32_t a = warp[row % 8 * 4 + k % 8 / 2].give[row / 8 + 2 * (k / 8)];
                const uint32_t b = warp[col * 4 + k % 8 / 2].give[4 + k / 8];
                sum += half_of(a, k % 2) * half_of(b, k % 2);
            }
            warp[lane].sums[i] = sum;
        }
}

inline void mma_16816(float c[4], const uint32_t a[4], const uint32_t b[2], const char *where)
{
    memcpy(me->give, a, 16);
    memcpy(me->give + 4, b, 8);
    memcpy(me->sums, c, 16);
    wait_at(AT_WARP, where, ~0u, finish_mma);
    memcpy(c, me->sums, 16);
}

/* Refuses a matrix with rows in the same banks: a GPU reads them slowly, one after another. */
inline void check_banks(const fiber *warp)
{
    for (int first = 0; first < WARP; first += 8) {
        unsigned banks = 0;
        for (int i = first; i < first + 8; i++)
            banks |= 1u << (warp[i].matrix - shared_memory) / 16 % 8;
        if (banks != 0xff) abort_kernel("rows of a matrix in the same banks", warp->where);
    }
}

template <bool TRANS> void finish_matrices(fiber *warp, unsigned)
{
    check_banks(warp);
    for (int lane = 0; lane < WARP; lane++)
        for (int i = 0; i < 4; i++) {
            const fiber *rows = warp + 8 * i;
            uint16_t two[2];
            for (int k = 0; k < 2; k++) {
                const int along = lane % 4 * 2 + k, row = TRANS ? along : lane / 4;
                memcpy(&two[k], rows[row].matrix + 2 * (TRANS ? lane / 4 : along), 2);
            }
            memcpy(&warp[lane].take[i], two, 4);
        }
}

template <bool TRANS> void matrices(uint32_t r[4], const void *from, const char *where)
{
    check_address(from, where);
    me->matrix = (const char *)from;
    wait_at(AT_WARP, where, ~0u, finish_matrices<TRANS>);
    memcpy(r, me->take, 16);
}

} // namespace on_host

/* ---- what a kernel calls ---- */

#define ON_HOST_LINE(line) #line
#define ON_HOST_AT(line)   ON_HOST_LINE(line)
#define ON_HOST_HERE       __FILE__ ":" ON_HOST_AT(__LINE__)

#define threadIdx (on_host::me->tid)
#define blockIdx  on_host::block_at
#define blockDim  on_host::block_size
#define gridDim   on_host::grid_size

#define __syncthreads()           on_host::wait_at(on_host::AT_BLOCK, ON_HOST_HERE)
#define __syncwarp(...)           on_host::wait_at_warp(ON_HOST_HERE, ##__VA_ARGS__)
#define __shfl_sync(m, v, i)      on_host::exchange(m, v, i, ON_HOST_HERE)
#define __shfl_xor_sync(m, v, x)  on_host::exchange(m, v, on_host::lane() ^ (x), ON_HOST_HERE)
#define __shfl_down_sync(m, v, d) on_host::exchange(m, v, on_host::lane_below(d), ON_HOST_HERE)
#define __shfl_up_sync(m, v, d)   on_host::exchange(m, v, on_host::lane_above(d), ON_HOST_HERE)
#define __ballot_sync(m, is)      on_host::ballot(m, (is) != 0, ON_HOST_HERE)
#define __any_sync(m, is)         (__ballot_sync(m, is) != 0)
#define __all_sync(m, is)         (__ballot_sync(m, is) == (m))

namespace on_host
{
inline void wait_at_warp(const char *where, unsigned mask = ~0u)
{
    wait_at(AT_WARP, where, mask);
}

/* Returns lane + d. A lane past the end of the warp gets its own value. */
inline int lane_below(unsigned d)
{
    return lane() + (int)d < WARP ? lane() + (int)d : lane();
}

inline int lane_above(unsigned d)
{
    return lane() >= (int)d ? lane() - (int)d : lane();
}
} // namespace on_host

#define __popc     __builtin_popcount
#define __popcll   __builtin_popcountll
#define __ffs      __builtin_ffs
#define __ffsll    __builtin_ffsll
#define __fmaf_rn  fmaf
#define __expf     expf
#define __logf     logf
#define __fsqrt_rn sqrtf

template <class T> static inline T __ldg(const T *at)
{
    return *at;
}

template <class T> static inline void __stcs(T *at, T value)
{
    *at = value;
}

template <class T> static inline T __ldcs(const T *at)
{
    return *at;
}

static inline int __clz(int x)
{
    return x ? __builtin_clz((unsigned)x) : 32;
}

static inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}

static inline float __fdividef(float a, float b)
{
    return a / b;
}

static inline unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)((uint64_t)a * b >> 32);
}

static inline unsigned __float_as_uint(float x)
{
    unsigned bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float __uint_as_float(unsigned bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline int __float_as_int(float x)
{
    return (int)__float_as_uint(x);
}

static inline float __int_as_float(int bits)
{
    return __uint_as_float((unsigned)bits);
}

template <class T> static inline T min(T a, T b)
{
    return b < a ? b : a;
}

template <class T> static inline T max(T a, T b)
{
    return a < b ? b : a;
}

/* Adds whole numbers alone: sums of floats in any order are forbidden (device.h). */
template <class T> static inline T atomicAdd(T *at, std::common_type_t<T> value)
{
    static_assert(std::is_integral_v<T>,
                  "atomicAdd on floats is not allowed: the result would depend on the order");
    const T old = *at;
    *at += value;
    return old;
}

template <class T> static inline T atomicMax(T *at, std::common_type_t<T> value)
{
    static_assert(std::is_integral_v<T>, "atomicMax is allowed on whole numbers only");
    const T old = *at;
    if (old < value) *at = value;
    return old;
}

/* ---- the macros of device.h ---- */

#define CPL_SHARED(type, name) type *name = (type *)(void *)on_host::shared_memory

/* Arguments are evaluated once, before the launch. */
#define CPL_LAUNCH(be, kernel, grid, block, shared, ...)                                           \
    do {                                                                                           \
        const dim3 grid_ = (grid), block_ = (block);                                               \
        if (grid_.x && grid_.y && grid_.z) {                                                       \
            const auto with_ = std::make_tuple(__VA_ARGS__);                                       \
            on_host::run(#kernel, grid_, block_, shared,                                           \
                         [with_] { std::apply([](auto... each) { kernel(each...); }, with_); });   \
            cpl_cuda_launched(be, #kernel);                                                        \
        }                                                                                          \
    } while (0)

#define CPL_UNROLL
#define CPL_MMA_16816(c, a, b)    on_host::mma_16816(c, a, b, ON_HOST_HERE)
#define CPL_LDMATRIX(r, at)       on_host::matrices<false>(r, at, ON_HOST_HERE)
#define CPL_LDMATRIX_TRANS(r, at) on_host::matrices<true>(r, at, ON_HOST_HERE)

#define CPL_COPY_ASYNC_16(shared_to, global_from, bytes)                                           \
    on_host::copy_async(shared_to, global_from, bytes, ON_HOST_HERE)
#define CPL_COPY_COMMIT() ((void)on_host::me->commits++)
#define CPL_COPY_WAIT(n)  on_host::copy_wait(n)

static inline uint32_t cpl_device_pair(float low, float high)
{
    return cpl_bf16_from_f32(low) | (uint32_t)cpl_bf16_from_f32(high) << 16;
}

static inline float cpl_device_power_of_2(float x)
{
    return exp2f(x);
}

#ifdef CPL_ON_HOST_MAIN
asm(".text\n"
    ".globl cpl_on_host_switch\n"
    ".type cpl_on_host_switch,@function\n"
    "cpl_on_host_switch:\n"
    "    push %rbp\n    push %rbx\n    push %r12\n    push %r13\n    push %r14\n    push %r15\n"
    "    mov %rsp,(%rdi)\n"
    "    mov %rsi,%rsp\n"
    "    pop %r15\n    pop %r14\n    pop %r13\n    pop %r12\n    pop %rbx\n    pop %rbp\n"
    "    ret\n"
    ".size cpl_on_host_switch,.-cpl_on_host_switch\n");

extern "C" void cpl_on_host_seed(uint32_t seed)
{
    const std::lock_guard<std::mutex> alone(on_host::running);
    on_host::random_state = seed * 2654435769u | 1u;
}
#endif

#endif /* CPL_TESTS_TENSOR_CUDA_CUDA_ON_HOST_H */
