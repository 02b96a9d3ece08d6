/* train_step.c - the speed of a whole training step, compared with the plain product; its memory
 *
 * usage:   train_step [pairs [f32|bf16 [micro]]]
 * Step:    forward, backward, coupling loss, gradient norm, AdamW over 8192 tokens in sequences of
 *          512; d = 1536, D = 768, n = 64, K = 8; once with two layers and a vocabulary of 4096,
 *          once with one layer and 50304. `micro` sequences are computed at once (default: all 16).
 * Counted: the operations of model/cost.h, three times forward, without repeated computation.
 * Limit:   a product of [8192,1536] with [1536,1536], alternating with the step. */
#include "step.h"

#include "model/cost.h"

enum { TOKENS = 8192 };

static void compare(const char *what, cpl_dtype dtype, int64_t n_layers, int64_t vocab_size,
                    int64_t micro, int pairs)
{
    const bench_shape shape = {dtype, n_layers,           vocab_size, TOKENS,
                               micro, CPL_ROUTER_SOFTMAX, 0,          NULL};
    bench_step s;
    bench_plain plain;
    bench_reset_peak();
    bench_step_init(&s, &shape);
    bench_plain_init(&plain, &s.be);
    double flops = cpl_cost_step(&s.settings.model, TOKENS, BENCH_SEQ_LEN, &s.settings.losses.erc);
    bench_pair pair = bench_alternate(pairs, bench_step_run, &s, bench_plain_run, &plain);
    bench_print(what, &pair, flops, bench_plain_flops());
    printf("%-34s %8.0f tokens/s, peak resident %.2f GB\n", "",
           TOKENS / bench_median(&pair.subject), bench_status_bytes("VmHWM") / 1e9);
    bench_plain_free(&plain);
    bench_step_free(&s);
}

int main(int argc, char **argv)
{
    int pairs       = argc > 1 ? atoi(argv[1]) : 3;
    bool bf16       = argc > 2 && strcmp(argv[2], "bf16") == 0;
    int64_t micro   = argc > 3 ? atoi(argv[3]) : TOKENS / BENCH_SEQ_LEN;
    cpl_dtype dtype = bf16 ? CPL_BF16 : CPL_F32;
    cpl_backend be;
    cpl_backend_cpu(&be, dtype, 0);
    printf("A whole training step, %s\n", bf16 ? "bf16" : "f32");
    bench_machine(&be);
    compare("2 layers, vocabulary 4096", dtype, 2, 4096, micro, pairs);
    compare("1 layer, vocabulary 50304", dtype, 1, 50304, micro, pairs);
    return 0;
}
