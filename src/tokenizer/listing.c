/* listing.c - see listing.h */
#include "tokenizer/listing.h"

#include <stdlib.h>

#include "base/arena.h"
#include "tokenizer/internal.h"

cpl_tokenizer_traits cpl_tokenizer_traits_of(const cpl_tokenizer *t)
{
    return (cpl_tokenizer_traits){t->split, t->nfc, t->prefix_space};
}

cpl_token_kind cpl_tokenizer_kind_of(const cpl_tokenizer *t, int64_t id)
{
    if (id < 0 || id >= t->vocab_size || !t->tokens[id].present) return CPL_TOKEN_ABSENT;
    if (!t->tokens[id].added) return CPL_TOKEN_NORMAL;
    return t->tokens[id].special ? CPL_TOKEN_SPECIAL : CPL_TOKEN_ADDED;
}

void cpl_tokenizer_spell(cpl_text *out, const cpl_tokenizer *t, int64_t id)
{
    uint32_t point_of[256];
    char name[4];
    const cpl_token_kind kind = cpl_tokenizer_kind_of(t, id);
    if (kind == CPL_TOKEN_ABSENT) return;
    const char *bytes = t->bytes.bytes + t->tokens[id].start;
    const uint32_t n  = t->tokens[id].length;
    if (kind != CPL_TOKEN_NORMAL) {
        cpl_text_append(out, bytes, n);
        return;
    }
    cpl_tokenizer_alphabet_points(point_of);
    for (uint32_t i = 0; i < n; i++)
        cpl_text_append(out, name,
                        (size_t)cpl_utf8_encode(point_of[(unsigned char)bytes[i]], name));
}

static int by_rank(const void *a, const void *b)
{
    const cpl_token_pair *x = a, *y = b;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

cpl_status cpl_tokenizer_list_merges(cpl_token_pair **merges, int64_t *count,
                                     const cpl_tokenizer *t)
{
    *merges = NULL;
    *count  = 0;
    if (t->merges.count == 0) return CPL_OK;
    cpl_token_pair *all = cpl_alloc(t->merges.count * sizeof *all);
    if (!all) return CPL_ERR_MEMORY;
    for (uint32_t i = 0; i <= t->merges.mask; i++) {
        const cpl_merge *m = &t->merges.at[i];
        if (m->pair == UINT64_MAX) continue;
        all[(*count)++] =
            (cpl_token_pair){(int32_t)(m->pair >> 32), (int32_t)(uint32_t)m->pair, m->rank};
    }
    qsort(all, (size_t)*count, sizeof *all, by_rank);
    *merges = all;
    return CPL_OK;
}
