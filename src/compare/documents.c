/* documents.c - pairs of runs document by document; see compare.h
 *
 * File:  RUN/documents.json, plain or compressed: {"step": N, "window": S, "documents":
 *        [{"source": "web", "id": "...", "bytes": B, "tokens": N, "nll": X}, ...]}. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/rng.h"
#include "compare/internal.h"

/* A document of the first base, and its figures in all files. */
typedef struct document {
    const char *source, *id;
    double bytes;
    double nll[2]; /* of base and other: sums over the files of a side */
    int64_t n[2];  /* files of a side that have it with as many bytes */
} document;

typedef struct table {
    document *at; /* (n) in the order of source, then id */
    int64_t n;
    int64_t step, window;
} table;

static int by_name(const void *a, const void *b)
{
    const document *x = a, *y = b;
    const int source = strcmp(x->source, y->source);
    return source ? source : strcmp(x->id, y->id);
}

/* ---- files ---- */

static int64_t whole_number(const json_t *file, const char *key)
{
    const json_t *value = json_object_get(file, key);
    return json_is_number(value) ? (int64_t)json_number_value(value) : INT64_C(-1);
}

/* One entry of "documents"; false: it is none. An id may be a number. */
static bool read_document(document *out, cpl_pool *pool, const json_t *entry)
{
    const json_t *id = json_object_get(entry, "id"), *bytes = json_object_get(entry, "bytes");
    const json_t *nll  = json_object_get(entry, "nll");
    const char *source = json_string_value(json_object_get(entry, "source"));
    *out               = (document){0};
    if (!json_is_number(bytes) || !json_is_number(nll) || json_number_value(bytes) <= 0)
        return false;
    if (json_is_string(id))
        out->id = cpl_pool_copy(pool, json_string_value(id), json_string_length(id));
    else if (json_is_integer(id))
        out->id = cpl_pool_printf(pool, "%lld", (long long)json_integer_value(id));
    else
        return false;
    source      = source ? source : "";
    out->source = cpl_pool_copy(pool, source, strlen(source));
    out->bytes  = json_number_value(bytes);
    out->nll[0] = json_number_value(nll);
    out->n[0]   = 1;
    return true;
}

/* The documents of a file, each once, sorted; their nll is that of a base. */
static cpl_status read_table(table *out, cpl_pool *pool, const json_t *file)
{
    const json_t *entries = json_object_get(file, "documents");
    const size_t count    = json_array_size(entries);
    *out    = (table){.step = whole_number(file, "step"), .window = whole_number(file, "window")};
    out->at = cpl_pool_take(pool, (count + 1) * sizeof *out->at);
    if (!out->at) return cpl_pool_status(pool);
    for (size_t i = 0; i < count; i++)
        out->n += read_document(&out->at[out->n], pool, json_array_get(entries, i));
    if (out->n) qsort(out->at, (size_t)out->n, sizeof *out->at, by_name);
    int64_t kept = out->n > 0;
    for (int64_t i = 1; i < out->n; i++)
        if (by_name(&out->at[i], &out->at[kept - 1]) != 0) out->at[kept++] = out->at[i];
    out->n = kept;
    return cpl_pool_status(pool);
}

/* ---- joining ---- */

typedef struct joined {
    cpl_compare *c;
    cpl_document_difference *out;
    const char **reason;
    table all; /* of the first base, with the sums over all files; before it no documents */
} joined;

/* Adds the numbers of one file of a side to the documents that are there; returns how many are
 * not. */
static int64_t add_file(table *all, const table *file, int side)
{
    int64_t strange = 0;
    for (int64_t i = 0; i < file->n; i++) {
        const document *d = &file->at[i];
        document *hit     = all->n ? bsearch(d, all->at, (size_t)all->n, sizeof *d, by_name) : NULL;
        if (!hit || hit->bytes != d->bytes) {
            strange++;
            continue;
        }
        hit->nll[side] += d->nll[0];
        hit->n[side]++;
    }
    return strange;
}

static bool same_reading(const table *a, const table *b)
{
    return a->step == b->step && a->window == b->window;
}

static void join_tables(joined *j, const table *base, const table *other)
{
    const bool begun = j->out->n_pairs > 0;
    if (!same_reading(base, other) || (begun && !same_reading(base, &j->all))) {
        *j->reason = "documents.json of the runs are of different steps or windows";
        return;
    }
    if (begun)
        (void)add_file(&j->all, base, 0);
    else
        j->all = *base;
    const int64_t strange = add_file(&j->all, other, 1);
    if (strange > j->out->only_other) j->out->only_other = strange;
    j->out->step = j->all.step;
    j->out->n_pairs++;
}

static cpl_status join_pair(joined *j, const cpl_run_pair *pair)
{
    const cpl_run_record *runs[2] = {&j->c->runs[pair->base], &j->c->runs[pair->other]};
    json_t *files[2];
    table base, other;
    cpl_status status = CPL_OK;
    CPL_TRY(cpl_run_files(files, j->reason, &j->c->pool, runs, "documents.json", NULL));
    if (files[0] && files[1]) {
        status = read_table(&base, &j->c->pool, files[0]);
        if (status == CPL_OK) status = read_table(&other, &j->c->pool, files[1]);
        if (status == CPL_OK) join_tables(j, &base, &other);
    }
    json_decref(files[0]);
    json_decref(files[1]);
    return status;
}

/* Keeps the documents that every file has; sums become means over the pairs. */
static void keep_matched(joined *j)
{
    const int64_t n = j->out->n_pairs;
    int64_t kept    = 0;
    for (int64_t i = 0; i < j->all.n; i++) {
        document d = j->all.at[i];
        if (d.n[0] < n || d.n[1] < n) {
            j->out->only_base++;
            continue;
        }
        d.nll[0] /= (double)n;
        d.nll[1] /= (double)n;
        j->all.at[kept++] = d;
    }
    j->all.n = kept;
}

/* ---- figures ---- */

cpl_status cpl_compare_interval(double *low, double *high, const double *delta, const double *bytes,
                                int64_t n, uint32_t layer)
{
    double *drawn = cpl_alloc(CPL_BOOTSTRAP_RESAMPLES * sizeof *drawn);
    if (!drawn) return CPL_ERR_MEMORY;
    for (uint64_t k = 0; k < CPL_BOOTSTRAP_RESAMPLES; k++) {
        const cpl_rng_key key = {.step = k, .layer = layer, .stream = CPL_STREAM_BOOTSTRAP};
        double sum = 0, size = 0;
        uint32_t four[4];
        for (int64_t i = 0; i < n; i++) {
            if (i % 4 == 0) cpl_rng_block(&key, (uint64_t)i / 4, four);
            const int64_t d = (int64_t)(((uint64_t)four[i % 4] * (uint64_t)n) >> 32);
            sum += delta[d];
            size += bytes[d];
        }
        drawn[k] = sum / size;
    }
    *low  = cpl_quantile(drawn, CPL_BOOTSTRAP_RESAMPLES, 0.025);
    *high = cpl_quantile(drawn, CPL_BOOTSTRAP_RESAMPLES, 0.975);
    cpl_free(drawn);
    return CPL_OK;
}

/* The documents [first, end) of the table as one set. */
static cpl_status measure(cpl_document_set *set, cpl_pool *pool, const document *at, int64_t n,
                          uint32_t layer)
{
    double *delta = cpl_pool_take(pool, (size_t)n * sizeof *delta), base = 0, other = 0;
    double *bytes = cpl_pool_take(pool, (size_t)n * sizeof *bytes);
    if (!delta || !bytes) return cpl_pool_status(pool);
    set->n   = n;
    set->low = set->high = (double)NAN;
    for (int64_t i = 0; i < n; i++) {
        delta[i] = (at[i].nll[1] - at[i].nll[0]) / log(2);
        bytes[i] = at[i].bytes;
        set->bytes += at[i].bytes;
        base += at[i].nll[0];
        other += at[i].nll[1];
    }
    set->base       = base / log(2) / set->bytes;
    set->other      = other / log(2) / set->bytes;
    set->difference = set->other - set->base;
    return n < 2 ? CPL_OK : cpl_compare_interval(&set->low, &set->high, delta, bytes, n, layer);
}

static cpl_status measure_all(cpl_document_difference *out, cpl_pool *pool, const table *all)
{
    int64_t sources = 0;
    for (int64_t i = 0; i < all->n; i++)
        sources += i == 0 || strcmp(all->at[i].source, all->at[i - 1].source) != 0;
    out->sets = cpl_pool_take(pool, (size_t)(sources + 1) * sizeof *out->sets);
    if (!out->sets) return cpl_pool_status(pool);
    CPL_TRY(measure(&out->sets[out->n_sets++], pool, all->at, all->n, 0));
    for (int64_t i = 0, first = 0; i < all->n; i++) {
        if (i + 1 < all->n && strcmp(all->at[i + 1].source, all->at[i].source) == 0) continue;
        cpl_document_set *set = &out->sets[out->n_sets];
        set->source           = all->at[i].source;
        CPL_TRY(measure(set, pool, all->at + first, i + 1 - first, (uint32_t)out->n_sets));
        out->n_sets++;
        first = i + 1;
    }
    return CPL_OK;
}

cpl_status cpl_compare_documents(cpl_compare *c, cpl_pairing *p, const char **reason)
{
    joined j = {.c = c, .out = &p->documents, .reason = reason};
    for (int64_t i = 0; i < p->n; i++) CPL_TRY(join_pair(&j, &p->pairs[i]));
    if (j.out->n_pairs == 0) return CPL_OK;
    keep_matched(&j);
    if (j.all.n == 0) {
        j.out->n_pairs = 0;
        *reason        = "documents.json of the runs have no document in common";
        return CPL_OK;
    }
    return measure_all(j.out, &c->pool, &j.all);
}
