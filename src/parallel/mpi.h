/* mpi.h - the ranks that mpirun or srun has started, on the MPI library of that launcher.
 *
 * Room:   parallel. The program is not linked to MPI: the part that is (mpi_module.c) is a shared
 *         object for each MPI library, loaded if a launcher has started several processes.
 * Finds:  couplet-mpi-openmpi.so and couplet-mpi-mpich.so in the folder of the program or the one
 *         above, in ../lib/couplet seen from the program, then in the library folder where it was
 *         installed. $COUPLET_MPI names one of them (openmpi, mpich), or is the path of a file. */
#ifndef CPL_PARALLEL_MPI_H
#define CPL_PARALLEL_MPI_H

#include <stdbool.h>

#include "base/status.h"
#include "parallel/transport.h"

/* How many processes a launcher has started, from the variables that it sets; 1: there is none. */
int cpl_mpi_launched(void);

/* The number of this process among them; 0 without a launcher. */
int cpl_mpi_launched_rank(void);

/* How many of the ranks run on this machine; 1 before cpl_mpi_start. */
int cpl_mpi_local_ranks(void);

/* Whether the launcher is an mpirun, which ends all processes when one of them fails; srun does not
 * always. */
bool cpl_mpi_is_mpirun(void);

/* The process of the mpirun that has started this rank, if both run on one machine; 0: no mpirun. */
int cpl_mpi_launcher_process(void);

/* This process ends, with this code, without having started MPI, for which the others may wait: has
 * mpirun of MPICH end them, which it would not do by itself. Of other launchers nothing. */
void cpl_mpi_abandon(int exit_code);

/* Starts MPI and sets the transport of all ranks, which the caller owns. A launcher must have
 * started several processes (assert). CPL_ERR_INPUT: there is no module for this launcher, or it
 * belongs to another MPI library than the launcher's. CPL_ERR_DEVICE: MPI failed. */
CPL_NODISCARD cpl_status cpl_mpi_start(cpl_transport *world);

/* Ends MPI (MPI_Finalize), after all groups were closed; nothing if MPI was not started. All ranks
 * do this, or none. */
void cpl_mpi_finish(void);

#endif /* CPL_PARALLEL_MPI_H */
