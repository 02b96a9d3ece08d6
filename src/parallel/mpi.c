/* mpi.c - see mpi.h */
#include "parallel/mpi.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/paths.h"

/* A launcher, recognised by the environment variables of its processes. */
typedef struct launcher {
    const char *size, *rank; /* variables */
    const char *name;        /* name for error messages */
    const char *module;      /* the MPI module that it needs; NULL if any module works */
} launcher;

static const launcher launchers[] = {
    {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "mpirun of Open MPI", "openmpi"},
    {"PMI_SIZE", "PMI_RANK", "mpirun of MPICH", "mpich"},
    {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "srun", NULL},
};

static const char *const modules[] = {"openmpi", "mpich"};

static const cpl_mpi_module *loaded;
static int local_ranks = 1;

static int number_of(const char *variable, int other)
{
    const char *text = getenv(variable);
    char *end        = NULL;
    const long value = text ? strtol(text, &end, 10) : 0;
    return text && end != text && value >= 0 && value <= INT_MAX ? (int)value : other;
}

static const launcher *launcher_of(void)
{
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++)
        if (number_of(launchers[i].size, 1) > 1) return &launchers[i];
    return NULL;
}

int cpl_mpi_launched(void)
{
    const launcher *by = launcher_of();
    return by ? number_of(by->size, 1) : 1;
}

int cpl_mpi_launched_rank(void)
{
    const launcher *by = launcher_of();
    return by ? number_of(by->rank, 0) : 0;
}

int cpl_mpi_local_ranks(void)
{
    return local_ranks;
}

bool cpl_mpi_is_mpirun(void)
{
    const launcher *by = launcher_of();
    return by && by->module;
}

static int parent_of(int process)
{
    char path[32];
    int parent = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", process);
    FILE *file = fopen(path, "re");
    if (file && fscanf(file, "%*d (%*[^)]) %*c %d", &parent) != 1) parent = 0;
    if (file) fclose(file);
    return parent;
}

/* Returns the parent, or with MPICH the parent's parent: a process stands between MPICH's mpirun
 * and the ranks. */
int cpl_mpi_launcher_process(void)
{
    if (!cpl_mpi_is_mpirun()) return 0;
    return strcmp(launcher_of()->module, "mpich") == 0 ? parent_of(getppid()) : getppid();
}

/* Sends an abort by version 1 of MPICH's process management interface (PMI). */
void cpl_mpi_abandon(int exit_code)
{
    const launcher *by = launcher_of();
    const int to       = number_of("PMI_FD", -1);
    if (by && by->module && strcmp(by->module, "mpich") == 0 && to >= 0)
        dprintf(to, "cmd=init pmi_version=1 pmi_subversion=1\ncmd=abort exitcode=%d\n", exit_code);
}

/* ---- the module ---- */

/* Finds the file of module `name`, which may be a path. Returns false if it does not exist. */
static bool find(char path[CPL_MODULE_PATH], const char *name)
{
    char file[NAME_MAX];
    if (strchr(name, '/')) {
        snprintf(path, CPL_MODULE_PATH, "%s", name);
        return access(path, R_OK) == 0;
    }
    snprintf(file, sizeof file, "couplet-mpi-%s.so", name);
    return cpl_module_find(path, file);
}

/* Chooses the module: the user's choice, otherwise the launcher's own, otherwise any module. */
static cpl_status choose_module(char path[CPL_MODULE_PATH], const launcher *by)
{
    const char *given = getenv("COUPLET_MPI");
    const char *name  = given && *given ? given : by->module;
    if (name) {
        if (find(path, name)) return CPL_OK;
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s has started %d processes, but there is no file %s: this program was "
                        "built without that MPI library; install it and build again, or start one "
                        "process",
                        by->name, cpl_mpi_launched(), path);
    }
    for (size_t i = 0; i < sizeof modules / sizeof *modules; i++)
        if (find(path, modules[i])) return CPL_OK;
    return CPL_FAIL(CPL_ERR_INPUT,
                    "%s has started %d processes, but this program was built without MPI: install "
                    "Open MPI or MPICH and build again, or start one process",
                    by->name, cpl_mpi_launched());
}

static cpl_status load(const char *path)
{
    /* RTLD_GLOBAL lets plugins that MPI libraries load find their symbols. */
    void *file = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (!file) return CPL_FAIL(CPL_ERR_INPUT, "%s cannot be loaded: %s", path, dlerror());
    loaded = dlsym(file, "cpl_mpi_module_entry");
    if (loaded && loaded->version == CPL_MPI_MODULE_VERSION) return CPL_OK;
    loaded = NULL;
    dlclose(file);
    return CPL_FAIL(CPL_ERR_INPUT, "%s is not the MPI module of this version of the program", path);
}

cpl_status cpl_mpi_start(cpl_transport *world)
{
    char path[CPL_MODULE_PATH];
    const launcher *by = launcher_of();
    CPL_ASSERT(by);
    CPL_TRY(choose_module(path, by));
    CPL_TRY(load(path));
    const char *failure = loaded->start(world, &local_ranks);
    if (failure) return CPL_FAIL(CPL_ERR_DEVICE, "%s", failure);
    if (world->size == cpl_mpi_launched()) return CPL_OK;
    return CPL_FAIL(CPL_ERR_INPUT,
                    "%s has started %d processes, but %s, which %s was built with, sees %d: the "
                    "launcher belongs to another MPI library; use its own mpirun, or set "
                    "COUPLET_MPI to openmpi or mpich",
                    by->name, cpl_mpi_launched(), loaded->library, path, world->size);
}

void cpl_mpi_finish(void)
{
    if (loaded) loaded->finish();
    loaded = NULL;
}
