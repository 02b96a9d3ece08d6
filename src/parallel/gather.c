/* gather.c - see gather.h */
#include "parallel/gather.h"

#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "io/json.h"

cpl_status cpl_gather_status(cpl_group *g, cpl_status status)
{
    return cpl_gather_is_alone(g) ? status : cpl_group_agree(g, status);
}

/* ---- texts ---- */

void cpl_gathered_free(cpl_gathered *all)
{
    cpl_free(all->bytes);
    cpl_free(all->length);
    memset(all, 0, sizeof *all);
}

static int64_t sum_of(const int64_t *length, int size)
{
    int64_t sum = 0;
    for (int r = 0; r < size; r++) sum += length[r];
    return sum;
}

/* Gathers the lengths of all texts. Allocates memory for the texts on ranks that receive them. */
static cpl_status make_room(cpl_gathered *all, cpl_group *g, int64_t own, bool gets)
{
    const int size = g ? g->size : 1;
    all->length    = cpl_alloc((size_t)size * sizeof *all->length);
    CPL_TRY(cpl_gather_status(g, all->length ? CPL_OK : CPL_ERR_MEMORY));
    memset(all->length, 0, (size_t)size * sizeof *all->length);
    all->length[g ? g->rank : 0] = own;
    if (size > 1) cpl_group_sum_i64(g, all->length, size);
    all->bytes = cpl_alloc((size_t)(gets ? sum_of(all->length, size) : 0) + 1);
    return cpl_gather_status(g, all->bytes ? CPL_OK : CPL_ERR_MEMORY);
}

static cpl_status begin(cpl_gathered *all, cpl_group *g, cpl_status status, const cpl_text *own,
                        bool gets)
{
    memset(all, 0, sizeof *all);
    if (status == CPL_OK) status = cpl_text_status(own);
    CPL_TRY(cpl_gather_status(g, status));
    return make_room(all, g, (int64_t)own->length, gets);
}

cpl_status cpl_gather_texts(cpl_gathered *all, cpl_group *g, cpl_status status, const cpl_text *own)
{
    const char *bytes = own->bytes ? own->bytes : "";
    status            = begin(all, g, status, own, true);
    if (status == CPL_OK && cpl_gather_is_alone(g)) memcpy(all->bytes, bytes, own->length);
    if (status == CPL_OK && !cpl_gather_is_alone(g)) {
        cpl_group_all_gather(g, all->bytes, bytes, all->length);
        status = cpl_group_status(g);
    }
    if (status != CPL_OK) cpl_gathered_free(all);
    return status;
}

cpl_status cpl_gather_to_first(cpl_gathered *all, cpl_group *g, cpl_status status,
                               const cpl_text *own)
{
    enum { UNIT = 4 };
    if (cpl_gather_is_alone(g)) return cpl_gather_texts(all, g, status, own);
    status           = begin(all, g, status, own, g->rank == 0);
    int64_t *sent    = status == CPL_OK ? cpl_alloc(2 * (size_t)g->size * sizeof *sent) : NULL;
    int64_t *arrives = sent ? sent + g->size : NULL;
    if (status == CPL_OK) status = cpl_group_agree(g, sent ? CPL_OK : CPL_ERR_MEMORY);
    if (status == CPL_OK) {
        for (int r = 0; r < g->size; r++) {
            sent[r]    = r == 0 ? (int64_t)own->length / UNIT : 0;
            arrives[r] = g->rank == 0 ? all->length[r] / UNIT : 0;
        }
        cpl_group_all_to_all(g, all->bytes, arrives, own->bytes, sent, UNIT);
        status = cpl_group_status(g);
    }
    cpl_free(sent);
    if (status != CPL_OK || g->rank > 0) cpl_gathered_free(all);
    return status;
}

/* ---- values ---- */

/* Returns the value as text, from malloc. NULL if the value is NULL or memory is not available. */
static char *text_of(const json_t *value)
{
    if (json_is_string(value)) return strdup(json_string_value(value));
    return value ? json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
}

static cpl_status differ(const char *name, const json_t *own, const json_t *first)
{
    char *a           = text_of(own);
    char *b           = text_of(first);
    cpl_status status = CPL_FAIL(CPL_ERR_INPUT, "%s is %.300s, but %.300s on rank 0", name,
                                 a ? a : "not set", b ? b : "not set");
    free(a);
    free(b);
    return status;
}

static cpl_status compare(const json_t *own, const json_t *first)
{
    const char *name;
    json_t *theirs;
    json_object_foreach((json_t *)(uintptr_t)first, name, theirs)
    {
        const json_t *mine = json_object_get(own, name);
        if (!mine || !json_equal(mine, theirs)) return differ(name, mine, theirs);
    }
    return CPL_OK;
}

/* Compares `own` with the first text, which is rank 0's. */
static cpl_status compare_first(const json_t *own, const cpl_gathered *all)
{
    json_t *first     = json_loadb(all->bytes, (size_t)all->length[0], 0, NULL);
    cpl_status status = first ? compare(own, first) : CPL_ERR_MEMORY;
    json_decref(first);
    return status;
}

static cpl_status write_values(cpl_text *text, const json_t *values)
{
    char *dumped = values ? json_dumps(values, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
    if (dumped) cpl_text_append(text, dumped, strlen(dumped));
    cpl_json_text_free(dumped);
    return dumped ? cpl_text_status(text)
                  : CPL_FAIL(CPL_ERR_MEMORY, "out of memory for values that ranks compare");
}

cpl_status cpl_gather_equal(cpl_group *g, cpl_status status, json_t *own)
{
    cpl_gathered all = {0};
    cpl_text text    = {0};
    if (!cpl_gather_is_alone(g)) {
        if (status == CPL_OK) status = write_values(&text, own);
        status = cpl_gather_texts(&all, g, status, &text);
        if (status == CPL_OK) status = cpl_group_agree(g, compare_first(own, &all));
    }
    cpl_gathered_free(&all);
    cpl_text_free(&text);
    json_decref(own);
    return status;
}
