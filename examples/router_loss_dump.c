/* router_loss_dump.c - the load-balancing loss of a trainer in C, and the dump for its check:
 *
 *     cc router_loss_dump.c -lm -o router_loss_dump && ./router_loss_dump balance.safetensors
 *     python -m couplet.certify balance.safetensors
 *
 * The file is eight bytes with the length of the header, little-endian, the header in JSON, and the
 * numbers. Its names are those of docs/losses.md; `kind` and `couplet_dump` may be left out. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { T = 32, N = 8, K = 2 };

/* The numbers of a dump, in its order. */
static struct numbers {
    float logits[T][N], d_logits[T][N], loss, top_k, coefficient;
} x = {.top_k = K, .coefficient = 0.01f};

/* Computes n times the sum over experts of f P, and its gradient. f counts assignments and has no
 * gradient. */
static void balance(void)
{
    float p[T][N], f[N] = {0}, P[N] = {0};
    for (int t = 0; t < T; t++) {
        float sum = 0;
        for (int e = 0; e < N; e++) sum += p[t][e] = expf(x.logits[t][e]);
        for (int e = 0; e < N; e++) {
            int larger = 0;
            for (int o = 0; o < N; o++) larger += x.logits[t][o] > x.logits[t][e];
            f[e] += (larger < K) / (float)(T * K);
            P[e] += (p[t][e] /= sum) / T;
        }
    }
    for (int e = 0; e < N; e++) x.loss += x.coefficient * N * f[e] * P[e];
    for (int t = 0; t < T; t++) {
        float mean = 0;
        for (int e = 0; e < N; e++) mean += f[e] * p[t][e];
        for (int e = 0; e < N; e++)
            x.d_logits[t][e] = x.coefficient * N / T * p[t][e] * (f[e] - mean);
    }
}

/* Writes the dump; returns exit code 0 on success. */
static int write_dump(const char *path)
{
    char header[1024];
    const unsigned long long a = sizeof x.logits, b = 2 * a; /* where logits and d_logits end */
    snprintf(header, sizeof header,
             "{\"__metadata__\":{\"couplet_dump\":\"1\",\"kind\":\"load-balancing-olmoe\"},"
             "\"logits\":{\"dtype\":\"F32\",\"shape\":[%d,%d],\"data_offsets\":[0,%llu]},"
             "\"d_logits\":{\"dtype\":\"F32\",\"shape\":[%d,%d],\"data_offsets\":[%llu,%llu]},"
             "\"loss\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[%llu,%llu]},"
             "\"top_k\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[%llu,%llu]},"
             "\"coefficient\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[%llu,%llu]}}",
             T, N, a, T, N, a, b, b, b + 4, b + 4, b + 8, b + 8, b + 12);
    unsigned char length[8];
    for (int i = 0; i < 8; i++) length[i] = (unsigned char)(strlen(header) >> (8 * i));
    FILE *file = fopen(path, "wb");
    if (!file) return 1;
    const int ok = fwrite(length, 8, 1, file) && fwrite(header, strlen(header), 1, file) &&
                   fwrite(&x, sizeof x, 1, file);
    return fclose(file) || !ok;
}

int main(int argc, char **argv)
{
    for (int t = 0; t < T; t++)
        for (int e = 0; e < N; e++) x.logits[t][e] = 4.0f * (float)rand() / (float)RAND_MAX - 2.0f;
    balance();
    return write_dump(argc > 1 ? argv[1] : "balance.safetensors");
}
