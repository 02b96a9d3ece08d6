/* plan.c - see plan.h */
#include "remote/plan.h"

#include <stdlib.h>
#include <string.h>

#include "base/arena.h"

/* The ranges that may still grow: indices, the one that grew last first. */
typedef struct lanes {
    int64_t at[CPL_REMOTE_LANES];
    int count;
} lanes;

static void move_to_front(lanes *l, int from)
{
    const int64_t index = l->at[from];
    memmove(l->at + 1, l->at, (size_t)from * sizeof *l->at);
    l->at[0] = index;
}

static void open_lane(lanes *l, int64_t index)
{
    if (l->count < CPL_REMOTE_LANES) l->count++;
    l->at[l->count - 1] = index;
    move_to_front(l, l->count - 1);
}

/* Whether the piece is near enough to the range; the range then covers both. */
static bool grow(cpl_remote_range *r, const cpl_source_piece *piece, uint64_t gap, uint64_t most)
{
    const uint64_t end   = piece->offset + piece->bytes;
    const uint64_t first = piece->offset < r->begin ? piece->offset : r->begin;
    const uint64_t last  = end > r->end ? end : r->end;
    if (r->source != piece->source || last - first > most) return false;
    if (piece->offset > r->end && piece->offset - r->end > gap) return false;
    if (end < r->begin && r->begin - end > gap) return false;
    r->begin = first;
    r->end   = last;
    r->wanted += piece->bytes;
    return true;
}

static cpl_status add_range(cpl_remote_plan *plan, const cpl_source *source, uint64_t begin,
                            uint64_t end)
{
    if (plan->count == plan->room) {
        int64_t room             = plan->room ? 2 * plan->room : 256;
        cpl_remote_range *ranges = cpl_realloc(plan->ranges, (size_t)room * sizeof *ranges);
        if (!ranges) return CPL_ERR_MEMORY;
        plan->ranges = ranges;
        plan->room   = room;
    }
    plan->ranges[plan->count++] =
        (cpl_remote_range){.source = source, .begin = begin, .end = end, .wanted = end - begin};
    return CPL_OK;
}

static cpl_status add_piece(cpl_remote_plan *plan, lanes *l, const cpl_source_piece *piece,
                            uint64_t gap, uint64_t most)
{
    for (int i = 0; i < l->count; i++)
        if (grow(&plan->ranges[l->at[i]], piece, gap, most)) {
            move_to_front(l, i);
            return CPL_OK;
        }
    const uint64_t parts = (piece->bytes + most - 1) / most;
    const uint64_t each  = (piece->bytes + parts - 1) / parts;
    const uint64_t end   = piece->offset + piece->bytes;
    for (uint64_t at = piece->offset; at < end; at += each) {
        CPL_TRY(add_range(plan, piece->source, at, end - at < each ? end : at + each));
        if (parts == 1) open_lane(l, plan->count - 1);
    }
    return CPL_OK;
}

static int by_place(const void *a, const void *b, void *ranges)
{
    const int64_t i = *(const int64_t *)a, j = *(const int64_t *)b;
    const cpl_remote_range *x = (cpl_remote_range *)ranges + i, *y = (cpl_remote_range *)ranges + j;
    if (x->source != y->source) return (uintptr_t)x->source < (uintptr_t)y->source ? -1 : 1;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (i > j) - (i < j);
}

static cpl_status order(cpl_remote_plan *plan)
{
    plan->by_place = cpl_alloc((size_t)plan->count * sizeof *plan->by_place);
    if (!plan->by_place) return CPL_ERR_MEMORY;
    for (int64_t i = 0; i < plan->count; i++) {
        const cpl_remote_range *r = &plan->ranges[i];
        const uint64_t bytes      = r->end - r->begin;
        plan->by_place[i]         = i;
        plan->bytes += (double)bytes;
        if (bytes > plan->longest) plan->longest = bytes;
    }
    if (plan->count)
        qsort_r(plan->by_place, (size_t)plan->count, sizeof *plan->by_place, by_place,
                plan->ranges);
    return CPL_OK;
}

cpl_status cpl_remote_plan_make(cpl_remote_plan *plan, const cpl_source_pieces *pieces,
                                uint64_t gap, uint64_t most)
{
    lanes l           = {.count = 0};
    cpl_status status = CPL_OK;
    cpl_remote_plan_free(plan);
    for (int64_t i = 0; i < pieces->count && status == CPL_OK; i++)
        status = add_piece(plan, &l, &pieces->at[i], gap, most);
    if (status == CPL_OK) status = order(plan);
    if (status != CPL_OK) cpl_remote_plan_free(plan);
    return status;
}

void cpl_remote_plan_free(cpl_remote_plan *plan)
{
    cpl_free(plan->ranges);
    cpl_free(plan->by_place);
    *plan = (cpl_remote_plan){0};
}

/* The number of ranges, in the order of places, that begin at or before the byte. */
static int64_t rank_of(const cpl_remote_plan *plan, const cpl_source *source, uint64_t offset)
{
    int64_t lo = 0, hi = plan->count;
    while (lo < hi) {
        const int64_t middle      = lo + (hi - lo) / 2;
        const cpl_remote_range *r = &plan->ranges[plan->by_place[middle]];
        const bool before =
            r->source != source ? (uintptr_t)r->source < (uintptr_t)source : r->begin <= offset;
        if (before)
            lo = middle + 1;
        else
            hi = middle;
    }
    return lo;
}

/* Ranges may overlap: one is needed again later. The earliest in the plan that is left is taken. */
cpl_remote_range *cpl_remote_plan_find(const cpl_remote_plan *plan, uint64_t *until,
                                       const cpl_source *source, uint64_t offset, uint64_t end)
{
    const int64_t rank    = rank_of(plan, source, offset);
    cpl_remote_range *hit = NULL;
    for (int64_t i = rank - 1; i >= 0; i--) {
        cpl_remote_range *r = &plan->ranges[plan->by_place[i]];
        if (r->source != source || r->begin + plan->longest <= offset) break;
        if (r->end > offset && r->state != CPL_REMOTE_SPENT && (!hit || r < hit)) hit = r;
    }
    *until = hit && hit->end < end ? hit->end : end;
    for (int64_t i = rank; i < plan->count; i++) { /* where an earlier one begins */
        const cpl_remote_range *r = &plan->ranges[plan->by_place[i]];
        if (r->source != source || r->begin >= *until) break;
        if (r->state == CPL_REMOTE_SPENT || (hit && r > hit)) continue;
        *until = r->begin;
        break;
    }
    return hit;
}
