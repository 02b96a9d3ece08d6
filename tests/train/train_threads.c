/* train_threads.c - a run over ranks as threads of this process: train_threads CONFIG.yaml RUN
 * RANKS. check_ranks.py compares its files with those of MPI processes. */
#include <stdio.h>
#include <stdlib.h>

#include "parallel/threads.h"
#include "settings/yaml.h"
#include "train/loop.h"

typedef struct rank {
    const char *config, *run;
    cpl_status status;
} rank;

static cpl_status train(const rank *r, cpl_group *world)
{
    static const cpl_train_callbacks none = {0};
    cpl_section sections[CPL_N_SECTIONS];
    cpl_settings settings;
    cpl_train_outcome outcome;
    cpl_settings_sections(sections);
    CPL_TRY(cpl_settings_init(&settings, sections, CPL_N_SECTIONS));
    const cpl_train_job job = {
        .settings = &settings, .run = r->run, .world = world, .callbacks = &none};
    cpl_status status = cpl_yaml_read(&settings, sections, CPL_N_SECTIONS, r->config, NULL);
    if (status == CPL_OK) status = cpl_train(&job, &outcome);
    cpl_settings_free(&settings, sections, CPL_N_SECTIONS);
    return status;
}

static void run_rank(void *context, cpl_group *world)
{
    rank *r   = context;
    r->status = train(r, world);
    if (r->status != CPL_OK) fprintf(stderr, "rank %d: %s\n", world->rank, cpl_last_error());
}

int main(int argc, char **argv)
{
    enum { MOST = 16 };
    rank r[MOST];
    const int size = argc == 4 ? atoi(argv[3]) : 0;
    int failed     = 0;
    if (size < 1 || size > MOST) return 2;
    for (int i = 0; i < size; i++) r[i] = (rank){.config = argv[1], .run = argv[2]};
    cpl_thread_ranks_run(size, run_rank, r, sizeof *r);
    for (int i = 0; i < size; i++) failed |= r[i].status != CPL_OK;
    return failed;
}
