/* measure.h - the reading behind a routing report: a record of all choices, and the answers
 * of the experts to some tokens.
 *
 * Room:  inspect/routing. */
#ifndef CPL_INSPECT_ROUTING_MEASURE_H
#define CPL_INSPECT_ROUTING_MEASURE_H

#include "infer/reader.h"
#include "inspect/routing/record.h"
#include "inspect/routing/response.h"

/* Whether the token at this place is among `sampled` of `all`, evenly spread; `sampled` <= `all`. */
bool cpl_routing_is_sampled(int64_t place, int64_t sampled, int64_t all);

/* Reads the texts and sets the record. agreement [L] (initialised) is filled from `sampled` tokens;
 * NULL: not asked for. On failure the record is empty. */
CPL_NODISCARD cpl_status cpl_routing_measure(cpl_routing_record *record,
                                             cpl_routing_agreement *agreement, int64_t sampled,
                                             cpl_reader *reader, const cpl_texts *texts);

/* Sets M [n,n], the clean coupling matrix |R_i W_g^j| of a loaded model's layer that has router
 * rows. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_routing_clean(float *M, cpl_reader *reader, int64_t layer);

#endif /* CPL_INSPECT_ROUTING_MEASURE_H */
