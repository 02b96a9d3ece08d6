/* mpi.h - the ranks that mpirun or srun has started, on the MPI library of that launcher.
 *
 * Room:   parallel. The program is not linked to MPI. mpi_module.c is compiled to a shared object
 *         for each MPI library, which is loaded if a launcher has started several processes.
 * Search: couplet-mpi-openmpi.so and couplet-mpi-mpich.so are searched in the folder of the
 *         program, the folder above, ../lib/couplet relative to the program, and the library folder
 *         of the installation. $COUPLET_MPI names a module (openmpi, mpich), or is the path of a
 *         file. */
#ifndef CPL_PARALLEL_MPI_H
#define CPL_PARALLEL_MPI_H

#include <stdbool.h>

#include "base/status.h"
#include "parallel/transport.h"

/* Returns the number of processes that a launcher has started, from its environment variables, or 1
 * without a launcher. */
int cpl_mpi_launched(void);

/* Returns the rank of this process among the launched processes, or 0 without a launcher. */
int cpl_mpi_launched_rank(void);

/* Returns the number of ranks on this machine, or 1 before cpl_mpi_start. */
int cpl_mpi_local_ranks(void);

/* Returns whether the launcher is an mpirun, which ends all processes when one of them fails. srun
 * may leave them running. */
bool cpl_mpi_is_mpirun(void);

/* Returns the process of the mpirun that has started this rank, if both run on one machine, or 0
 * without such an mpirun. */
int cpl_mpi_launcher_process(void);

/* Makes MPICH's mpirun end the other processes, which may wait in the start of MPI. For a process
 * that ends with `exit_code` before it has started MPI. Does nothing with other launchers. */
void cpl_mpi_abandon(int exit_code);

/* Starts MPI and sets the transport of all ranks, which the caller owns. A launcher must have
 * started several processes (assert). Returns CPL_ERR_INPUT if no module exists for this launcher,
 * or if the module belongs to another MPI library, and CPL_ERR_DEVICE if MPI failed. */
CPL_NODISCARD cpl_status cpl_mpi_start(cpl_transport *world);

/* Ends MPI (MPI_Finalize), after all groups are closed. Does nothing if MPI was not started. All
 * ranks must call it, or no rank. */
void cpl_mpi_finish(void);

#endif /* CPL_PARALLEL_MPI_H */
