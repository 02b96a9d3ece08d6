/* tokenizer.c - the speed at which one core encodes text into ids
 *
 * Usage:   tokenizer [TOKENIZER DOCUMENTS...]     (tokenizer.json; .json.gz, .jsonl.zst, .txt);
 *          without them, in the root of the project: its own tokenizer and English text
 * Prints:  machine, text, median and spread of the runs in MB/s (10^6 bytes of text), once with an
 *          empty cache of words at the start of each run ("cold"), once with the cache of the run
 *          before ("warm"), and the ratio to a plain pass over the same memory (XXH3, memcpy). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

#include "base/arena.h"
#include "data/documents.h"
#include "tokenizer/tokenizer.h"

enum { RUNS = 5 };

static const char *const own[] = {"data/tokenizer.json", "data/train/encyclopedia-0000.json.gz",
                                  "data/train/encyclopedia-0001.json.gz",
                                  "data/train/books-0000.json.gz", "data/train/books-0001.json.gz"};

/* All documents, one after the other: document i ends at ends[i]. */
typedef struct corpus {
    cpl_text text;
    size_t *ends;
    size_t count, capacity;
} corpus;

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void stop_on(cpl_status status)
{
    if (status == CPL_OK) return;
    fprintf(stderr, "%s\n", cpl_last_error());
    exit(1);
}

static void read_documents(corpus *c, const char *path)
{
    cpl_document_settings settings = cpl_document_defaults();
    cpl_documents *documents;
    cpl_document document;
    bool more;
    stop_on(cpl_documents_open(&documents, path, &settings, NULL));
    for (;;) {
        stop_on(cpl_documents_next(documents, &document, &more));
        if (!more) break;
        if (c->count == c->capacity) {
            c->capacity = c->capacity * 2 + 1024;
            c->ends     = cpl_realloc(c->ends, c->capacity * sizeof *c->ends);
            if (!c->ends) stop_on(CPL_ERR_MEMORY);
        }
        cpl_text_append(&c->text, document.text, document.length);
        c->ends[c->count++] = c->text.length;
    }
    cpl_documents_close(documents);
    stop_on(cpl_text_status(&c->text));
}

static int by_value(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* Sorts the seconds of all runs and prints them as speeds; returns the median in MB/s. */
static double report(const char *what, double took[RUNS], size_t bytes)
{
    double mb = (double)bytes / 1e6;
    qsort(took, RUNS, sizeof *took, by_value);
    double median = mb / took[RUNS / 2];
    printf("%-22s %9.1f MB/s   (%.1f to %.1f in %d runs)\n", what, median, mb / took[RUNS - 1],
           mb / took[0], RUNS);
    return median;
}

static double encode_all(cpl_encoder *e, cpl_ids *ids, const corpus *c)
{
    double start = seconds();
    ids->count   = 0;
    for (size_t i = 0, at = 0; i < c->count; at = c->ends[i++])
        stop_on(cpl_encoder_append(e, ids, c->text.bytes + at, c->ends[i] - at));
    return seconds() - start;
}

static void print_machine(void)
{
    char line[256];
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, "model name", 10) == 0) {
            printf("processor: %s", strchr(line, ':') + 2);
            break;
        }
    if (file) fclose(file);
#ifdef __VERSION__
    printf("compiler: %s%s\n", __VERSION__,
#    ifdef __OPTIMIZE__
           ", optimised"
#    else
           ", NOT OPTIMISED"
#    endif
    );
#endif
}

static double measure(const cpl_tokenizer *t, const corpus *c, bool cold)
{
    double took[RUNS];
    cpl_ids ids = {0};
    cpl_encoder *e;
    stop_on(cpl_encoder_init(&e, t, false));
    encode_all(e, &ids, c);
    for (int run = 0; run < RUNS; run++) {
        if (cold) {
            cpl_encoder_free(e);
            stop_on(cpl_encoder_init(&e, t, false));
        }
        took[run] = encode_all(e, &ids, c);
    }
    if (cold)
        printf("%lld ids, %.3f bytes each\n", (long long)ids.count,
               (double)c->text.length / (double)ids.count);
    double median = report(cold ? "encode, cold" : "encode, warm", took, c->text.length);
    cpl_encoder_free(e);
    cpl_ids_free(&ids);
    return median;
}

int main(int argc, char **argv)
{
    corpus c = {0};
    cpl_tokenizer *t;
    double hash[RUNS], copy[RUNS];
    uint64_t sum = 0;
    if (argc == 2) {
        fprintf(stderr, "usage: %s [TOKENIZER DOCUMENTS...]\n", argv[0]);
        return 2;
    }
    stop_on(cpl_tokenizer_load(&t, argc > 1 ? argv[1] : own[0]));
    for (int i = 2; i < argc; i++) read_documents(&c, argv[i]);
    for (size_t i = 1; argc < 2 && i < sizeof own / sizeof *own; i++) read_documents(&c, own[i]);
    print_machine();
    printf("text: %zu documents, %.1f MB\n", c.count, (double)c.text.length / 1e6);
    double cold = measure(t, &c, true), warm = measure(t, &c, false);
    char *other = cpl_alloc(c.text.length);
    if (!other) stop_on(CPL_ERR_MEMORY);
    memset(other, 0, c.text.length);
    for (int run = 0; run < RUNS; run++) {
        double start = seconds();
        sum += XXH3_64bits(c.text.bytes, c.text.length);
        hash[run] = seconds() - start;
        start     = seconds();
        memcpy(other, c.text.bytes, c.text.length);
        copy[run] = seconds() - start;
        sum += (unsigned char)other[run];
    }
    double hashed = report("XXH3", hash, c.text.length);
    double copied = report("memcpy", copy, c.text.length);
    printf("of XXH3: cold %.4f, warm %.4f; of memcpy: cold %.4f, warm %.4f   [%016llx]\n",
           cold / hashed, warm / hashed, cold / copied, warm / copied, (unsigned long long)sum);
    cpl_free(other);
    cpl_free(c.ends);
    cpl_text_free(&c.text);
    cpl_tokenizer_free(t);
    return 0;
}
