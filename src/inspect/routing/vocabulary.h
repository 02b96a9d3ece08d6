/* vocabulary.h - whether single ids have experts of their own (OLMoE's vocabulary
 * specialisation).
 *
 * Room:    inspect/routing. The share of an id x and an expert e is N_xe / N_x: how many of the occurrences of
 *          x have e among their K experts. */
#ifndef CPL_INSPECT_ROUTING_VOCABULARY_H
#define CPL_INSPECT_ROUTING_VOCABULARY_H

#include "inspect/routing/record.h"

enum { CPL_ROUTING_EXAMPLES = 5, CPL_ROUTING_SEEN = 8 };

/* The places of a text by id: groups of ids that occur CPL_ROUTING_SEEN times or more. */
typedef struct cpl_routing_index {
    int64_t n_ids;
    int32_t *id;    /* (n_ids) rising */
    int64_t *first; /* (n_ids + 1) of the group in order */
    int64_t *order; /* (first[n_ids]) places */
    int64_t *mixed; /* the same places in an order drawn at random */
} cpl_routing_index;

/* ids (count). CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_routing_index_init(cpl_routing_index *index, cpl_pool *pool,
                                                const int32_t *ids, int64_t count, uint64_t seed);

typedef struct cpl_routing_example {
    int32_t id, expert;
    double share;
    int64_t count;    /* occurrences of the id */
    const char *text; /* what the id stands for, well-formed; NULL: not decoded */
} cpl_routing_example;

typedef struct cpl_routing_vocabulary {
    int64_t n_ids;   /* that count */
    double mean;     /* over them of the largest share of an expert; NaN where there are none */
    double shuffled; /* the same when the ids are dealt to the places at random: what few
                        occurrences and uneven load make */
    cpl_routing_example example[CPL_ROUTING_EXAMPLES]; /* largest share, then most occurrences */
    int n_examples;
} cpl_routing_vocabulary;

/* Of one layer. Of experts with equal shares the lower one. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_routing_vocabulary_of(cpl_routing_vocabulary *out,
                                                   const cpl_routing_record *record, int64_t layer,
                                                   const cpl_routing_index *index);

#endif /* CPL_INSPECT_ROUTING_VOCABULARY_H */
