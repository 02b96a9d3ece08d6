/* mesh.h - data x expert parallelism: the experts and the sequences of each rank.
 *
 * Room:  parallel.
 * Names: R ranks in all, E of them along the expert axis, R / E along the data axis. Rank r has
 *        index r mod E along the expert axis and r / E along the data axis, so that ranks that
 *        exchange tokens are neighbours, on one machine if it has enough ranks.
 *
 *            experts   the E ranks that together hold all experts, n / E each, and exchange tokens.
 *                      Every rank reads different sequences.
 *            replicas  the R / E ranks that hold the same experts.
 *            world     all ranks. Parameters other than the experts are equal on all ranks. */
#ifndef CPL_PARALLEL_MESH_H
#define CPL_PARALLEL_MESH_H

#include "parallel/group.h"

typedef struct cpl_mesh {
    cpl_group world; /* a copy, not owned */
    cpl_group experts, replicas;
    int64_t first_expert, n_local; /* this rank holds these n_local experts of every layer */
} cpl_mesh;

/* Returns the mesh of one process, which holds all n experts. */
cpl_mesh cpl_mesh_self(int64_t n_experts);

/* Returns CPL_ERR_INPUT, with all three numbers, if expert_parallel does not divide both the number
 * of ranks and n. */
CPL_NODISCARD cpl_status cpl_mesh_check(int64_t ranks, int64_t expert_parallel, int64_t n_experts);

/* Sets the mesh of this rank. `world` must outlive it. Collective. Returns CPL_ERR_INPUT like
 * cpl_mesh_check, or an error of cpl_group_split. */
CPL_NODISCARD cpl_status cpl_mesh_init(cpl_mesh *mesh, cpl_group *world, int64_t expert_parallel,
                                       int64_t n_experts);
/* Closes `experts` and `replicas`, not `world`. */
void cpl_mesh_close(cpl_mesh *mesh);

#endif /* CPL_PARALLEL_MESH_H */
