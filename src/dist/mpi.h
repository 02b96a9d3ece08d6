/* mpi.h - the ranks that mpirun or srun has started, on the MPI library that they were started with.
 *
 * Room:   dist. The program is not linked to MPI: the part that is (mpi_module.c) is a shared object
 *         for each MPI library, loaded if a launcher has started several processes.
 * Finds:  couplet-mpi-openmpi.so and couplet-mpi-mpich.so in the folder of the program, then in its
 *         library folder. $COUPLET_MPI names one of them (openmpi, mpich) or a file of its own. */
#ifndef CPL_DIST_MPI_H
#define CPL_DIST_MPI_H

#include <stdbool.h>

#include "base/status.h"
#include "dist/transport.h"

/* How many processes a launcher has started, from the variables that it sets; 1: there is none. */
int cpl_mpi_launched(void);

/* The number of this process among them; 0 without a launcher. */
int cpl_mpi_launched_rank(void);

/* How many of them run on this machine; 1 if the launcher does not say. */
int cpl_mpi_local_ranks(void);

/* Whether the launcher is an mpirun, which ends all processes when one of them fails; srun does not
 * always. */
bool cpl_mpi_is_mpirun(void);

/* This process ends, with this code, without having started MPI, for which the others may wait: has
 * mpirun of MPICH end them, which it would not do by itself. Of other launchers nothing. */
void cpl_mpi_abandon(int exit_code);

/* Starts MPI and sets the transport of all ranks. CPL_ERR_INPUT: there is no module for this
 * launcher, or it belongs to another MPI library than the launcher's. CPL_ERR_DEVICE: MPI failed. */
CPL_NODISCARD cpl_status cpl_mpi_start(cpl_transport *world);

/* After all groups were closed; nothing if MPI was not started. All ranks do this, or none. */
void cpl_mpi_finish(void);

#endif /* CPL_DIST_MPI_H */
