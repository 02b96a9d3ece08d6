/* test_on_host.cpp - faults of kernels, planted one by one: cuda_on_host.h refuses each or shows
 * another result. A kernel without a fault has the right result in every order of threads.
 *
 * A child process runs each kernel, since a refusal ends the process. */
#include <sys/wait.h>
#include <unistd.h>

#include "tensor/cuda/device.h"

extern "C" void cpl_cuda_launched(cpl_backend *, const char *)
{
}

enum { THREADS = 96, WARPS = THREADS / CPL_WARP, BLOCKS = 3, TURNS = 4, SEEDS = 20 };

enum fault {
    NONE,
    NO_BARRIER,
    NO_BARRIER_AGAIN,
    OTHER_BARRIER,
    LEAVES,
    LANE_MISSING,
    NOT_IN_MASK,
    UNSET,
    SHORT_MEMORY,
    MUCH_MEMORY,
    HALF_WARP,
    LARGE_GRID,
    COPIES, /* no fault, of the second kernel */
    NO_WAIT,
    EARLY_WAIT,
    NO_BARRIER_AFTER_WAIT,
    NO_BARRIER_BEFORE_COPY,
    NOT_ALIGNED,
    MATRICES, /* no fault, of the third kernel */
    OTHER_SWIZZLE,
    NO_SWIZZLE,
    N_FAULTS
};

static const char *const names[N_FAULTS] = {
    "nothing",
    "a barrier left out before shared memory is read",
    "a barrier left out before shared memory is used again",
    "threads at two barriers",
    "a thread that leaves before a barrier",
    "a lane missing in a shuffle",
    "a lane that its mask does not name",
    "shared memory read before it is set",
    "shared memory one number short",
    "more shared memory than a launch can have",
    "half a warp",
    "a grid that is too large",
    "nothing, in copies",
    "a copy that is not waited for",
    "a wait for one group too few",
    "a barrier left out behind a wait",
    "a barrier left out before a copy to what is read",
    "a copy to an address that is no multiple of 16",
    "nothing, in matrices",
    "a swizzle that is not that of the copies",
    "rows of a matrix in the same banks",
};

/* ---- kernels ---- */

/* out [blocks, threads] = the sum over TURNS of (turn + 1) times the sum of row `turn` of x. */
__global__ void sums(float *out, const float *x, int fault)
{
    CPL_SHARED(float, part);
    const int thread = (int)threadIdx.x, lane = thread % CPL_WARP;
    const unsigned mask = fault == NOT_IN_MASK ? 0x7fffffffu : 0xffffffffu;
    float all           = 0;
    for (int turn = 0; turn < TURNS; turn++) {
        float v = x[turn * THREADS + thread];
        for (int m = CPL_WARP / 2; m; m >>= 1)
            if (fault != LANE_MISSING || thread != 37) v += __shfl_xor_sync(mask, v, m);
        if (lane == 0) part[thread / CPL_WARP] = v;
        if (fault != NO_BARRIER) __syncthreads();
        float sum = fault == UNSET ? part[WARPS] : 0;
        for (int w = 0; w < WARPS; w++) sum += part[w];
        all += (float)(turn + 1) * sum;
        if (fault == LEAVES && thread == 40) return;
        if (fault == OTHER_BARRIER && thread >= CPL_WARP)
            __syncthreads();
        else if (fault != NO_BARRIER_AGAIN)
            __syncthreads();
    }
    out[(int)blockIdx.x * THREADS + thread] = all;
}

/* out [blocks, threads] = the sum of TURNS rows of x, 4 numbers a thread, by copies into two
 * buffers. A thread reads numbers that a thread of another warp has copied. */
__global__ void copies(float *out, const float *x, int fault)
{
    CPL_SHARED(float, room);
    const int thread = (int)threadIdx.x, other = (thread + CPL_WARP) % THREADS;
    float all = 0;
    for (int turn = 0; turn <= TURNS; turn++) {
        if (turn < TURNS)
            CPL_COPY_ASYNC_16(room + turn % 2 * 4 * THREADS + 4 * thread + (fault == NOT_ALIGNED),
                              x + (turn * THREADS + thread) * 4, 16);
        CPL_COPY_COMMIT();
        if (turn == 0) continue;
        if (fault == EARLY_WAIT)
            CPL_COPY_WAIT(2);
        else if (fault != NO_WAIT)
            CPL_COPY_WAIT(1);
        if (fault != NO_BARRIER_AFTER_WAIT) __syncthreads();
        const float4 v = *(const float4 *)(room + (turn - 1) % 2 * 4 * THREADS + 4 * other);
        all += (v.x + v.y) + (v.z + v.w);
        if (fault != NO_BARRIER_BEFORE_COPY) __syncthreads();
    }
    CPL_COPY_WAIT(0);
    out[(int)blockIdx.x * THREADS + thread] = all;
}

enum { PANEL_ROWS = 16, PANEL_ROW = 64, PANEL = PANEL_ROWS * PANEL_ROW };

/* Returns the place of eight numbers of a panel's row. */
static __device__ int swizzled(int row, int chunk, int turn)
{
    return row * PANEL_ROW + (chunk ^ (row * turn) % 8) * 8;
}

/* out [2, lanes, 4] = columns 16 ... 31 of x [PANEL_ROWS, PANEL_ROW] as fragments, and turned. */
__global__ void matrices(uint32_t *out, const uint16_t *x, int fault)
{
    CPL_SHARED(uint16_t, panel);
    const int lane = (int)threadIdx.x, turn = fault == NO_SWIZZLE ? 0 : 1;
    for (int i = lane; i < PANEL / 8; i += CPL_WARP)
        CPL_COPY_ASYNC_16(panel + swizzled(i / 8, i % 8, turn), x + 8 * i, 16);
    CPL_COPY_COMMIT();
    CPL_COPY_WAIT(0);
    __syncthreads();
    const int of_read        = fault == OTHER_SWIZZLE ? 3 : turn;
    const uint16_t *const at = panel + swizzled(lane % 16, 2 + lane / 16, of_read);
    uint32_t r[4], turned[4];
    CPL_LDMATRIX(r, at);
    CPL_LDMATRIX_TRANS(turned, at);
    for (int i = 0; i < 4; i++)
        out[4 * lane + i] = r[i], out[4 * (CPL_WARP + lane) + i] = turned[i];
}

/* Shuffles within the halves of a warp, more often in one half, then across the whole warp. */
__global__ void halves(int *out)
{
    const int lane      = (int)threadIdx.x;
    const bool low      = lane < 16;
    const unsigned mask = low ? 0xffffu : 0xffff0000u;
    int v               = lane;
    if (low)
        for (int m = 8; m; m >>= 1) v += __shfl_xor_sync(mask, v, m);
    else
        v = __shfl_up_sync(mask, v, 1);
    v += 1000 * __shfl_down_sync(0xffffffffu, lane, 2);
    v += 100000 * __popc(__ballot_sync(0xffffffffu, lane % 3 == 0));
    out[lane] = v;
}

__global__ void product(float *c, const uint32_t *a, const uint32_t *b)
{
    const int lane = (int)threadIdx.x;
    float sums[4]  = {c[4 * lane], c[4 * lane + 1], c[4 * lane + 2], c[4 * lane + 3]};
    CPL_MMA_16816(sums, a + 4 * lane, b + 2 * lane);
    for (int i = 0; i < 4; i++) c[4 * lane + i] = sums[i];
}

/* ---- right results ---- */

static cpl_backend be;

static void launch(float *out, const float *x, int fault)
{
    if (fault >= COPIES) {
        CPL_LAUNCH(&be, copies, BLOCKS, THREADS, 8 * THREADS * sizeof(float), out, x, fault);
        return;
    }
    const dim3 grid(BLOCKS, fault == LARGE_GRID ? 65536 : 1);
    const unsigned threads = fault == HALF_WARP ? THREADS - 16 : THREADS;
    const size_t bytes     = fault == SHORT_MEMORY  ? (WARPS - 1) * sizeof(float)
                             : fault == MUCH_MEMORY ? ON_HOST_SHARED + 1
                                                    : (WARPS + 1) * sizeof(float);
    CPL_LAUNCH(&be, sums, grid, threads, bytes, out, x, fault);
}

/* Returns whether all of `out` is right. Whole numbers make any order of a sum exact. */
static bool is_right(const float *out, const float *x, bool of_copies)
{
    for (int i = 0; i < BLOCKS * THREADS; i++) {
        float right = 0;
        for (int turn = 0; turn < TURNS; turn++)
            if (of_copies)
                for (int k = 0; k < 4; k++)
                    right += x[(turn * THREADS + (i % THREADS + CPL_WARP) % THREADS) * 4 + k];
            else
                for (int k = 0; k < THREADS; k++)
                    right += (float)(turn + 1) * x[turn * THREADS + k];
        if (!(out[i] == right)) return false;
    }
    return true;
}

static bool matrices_are_right(int fault)
{
    alignas(16) static uint16_t x[PANEL];
    uint32_t out[2][CPL_WARP][4];
    for (int i = 0; i < PANEL; i++) x[i] = (uint16_t)i;
    CPL_LAUNCH(&be, matrices, 1, CPL_WARP, sizeof x, &out[0][0][0], x, fault);
    for (int lane = 0; lane < CPL_WARP; lane++)
        for (int i = 0; i < 4; i++) {
            const int row = i % 2 * 8, col = 16 + i / 2 * 8, a = lane / 4, b = lane % 4 * 2;
            const unsigned as_is  = (unsigned)((row + a) * PANEL_ROW + col + b);
            const unsigned turned = (unsigned)((row + b) * PANEL_ROW + col + a);
            if (out[0][lane][i] != (as_is | (as_is + 1) << 16)) return false;
            if (out[1][lane][i] != (turned | (turned + PANEL_ROW) << 16)) return false;
        }
    return true;
}

/* Returns 0 if the result is right in every order. Otherwise a kernel is refused or differs. */
static int run_with(int fault)
{
    alignas(16) static float x[4 * TURNS * THREADS], out[BLOCKS * THREADS];
    for (int i = 0; i < 4 * TURNS * THREADS; i++) x[i] = (float)(i * 7 % 31 - 15);
    if (fault) fclose(stderr); /* hides the sentence of the refusal or of ASan */
    for (uint32_t seed = 0; seed < SEEDS; seed++) {
        cpl_on_host_seed(seed);
        if (fault >= MATRICES) {
            if (!matrices_are_right(fault)) return 1;
            continue;
        }
        launch(out, x, fault);
        if (!is_right(out, x, fault >= COPIES)) return 1;
    }
    return 0;
}

static int in_child(int fault)
{
    int status        = 0;
    const pid_t child = fork();
    if (child == 0) _exit(run_with(fault));
    if (child < 0 || waitpid(child, &status, 0) != child) abort();
    return status;
}

/* ---- the emulation itself ---- */

static bool halves_are_right(void)
{
    int out[CPL_WARP];
    CPL_LAUNCH(&be, halves, 1, CPL_WARP, 0, out);
    for (int lane = 0; lane < CPL_WARP; lane++) {
        const int first = lane < 16 ? 120 : lane == 16 ? -1 : lane - 1;
        const int right = 1000 * (lane < 30 ? lane + 2 : lane) + 100000 * 11;
        if (lane != 16 && out[lane] != first + right) return false; /* 16 asks outside its mask */
    }
    return true;
}

static uint32_t pair(int low, int high)
{
    return (uint32_t)cpl_device_bf16((float)low) | (uint32_t)cpl_device_bf16((float)high) << 16;
}

static int number_a(int row, int k)
{
    return (row * 5 + k * 3) % 17 - 8;
}

static int number_b(int k, int col)
{
    return (k * 7 + col * 2) % 13 - 6;
}

/* Fragments are laid out by PTX: a[i] has row lane / 4 + 8 (i mod 2), b[i] column lane / 4. */
static bool product_is_right(void)
{
    uint32_t a[4 * CPL_WARP], b[2 * CPL_WARP];
    float c[4 * CPL_WARP];
    for (int lane = 0; lane < CPL_WARP; lane++)
        for (int i = 0; i < 4; i++) {
            const int row = lane / 4 + 8 * (i % 2), k = lane % 4 * 2 + 8 * (i / 2);
            a[4 * lane + i] = pair(number_a(row, k), number_a(row, k + 1));
            c[4 * lane + i] = 1;
            const int kb    = lane % 4 * 2 + 8 * (i % 2);
            if (i < 2) b[2 * lane + i] = pair(number_b(kb, lane / 4), number_b(kb + 1, lane / 4));
        }
    CPL_LAUNCH(&be, product, 1, CPL_WARP, 0, c, a, b);
    for (int lane = 0; lane < CPL_WARP; lane++)
        for (int i = 0; i < 4; i++) {
            int right = 1;
            for (int k = 0; k < 16; k++)
                right += number_a(lane / 4 + 8 * (i / 2), k) * number_b(k, lane % 4 * 2 + i % 2);
            if (c[4 * lane + i] != (float)right) return false;
        }
    return true;
}

int main()
{
    int wrong = 0;
    for (int fault = 0; fault < N_FAULTS; fault++) {
        const int status    = in_child(fault);
        const bool is_fault = fault != NONE && fault != COPIES && fault != MATRICES;
        if (is_fault != (status != 0)) {
            printf("wrong: %s: %s\n", names[fault],
                   status ? "refused, or another result" : "not noticed");
            wrong++;
        }
    }
    if (run_with(NONE) || !halves_are_right() || !product_is_right()) {
        printf("wrong: an operation of a warp\n");
        wrong++;
    }
    return wrong != 0;
}
