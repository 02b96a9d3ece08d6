/* shard_survey.c - a survey of token files, as numbers and as text (see shards.h). */
#include <string.h>

#include "base/arena.h"
#include "data/shards.h"

enum { N_CANDIDATES = 5 };

static void count_token(cpl_shard_survey *s, uint64_t id, bool odd_place, uint64_t vocabulary)
{
    s->n_tokens++;
    if (id > s->largest) s->largest = id;
    if (vocabulary && id >= vocabulary) s->too_large++;
    if (odd_place) {
        s->pairs++;
        s->odd_small += id <= 1;
    }
    for (int c = 0; c < N_CANDIDATES; c++) s->n_candidate[c] += id == s->candidate[c];
}

static cpl_status look_at(const cpl_shards *shards, int64_t max_tokens, cpl_shard_survey *s)
{
    enum { CHUNK = 4096 }; /* even, so that odd places are odd in every chunk */
    uint64_t ids[CHUNK];
    for (int64_t f = 0; f < shards->n_files; f++) {
        const cpl_shard *file = &shards->file[f];
        for (int64_t first = 0, n; first < file->n_tokens && s->n_tokens < max_tokens; first += n) {
            n = file->n_tokens - first;
            if (n > max_tokens - s->n_tokens) n = max_tokens - s->n_tokens;
            if (n > CHUNK) n = CHUNK;
            CPL_TRY(cpl_shard_tokens(file, first, n, ids));
            for (int64_t i = 0; i < n; i++)
                count_token(s, ids[i], i % 2 == 1, (uint64_t)shards->vocab_size);
        }
    }
    return CPL_OK;
}

cpl_status cpl_shards_survey(const cpl_shards *shards, int64_t max_tokens, cpl_shard_survey *survey)
{
    cpl_shard_survey first = {.candidate = {0, 50256, 50279}};
    uint64_t last          = (uint64_t)shards->vocab_size - 1;
    if (!shards->vocab_size) {
        CPL_TRY(look_at(shards, max_tokens, &first));
        last = first.largest;
    }
    memset(survey, 0, sizeof *survey);
    memcpy(survey->candidate, first.candidate, sizeof first.candidate);
    survey->candidate[3] = last;
    survey->candidate[4] = shards->eos >= 0 ? (uint64_t)shards->eos : last;
    return look_at(shards, max_tokens, survey);
}

/* ---- words ---- */

/* Documents and tokens by label number. */
typedef struct totals {
    int64_t *documents, *tokens;
    int64_t without_rows; /* files without metadata */
} totals;

static void add_document(void *ctx, int32_t label, int64_t start, int64_t end)
{
    totals *t = ctx;
    t->documents[label]++;
    t->tokens[label] += end - start;
}

static cpl_status add_file(const cpl_shards *shards, int64_t f, totals *t)
{
    const cpl_shard *file = &shards->file[f];
    bool present          = false;
    CPL_TRY(cpl_shards_documents(shards, f, &present, add_document, t));
    if (present) return CPL_OK;
    t->without_rows++;
    t->tokens[file->label[0]] += file->n_tokens;
    return CPL_OK;
}

static void describe_files(const cpl_shards *shards, cpl_text *out)
{
    char size[32];
    for (int64_t i = 0; i < shards->n_files; i++) {
        const cpl_shard *f = &shards->file[i];
        cpl_text_printf(out, "%s: %lld tokens, uint%d, %s\n", f->path, (long long)f->n_tokens,
                        8 * f->item_bytes, cpl_text_bytes(size, (double)f->ids.length));
    }
    cpl_text_printf(out, "%lld files, %lld tokens", (long long)shards->n_files,
                    (long long)shards->n_tokens);
    if (shards->vocab_size)
        cpl_text_printf(out, ", vocabulary of %lld", (long long)shards->vocab_size);
    if (shards->eos >= 0) cpl_text_printf(out, ", documents end in %lld", (long long)shards->eos);
    cpl_text_char(out, '\n');
}

static void describe_totals(const cpl_shards *shards, const totals *t, cpl_text *out)
{
    for (int64_t l = 0; l < shards->labels.count; l++) {
        cpl_text_printf(out, "  %-24s %12lld tokens", shards->labels.at[l],
                        (long long)t->tokens[l]);
        if (t->documents[l]) cpl_text_printf(out, " %10lld documents", (long long)t->documents[l]);
        cpl_text_char(out, '\n');
    }
    if (t->without_rows)
        cpl_text_printf(out, "%lld files have no metadata (.csv.gz) that counts their documents\n",
                        (long long)t->without_rows);
}

static void describe_survey(const cpl_shard_survey *s, cpl_text *out)
{
    cpl_text_printf(out, "In the first %lld tokens the largest id is %llu.\n",
                    (long long)s->n_tokens, (unsigned long long)s->largest);
    cpl_text_printf(out, "Candidates for the end of a document:");
    for (int c = 0; c < N_CANDIDATES; c++) {
        bool repeated = false;
        for (int k = 0; k < c; k++) repeated |= s->candidate[k] == s->candidate[c];
        if (!repeated)
            cpl_text_printf(out, "%s %llu %lld times", c ? "," : "",
                            (unsigned long long)s->candidate[c], (long long)s->n_candidate[c]);
    }
    cpl_text_char(out, '\n');
    bool halves = s->pairs >= 64 && s->odd_small >= s->pairs - s->pairs / 100;
    if (halves) cpl_text_printf(out, "Every second id is 0 or 1: this is uint32 read as uint16.\n");
    if (s->too_large)
        cpl_text_printf(out, "%lld ids are outside the vocabulary: another tokenizer or type.\n",
                        (long long)s->too_large);
    if (!halves && !s->too_large) cpl_text_printf(out, "The item type is likely.\n");
}

cpl_status cpl_shards_describe(const cpl_shards *shards, int64_t max_tokens, cpl_text *out)
{
    cpl_shard_survey survey;
    cpl_status status = CPL_OK;
    size_t bytes      = (size_t)shards->labels.count * sizeof(int64_t);
    totals t          = {cpl_alloc(bytes), cpl_alloc(bytes), 0};
    if (!t.documents || !t.tokens) {
        status = CPL_ERR_MEMORY;
        goto done;
    }
    memset(t.documents, 0, bytes);
    memset(t.tokens, 0, bytes);
    for (int64_t f = 0; f < shards->n_files; f++) CPL_TRY_DONE(add_file(shards, f, &t));
    CPL_TRY_DONE(cpl_shards_survey(shards, max_tokens, &survey));
    describe_files(shards, out);
    describe_totals(shards, &t, out);
    describe_survey(&survey, out);
    status = cpl_text_status(out);
done:
    cpl_free(t.documents);
    cpl_free(t.tokens);
    return status;
}
