/* pairs.c - the pairs of neighbouring tokens, see bpe.h.
 *
 * The heap is not updated when counts change: a candidate with an outdated count is put back with
 * the current count. Counts only fall between two offers, so the first candidate with a current
 * count is the best. */
#include "tokenizer/bpe.h"

#include <string.h>

#include "base/arena.h"

void cpl_pairs_free(cpl_pairs *pairs)
{
    cpl_tally_free(&pairs->tally);
    cpl_free(pairs->state);
    cpl_free(pairs->words);
    cpl_free(pairs->grown);
    cpl_free(pairs->heap);
    memset(pairs, 0, sizeof *pairs);
}

static cpl_status number_pair(cpl_pairs *pairs, cpl_pair pair, uint32_t *number)
{
    size_t known = pairs->tally.count;
    CPL_TRY(cpl_tally_grow(&pairs->state, &pairs->state_capacity, known, sizeof *pairs->state));
    CPL_TRY(cpl_tally_number(&pairs->tally, &pair, sizeof pair, number));
    if (*number == known) pairs->state[known] = (cpl_pair_state){.first = CPL_NO_PAIR};
    return CPL_OK;
}

static cpl_status note_word(cpl_pairs *pairs, uint32_t number, uint32_t word)
{
    uint32_t head = pairs->state[number].first;
    if (head != CPL_NO_PAIR && pairs->words[head].word == word) return CPL_OK;
    if (pairs->word_count >= CPL_NO_PAIR)
        return CPL_FAIL(CPL_ERR_INPUT, "the text has too many different words to train on");
    CPL_TRY(cpl_tally_grow(&pairs->words, &pairs->word_capacity, pairs->word_count,
                           sizeof *pairs->words));
    pairs->words[pairs->word_count] = (cpl_pair_word){word, head};
    pairs->state[number].first      = (uint32_t)pairs->word_count++;
    return CPL_OK;
}

static cpl_status note_growth(cpl_pairs *pairs, uint32_t number)
{
    if (pairs->state[number].waiting) return CPL_OK;
    CPL_TRY(cpl_tally_grow(&pairs->grown, &pairs->grown_capacity, pairs->grown_count,
                           sizeof *pairs->grown));
    pairs->grown[pairs->grown_count++] = number;
    pairs->state[number].waiting       = true;
    return CPL_OK;
}

cpl_status cpl_pairs_add(cpl_pairs *pairs, cpl_pair pair, int64_t count, uint32_t word)
{
    uint32_t number;
    CPL_TRY(number_pair(pairs, pair, &number));
    pairs->tally.at[number].count += count;
    if (count <= 0) return CPL_OK;
    CPL_TRY(note_word(pairs, number, word));
    return note_growth(pairs, number);
}

static bool is_better(const cpl_pair_candidate *a, const cpl_pair_candidate *b)
{
    if (a->count != b->count) return a->count > b->count;
    if (a->pair.left != b->pair.left) return a->pair.left < b->pair.left;
    return a->pair.right < b->pair.right;
}

static cpl_status push(cpl_pairs *pairs, cpl_pair_candidate candidate)
{
    CPL_TRY(cpl_tally_grow(&pairs->heap, &pairs->heap_capacity, pairs->heap_count,
                           sizeof *pairs->heap));
    cpl_pair_candidate *list = pairs->heap;
    size_t at                = pairs->heap_count++;
    for (; at > 0 && is_better(&candidate, list + (at - 1) / 2); at = (at - 1) / 2)
        list[at] = list[(at - 1) / 2];
    list[at] = candidate;
    return CPL_OK;
}

/* Replaces the top of the heap by a candidate and restores the order. */
static void replace_top(cpl_pairs *pairs, cpl_pair_candidate candidate)
{
    cpl_pair_candidate *list = pairs->heap;
    size_t at                = 0;
    for (size_t child; (child = 2 * at + 1) < pairs->heap_count; at = child) {
        if (child + 1 < pairs->heap_count && is_better(list + child + 1, list + child)) child++;
        if (!is_better(list + child, &candidate)) break;
        list[at] = list[child];
    }
    list[at] = candidate;
}

static void remove_top(cpl_pairs *pairs)
{
    cpl_pair_candidate last = pairs->heap[--pairs->heap_count];
    if (pairs->heap_count) replace_top(pairs, last);
}

cpl_status cpl_pairs_offer(cpl_pairs *pairs)
{
    for (size_t i = 0; i < pairs->grown_count; i++) {
        cpl_pair_candidate candidate           = {.number = pairs->grown[i]};
        const cpl_tally_entry *entry           = pairs->tally.at + candidate.number;
        pairs->state[candidate.number].waiting = false;
        candidate.count                        = entry->count;
        memcpy(&candidate.pair, pairs->tally.bytes.bytes + entry->start, sizeof candidate.pair);
        if (candidate.count > 0) CPL_TRY(push(pairs, candidate));
    }
    pairs->grown_count = 0;
    return CPL_OK;
}

uint32_t cpl_pairs_take(cpl_pairs *pairs, int64_t least, cpl_pair *pair)
{
    while (pairs->heap_count) {
        cpl_pair_candidate top = pairs->heap[0];
        int64_t count          = pairs->tally.at[top.number].count;
        if (top.count < least) break;
        if (count == top.count) {
            remove_top(pairs);
            *pair = top.pair;
            return top.number;
        }
        top.count = count;
        if (count > 0)
            replace_top(pairs, top);
        else
            remove_top(pairs);
    }
    return CPL_NO_PAIR;
}
