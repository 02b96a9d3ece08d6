/* The prefix tree: every sequence is the tokens on the way to its leaf, and no two children of a
 * node begin alike. Some trees are built by hand. */
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "check.h"
#include "infer/prefix_tree.h"

/* Asserts that ids [length] of sequence i are the tokens on the way to its leaf. */
static void assert_spelled(const cpl_prefix_tree *tree, const cpl_sequence *all, int64_t i)
{
    int64_t at = tree->leaf[i], end = all[i].length;
    assert_int_equal(tree->node[at].end, end);
    for (; at >= 0; at = tree->node[at].parent) {
        const cpl_node *node = &tree->node[at];
        assert_int_equal(node->end, end);
        assert_true(node->begin < node->end);
        assert_memory_equal(all[node->sequence].ids + node->begin, all[i].ids + node->begin,
                            (size_t)(node->end - node->begin) * sizeof(int32_t));
        end = node->begin;
        assert_true(node->parent < at);
    }
    assert_int_equal(end, 0);
}

static void check_tree(const cpl_sequence *all, int64_t n, int64_t nodes, int64_t tokens)
{
    cpl_prefix_tree tree;
    assert_ok(cpl_prefix_tree_make(&tree, all, n));
    int64_t sum = 0;
    for (int64_t i = 0; i < n; i++) assert_spelled(&tree, all, i);
    for (int64_t a = 0; a < tree.count; a++) {
        assert_int_equal(tree.node[a].before, sum);
        sum += tree.node[a].end - tree.node[a].begin;
        for (int64_t b = 0; b < a; b++)
            if (tree.node[a].parent == tree.node[b].parent)
                assert_true(all[tree.node[a].sequence].ids[tree.node[a].begin] !=
                            all[tree.node[b].sequence].ids[tree.node[b].begin]);
    }
    assert_int_equal(tree.tokens, sum);
    if (nodes >= 0) assert_int_equal(tree.count, nodes);
    if (tokens >= 0) assert_int_equal(tree.tokens, tokens);
    cpl_prefix_tree_free(&tree);
}

TEST(by_hand)
{
    const int32_t a[] = {1, 2, 3, 4}, b[] = {1, 2, 3}, c[] = {1, 2, 9, 4}, d[] = {7};
    const cpl_sequence one[]   = {{a, 4}};
    const cpl_sequence equal[] = {{b, 3}, {a, 3}};
    const cpl_sequence some[]  = {{d, 1}, {a, 4}, {c, 4}, {b, 3}, {a, 2}};
    check_tree(one, 1, 1, 4);
    check_tree(equal, 2, 1, 3);
    check_tree(some, 5, 5, 1 + 2 + 1 + 1 + 2); /* 7; 1 2; 3; 4; 9 4 */
}

/* Each sequence is a beginning of the next: the tree is as deep as there are sequences. */
TEST(a_staircase)
{
    enum { N = 500 };
    int32_t ids[N] = {0};
    cpl_sequence all[N];
    for (int64_t i = 0; i < N; i++) all[i] = (cpl_sequence){ids, N - i};
    check_tree(all, N, N, N);
}

TEST(random_sequences)
{
    enum { N = 60, LONGEST = 9 };
    static int32_t ids[N][LONGEST];
    cpl_sequence all[N];
    srand(5);
    for (int round = 0; round < 200; round++) {
        for (int i = 0; i < N; i++) {
            all[i] = (cpl_sequence){ids[i], 1 + rand() % LONGEST};
            for (int k = 0; k < LONGEST; k++) ids[i][k] = rand() % (1 + round % 4);
        }
        check_tree(all, 1 + rand() % N, -1, -1);
    }
}

TEST(sorted)
{
    const int32_t a[] = {5, 1}, b[] = {5}, c[] = {2, 9};
    const cpl_sequence all[] = {{a, 2}, {b, 1}, {c, 2}, {a, 1}};
    int64_t order[4];
    cpl_sequence_sort(order, all, 4);
    const int64_t want[] = {2, 1, 3, 0};
    assert_memory_equal(order, want, sizeof want);
    assert_int_equal(cpl_prefix_tree_common(all[0], all[1]), 1);
    assert_int_equal(cpl_prefix_tree_common(all[0], all[2]), 0);
}

TEST(no_memory)
{
    const int32_t a[]        = {5, 1};
    const cpl_sequence all[] = {{a, 2}};
    cpl_prefix_tree tree;
    for (int64_t at = 1; at <= 4; at++) {
        cpl_alloc_fail_at(at);
        assert_int_equal(cpl_prefix_tree_make(&tree, all, 1), CPL_ERR_MEMORY);
        cpl_alloc_fail_at(0);
        assert_null(tree.node);
    }
}
