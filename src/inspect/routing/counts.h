/* counts.h - counts of a record: the load of experts, pairs of experts, and differences between
 * domains.
 *
 * Room:  inspect/routing. All counts are of one layer. A *share* of an expert is its part of the
 *        assignments, T K in all. */
#ifndef CPL_INSPECT_ROUTING_COUNTS_H
#define CPL_INSPECT_ROUTING_COUNTS_H

#include "inspect/routing/record.h"

typedef struct cpl_routing_load {
    double most_over_mean;
    double entropy; /* entropy of the shares in nats, at most ln n */
    int64_t dead;   /* experts without a token */
} cpl_routing_load;

/* Sets assignments [n] and the figures of the load. */
void cpl_routing_count_load(cpl_routing_load *load, int64_t *assignments,
                            const cpl_routing_record *record, int64_t layer);

/* Sets together [n,n]. together[i,j] is the number of tokens that go to both experts i and j, and
 * together[i,i] is the number of tokens that go to expert i. */
void cpl_routing_count_together(int64_t *together, const cpl_routing_record *record, int64_t layer);

typedef struct cpl_routing_pair {
    int64_t i, j;    /* i < j */
    int64_t tokens;  /* tokens that go to both experts */
    double expected; /* this number if experts were drawn independently */
} cpl_routing_pair;

/* Returns a factor. Under independence the expected count of a pair of experts is this factor times
 * the product of their tokens. The factor makes the sum over all pairs equal to the true T K (K-1)
 * / 2, since a token cannot go to one expert twice. Returns 0 without pairs. */
double cpl_routing_factor(const int64_t *together, int64_t n);

/* Sets at most `most` pairs, the most frequent ones, and returns their number. Pairs without a
 * token are left out. Equally frequent pairs are in the order of i, then j. */
int cpl_routing_frequent(cpl_routing_pair *pairs, int most, const int64_t *together, int64_t n);

/* Sets by_source [sources,n] to the number of assignments to each expert in each domain. Returns
 * the mean over pairs of domains of the Jensen-Shannon distance (base 2, the root) between their
 * shares of experts. The distance is 0 for equal shares, and 1 without a common expert. Returns NaN
 * if fewer than two domains have tokens. */
double cpl_routing_count_domains(int64_t *by_source, const cpl_routing_record *record,
                                 int64_t layer, const cpl_routing_tokens *tokens);

/* Returns the distance between two lists of counts, or NaN if a list is all zero. */
double cpl_routing_distance(const int64_t *a, const int64_t *b, int64_t n);

/* ---- experts of single ids (OLMoE's vocabulary specialisation) ----
 *
 * The share of an id x and an expert e is N_xe / N_x: the part of the occurrences of x that have e
 * among their K experts. */

enum { CPL_ROUTING_SEEN = 8 };

/* Lists the places of a text by id: groups of ids that occur CPL_ROUTING_SEEN times or more. */
typedef struct cpl_routing_index {
    int64_t n_ids;
    int64_t *first; /* (n_ids + 1) start of each group in `order`, by rising id */
    int64_t *order; /* (first[n_ids]) places */
    int64_t *mixed; /* these places in random order */
} cpl_routing_index;

/* Groups the places 0 to count - 1 by their ids. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_routing_index_init(cpl_routing_index *index, cpl_pool *pool,
                                                const int32_t *ids, int64_t count, uint64_t seed);

/* Holds figures of the ids. `mean` is the mean over ids of the largest share of an expert, NaN
 * without ids. `shuffled` is this mean with ids dealt to the places at random, which shows the
 * effect of few occurrences and uneven load. */
typedef struct cpl_routing_vocabulary {
    int64_t n_ids; /* ids that count */
    double mean, shuffled;
} cpl_routing_vocabulary;

/* Sets the figures of one layer. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_routing_vocabulary_of(cpl_routing_vocabulary *out,
                                                   const cpl_routing_record *record, int64_t layer,
                                                   const cpl_routing_index *index);

#endif /* CPL_INSPECT_ROUTING_COUNTS_H */
