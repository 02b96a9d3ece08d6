/* tally.c - byte strings with their counts, see bpe.h. */
#include "tokenizer/bpe.h"

#include <string.h>
#include <xxhash.h>

#include "base/arena.h"

void cpl_tally_free(cpl_tally *tally)
{
    cpl_text_free(&tally->bytes);
    cpl_free(tally->at);
    cpl_free(tally->table);
    memset(tally, 0, sizeof *tally);
}

static uint32_t hash_of(const void *bytes, size_t length)
{
    return (uint32_t)XXH3_64bits(bytes, length);
}

/* Returns the index of the string in the table, or the free index for a new string. */
static uint32_t place_of(const cpl_tally *tally, const void *bytes, size_t length)
{
    uint32_t place = hash_of(bytes, length) & tally->mask;
    for (; tally->table[place]; place = (place + 1) & tally->mask) {
        const cpl_tally_entry *entry = tally->at + tally->table[place] - 1;
        if (entry->length == length &&
            memcmp(tally->bytes.bytes + entry->start, bytes, length) == 0)
            break;
    }
    return place;
}

static cpl_status grow_table(cpl_tally *tally)
{
    size_t places   = tally->table ? ((size_t)tally->mask + 1) * 2 : 1024;
    uint32_t *table = cpl_alloc(places * sizeof *table);
    if (!table) return CPL_ERR_MEMORY;
    memset(table, 0, places * sizeof *table);
    cpl_free(tally->table);
    tally->table = table;
    tally->mask  = (uint32_t)(places - 1);
    for (uint32_t i = 0; i < tally->count; i++) {
        const cpl_tally_entry *entry = tally->at + i;
        tally->table[place_of(tally, tally->bytes.bytes + entry->start, entry->length)] = i + 1;
    }
    return CPL_OK;
}

cpl_status cpl_tally_grow(void *list, size_t *capacity, size_t count, size_t item_bytes)
{
    void *items;
    if (count < *capacity) return CPL_OK;
    memcpy(&items, list, sizeof items);
    items = cpl_realloc(items, (*capacity * 2 + 1024) * item_bytes);
    if (!items) return CPL_ERR_MEMORY;
    memcpy(list, &items, sizeof items);
    *capacity = *capacity * 2 + 1024;
    return CPL_OK;
}

cpl_status cpl_tally_number(cpl_tally *tally, const void *bytes, size_t length, uint32_t *number)
{
    if (!tally->table || tally->count > tally->mask / 2) CPL_TRY(grow_table(tally));
    uint32_t place = place_of(tally, bytes, length);
    if (!tally->table[place]) {
        if (tally->count == INT32_MAX)
            return CPL_FAIL(CPL_ERR_INPUT, "more than %d different words or pairs", INT32_MAX);
        CPL_TRY(cpl_tally_grow(&tally->at, &tally->capacity, tally->count, sizeof *tally->at));
        size_t start = tally->bytes.length;
        cpl_text_append(&tally->bytes, bytes, length);
        CPL_TRY(cpl_text_status(&tally->bytes));
        tally->at[tally->count++] = (cpl_tally_entry){start, length, 0};
        tally->table[place]       = tally->count;
    }
    *number = tally->table[place] - 1;
    return CPL_OK;
}
