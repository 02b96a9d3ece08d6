/* mesh.c - see mesh.h */
#include "parallel/mesh.h"

#include <string.h>

cpl_mesh cpl_mesh_self(int64_t n_experts)
{
    return (cpl_mesh){.world    = cpl_group_self(),
                      .experts  = cpl_group_self(),
                      .replicas = cpl_group_self(),
                      .n_local  = n_experts};
}

cpl_status cpl_mesh_check(int64_t ranks, int64_t expert_parallel, int64_t n_experts)
{
    if (ranks % expert_parallel == 0 && n_experts % expert_parallel == 0) return CPL_OK;
    return CPL_FAIL(CPL_ERR_INPUT,
                    "dist.expert_parallel is %lld; it must divide the number of ranks, %lld, and "
                    "model.num_experts, %lld",
                    (long long)expert_parallel, (long long)ranks, (long long)n_experts);
}

cpl_status cpl_mesh_init(cpl_mesh *mesh, cpl_group *world, int64_t expert_parallel,
                         int64_t n_experts)
{
    const int e       = (int)expert_parallel;
    cpl_status status = CPL_OK;
    memset(mesh, 0, sizeof *mesh);
    mesh->world = *world;
    CPL_TRY_DONE(cpl_mesh_check(world->size, expert_parallel, n_experts));
    status = cpl_group_split(&mesh->experts, &mesh->world, world->rank / e);
    CPL_TRY_DONE(cpl_group_agree(&mesh->world, status)); /* all ranks split again, or no rank */
    CPL_TRY_DONE(cpl_group_split(&mesh->replicas, &mesh->world, world->rank % e));
    mesh->n_local      = n_experts / e;
    mesh->first_expert = mesh->experts.rank * mesh->n_local;
done:
    if (status != CPL_OK) cpl_mesh_close(mesh);
    return status;
}

void cpl_mesh_close(cpl_mesh *mesh)
{
    cpl_group_close(&mesh->replicas);
    cpl_group_close(&mesh->experts);
    memset(mesh, 0, sizeof *mesh);
}
