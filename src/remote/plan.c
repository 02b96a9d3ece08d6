/* plan.c - see plan.h */
#include "remote/plan.h"

#include <string.h>

#include "base/arena.h"

/* Holds indices of the ranges that may still grow, the one that grew last first. */
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

/* Returns whether the piece is near enough to the range, which then covers both. */
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
    plan->ranges[plan->count++] = (cpl_remote_range){.source = source,
                                                     .begin  = begin,
                                                     .end    = end,
                                                     .wanted = end - begin,
                                                     .state  = CPL_REMOTE_WAITING};
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

cpl_status cpl_remote_plan_make(cpl_remote_plan *plan, const cpl_source_pieces *pieces,
                                uint64_t gap, uint64_t most)
{
    lanes l           = {.count = 0};
    cpl_status status = CPL_OK;
    cpl_remote_plan_free(plan);
    for (int64_t i = 0; i < pieces->count && status == CPL_OK; i++)
        status = add_piece(plan, &l, &pieces->at[i], gap, most);
    for (int64_t i = 0; i < plan->count; i++)
        plan->bytes += (double)(plan->ranges[i].end - plan->ranges[i].begin);
    if (status != CPL_OK) cpl_remote_plan_free(plan);
    return status;
}

void cpl_remote_plan_free(cpl_remote_plan *plan)
{
    for (int64_t i = 0; i < plan->count; i++) {
        cpl_free(plan->ranges[i].out);
        cpl_free(plan->ranges[i].sentence);
    }
    cpl_free(plan->ranges);
    *plan = (cpl_remote_plan){0};
}

/* Ranges may overlap, where a piece is read again later. An earlier range that begins after
 * `offset` ends the bytes for which the answer holds. */
cpl_remote_range *cpl_remote_plan_find(cpl_remote_plan *plan, uint64_t *until,
                                       const cpl_source *source, uint64_t offset, uint64_t end)
{
    while (plan->first < plan->count && plan->ranges[plan->first].state == CPL_REMOTE_SPENT)
        plan->first++;
    *until = end;
    for (int64_t i = plan->first; i < plan->count; i++) {
        cpl_remote_range *r = &plan->ranges[i];
        if (r->source != source || r->state == CPL_REMOTE_SPENT || r->end <= offset) continue;
        if (r->begin > offset) {
            if (r->begin < *until) *until = r->begin;
            continue;
        }
        if (r->end < *until) *until = r->end;
        return r;
    }
    return NULL;
}
