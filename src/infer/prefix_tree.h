/* prefix_tree.h - token sequences as a tree in which a common prefix is stored once.
 *
 * Room:   infer. Independent of models.
 * Names:  a *node* is a run of tokens; the sequence that a node ends is the concatenation of the
 *         runs on the path from a root to it. */
#ifndef CPL_INFER_PREFIX_TREE_H
#define CPL_INFER_PREFIX_TREE_H

#include <stdint.h>

#include "base/status.h"

typedef struct cpl_sequence {
    const int32_t *ids; /* borrowed */
    int64_t length;     /* >= 1 */
} cpl_sequence;

typedef struct cpl_node {
    int64_t parent;   /* -1: a root */
    int64_t sequence; /* one of those that pass through it */
    int64_t begin;    /* its tokens are those of the sequence, begin ... end - 1 */
    int64_t end;
    int64_t before; /* tokens of the nodes before it in the tree */
} cpl_node;

typedef struct cpl_prefix_tree {
    cpl_node *node; /* a parent, then all below it; in lexicographic order */
    int64_t count;
    int64_t *leaf;  /* [n] the node whose end is the end of that sequence */
    int64_t tokens; /* of all nodes */
} cpl_prefix_tree;

/* Tokens that a and b have in common at their beginnings. */
int64_t cpl_prefix_tree_common(cpl_sequence a, cpl_sequence b);

/* Sets order [n] to the numbers of the sequences in lexicographic order, a prefix before its
 * extensions; equal ones in the order of their numbers. */
void cpl_sequence_sort(int64_t *order, const cpl_sequence *sequences, int64_t n);

/* The tree of n >= 1 sequences. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_prefix_tree_make(cpl_prefix_tree *tree, const cpl_sequence *sequences,
                                              int64_t n);
void cpl_prefix_tree_free(cpl_prefix_tree *tree); /* all zero: nothing to do */

#endif /* CPL_INFER_PREFIX_TREE_H */
