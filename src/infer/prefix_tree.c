/* prefix_tree.c - see prefix_tree.h */
#include "infer/prefix_tree.h"

#include <stdlib.h>
#include <string.h>

#include "base/arena.h"

int64_t cpl_prefix_tree_common(cpl_sequence a, cpl_sequence b)
{
    const int64_t most = a.length < b.length ? a.length : b.length;
    int64_t i          = 0;
    while (i < most && a.ids[i] == b.ids[i]) i++;
    return i;
}

/* ---- order ---- */

static int compare_sequences(const void *left, const void *right, void *all)
{
    const cpl_sequence *sequences = all;
    const int64_t i = *(const int64_t *)left, j = *(const int64_t *)right;
    const cpl_sequence a = sequences[i], b = sequences[j];
    const int64_t common = cpl_prefix_tree_common(a, b);
    if (common < a.length && common < b.length) return a.ids[common] < b.ids[common] ? -1 : 1;
    if (a.length != b.length) return a.length < b.length ? -1 : 1;
    return i < j ? -1 : i > j;
}

void cpl_sequence_sort(int64_t *order, const cpl_sequence *sequences, int64_t n)
{
    for (int64_t i = 0; i < n; i++) order[i] = i;
    qsort_r(order, (size_t)n, sizeof *order, compare_sequences, (void *)(uintptr_t)sequences);
}

/* ---- tree ---- */

/* Sequences order[first ... last - 1], equal up to `begin`, to be added below `parent`. */
typedef struct branch {
    int64_t first, last, begin, parent;
} branch;

/* Pending branches, last in first out, so that all descendants of a node directly follow it. */
typedef struct builder {
    const cpl_sequence *sequences;
    int64_t *order;
    branch *waiting; /* [2n] is enough, since every branch but the first has a sibling or a leaf
                        above it */
    int64_t count;
    cpl_prefix_tree *tree;
} builder;

/* Adds a branch for each of the different tokens at `begin` in order[first ... last - 1]. */
static void push_branches(builder *b, int64_t first, int64_t last, int64_t begin, int64_t parent)
{
    const cpl_sequence *s = b->sequences;
    while (last > first) {
        const int64_t end   = last;
        const int32_t token = s[b->order[last - 1]].ids[begin];
        while (last > first && s[b->order[last - 1]].ids[begin] == token) last--;
        b->waiting[b->count++] = (branch){last, end, begin, parent};
    }
}

/* Adds the node of a branch, the leaves at its end, and branches for the sequences that
 * continue. */
static void grow(builder *b, branch at)
{
    cpl_prefix_tree *tree = b->tree;
    const cpl_sequence *s = b->sequences;
    const int64_t *order  = b->order;
    const int64_t end     = cpl_prefix_tree_common(s[order[at.first]], s[order[at.last - 1]]);
    const int64_t own     = tree->count++;
    tree->node[own]       = (cpl_node){.parent   = at.parent,
                                       .sequence = order[at.first],
                                       .begin    = at.begin,
                                       .end      = end,
                                       .before   = tree->tokens};
    tree->tokens += end - at.begin;
    int64_t i = at.first;
    for (; i < at.last && s[order[i]].length == end; i++) tree->leaf[order[i]] = own;
    push_branches(b, i, at.last, end, own);
}

cpl_status cpl_prefix_tree_make(cpl_prefix_tree *tree, const cpl_sequence *sequences, int64_t n)
{
    CPL_ASSERT(n >= 1);
    builder b = {.sequences = sequences, .tree = tree};
    memset(tree, 0, sizeof *tree);
    b.order           = cpl_alloc((size_t)n * sizeof *b.order);
    b.waiting         = b.order ? cpl_alloc(2 * (size_t)n * sizeof *b.waiting) : NULL;
    tree->node        = b.waiting ? cpl_alloc(2 * (size_t)n * sizeof *tree->node) : NULL;
    tree->leaf        = tree->node ? cpl_alloc((size_t)n * sizeof *tree->leaf) : NULL;
    cpl_status status = tree->leaf ? CPL_OK : CPL_ERR_MEMORY;
    if (status == CPL_OK) {
        cpl_sequence_sort(b.order, sequences, n);
        push_branches(&b, 0, n, 0, -1);
        while (b.count > 0) grow(&b, b.waiting[--b.count]);
    } else {
        cpl_prefix_tree_free(tree);
    }
    cpl_free(b.waiting);
    cpl_free(b.order);
    return status;
}

void cpl_prefix_tree_free(cpl_prefix_tree *tree)
{
    cpl_free(tree->node);
    cpl_free(tree->leaf);
    memset(tree, 0, sizeof *tree);
}
