/* stop_ids.h - the ids that end what a model writes: the end-of-text id, and others that a model may have.
 *
 * Room:  infer. */
#ifndef CPL_INFER_STOP_IDS_H
#define CPL_INFER_STOP_IDS_H

#include <stdbool.h>
#include <stdint.h>

/* Borrowed; all zero: none. */
typedef struct cpl_stop_ids {
    const int64_t *at; /* (count) */
    int64_t count;
} cpl_stop_ids;

static inline bool cpl_stop_ids_hold(const cpl_stop_ids *ends, int64_t id)
{
    for (int64_t i = 0; i < ends->count; i++)
        if (ends->at[i] == id) return true;
    return false;
}

#endif /* CPL_INFER_STOP_IDS_H */
