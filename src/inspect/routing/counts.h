/* counts.h - counts of a record: how experts are loaded, which go together, and how far
 * domains use different ones.
 *
 * Room:  inspect/routing. All of one layer. A *share* of experts is that of their assignments, T K in all. */
#ifndef CPL_INSPECT_ROUTING_COUNTS_H
#define CPL_INSPECT_ROUTING_COUNTS_H

#include "inspect/routing/record.h"

typedef struct cpl_routing_load {
    double most_over_mean;
    double entropy; /* of the shares, nats; at most ln n */
    int64_t dead;   /* experts without a token */
} cpl_routing_load;

/* Sets assignments [n] and the figures. */
void cpl_routing_count_load(cpl_routing_load *load, int64_t *assignments,
                            const cpl_routing_record *record, int64_t layer);

/* Sets together [n,n]: tokens that go to both experts; on the diagonal those of the expert. */
void cpl_routing_count_together(int64_t *together, const cpl_routing_record *record, int64_t layer);

typedef struct cpl_routing_pair {
    int64_t i, j;    /* i < j */
    int64_t tokens;  /* that go to both */
    double expected; /* the same if experts were drawn independently */
} cpl_routing_pair;

/* What independence would give for a pair of experts is this factor times the product of their
 * tokens: it makes the sum over all pairs the T K (K-1) / 2 that there are (a token cannot go to one
 * expert twice). 0 where there are no pairs. */
double cpl_routing_factor(const int64_t *together, int64_t n);

/* Sets the `most` most frequent pairs at most, and returns how many; pairs without a token are
 * none. Equal ones by lower i, then j. */
int cpl_routing_frequent(cpl_routing_pair *pairs, int most, const int64_t *together, int64_t n);

typedef struct cpl_routing_domains {
    double distance; /* mean over pairs of domains of the Jensen-Shannon distance (base 2, the root)
                        between their shares of experts: 0 the same, 1 no expert in common; NaN where
                        fewer than two domains have tokens */
    double halves; /* mean over domains of the same between two halves of the domain's tokens drawn
                        at random: what counting alone makes; NaN where none can be halved */
} cpl_routing_domains;

/* Sets by_source [sources,n], assignments, and the figures. A token's half is a random number of
 * (seed, CPL_STREAM_HALVES, layer 0, its place), the same in every layer. */
CPL_NODISCARD cpl_status cpl_routing_count_domains(cpl_routing_domains *domains, int64_t *by_source,
                                                   const cpl_routing_record *record, int64_t layer,
                                                   const cpl_routing_tokens *tokens, uint64_t seed);

/* The distance between two lists of counts; NaN where one is all zero. */
double cpl_routing_distance(const int64_t *a, const int64_t *b, int64_t n);

#endif /* CPL_INSPECT_ROUTING_COUNTS_H */
