/* prefix_tree.h - token sequences as a tree in which a common prefix is stored once.
 *
 * Room:   infer. Independent of models.
 * Names:  a *node* is a run of tokens. The sequence of a node is the concatenation of the runs on
 *         the path from a root to the node. */
#ifndef CPL_INFER_PREFIX_TREE_H
#define CPL_INFER_PREFIX_TREE_H

#include <stdint.h>

#include "base/status.h"

typedef struct cpl_sequence {
    const int32_t *ids; /* borrowed */
    int64_t length;     /* >= 1 */
} cpl_sequence;

typedef struct cpl_node {
    int64_t parent;   /* -1 for a root */
    int64_t sequence; /* a sequence that passes through the node */
    int64_t begin;    /* the node's tokens are begin ... end - 1 of the sequence */
    int64_t end;
    int64_t before; /* tokens of all previous nodes of the tree */
} cpl_node;

typedef struct cpl_prefix_tree {
    cpl_node *node; /* each node is followed by its descendants, in lexicographic order */
    int64_t count;
    int64_t *leaf;  /* [n] the node at the end of each sequence */
    int64_t tokens; /* tokens of all nodes */
} cpl_prefix_tree;

/* Returns the length of the common prefix of a and b. */
int64_t cpl_prefix_tree_common(cpl_sequence a, cpl_sequence b);

/* Sets order [n] to the indices of the sequences in lexicographic order, a prefix before its
 * extensions, equal sequences by index. */
void cpl_sequence_sort(int64_t *order, const cpl_sequence *sequences, int64_t n);

/* Makes the tree of n >= 1 sequences. Returns CPL_ERR_MEMORY if memory is not available. */
CPL_NODISCARD cpl_status cpl_prefix_tree_make(cpl_prefix_tree *tree, const cpl_sequence *sequences,
                                              int64_t n);
void cpl_prefix_tree_free(cpl_prefix_tree *tree); /* does nothing if all zero */

#endif /* CPL_INFER_PREFIX_TREE_H */
