"""mpi.py: shared by tests on MPI: the installed MPI libraries, and how each starts its ranks."""

import os
import pathlib
import shutil
import subprocess

LIBRARIES = ("openmpi", "mpich")


def is_here(library, build):
    """Returns whether ranks can be started, and prints the reason if not. MPICH's ranks also print about /sys."""
    module, why = pathlib.Path(build, f"couplet-mpi-{library}.so"), ""
    if not shutil.which(f"mpirun.{library}") or not module.exists():
        why = f"not checked: there is no mpirun.{library} or no {module.name}"
    elif library == "mpich" and not os.path.isdir("/sys/class/net"):
        why = "not checked here: MPICH needs /sys/class/net"
    if why:
        print(why)
    return not why


def environment(**more):
    """Returns the environment of ranks. Leaks inside the MPI libraries are not ours. More ranks than CPUs must not
    spin."""
    return {
        **os.environ,
        "LSAN_OPTIONS": "detect_leaks=0",
        "OMP_NUM_THREADS": "1",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        **more,
    }


def command_of(library, parts):
    """Returns this library's mpirun of several programs, (ranks, words) each, in the order of the ranks."""
    more = ["--oversubscribe", "--bind-to", "none"] if library == "openmpi" else []
    words = [f"mpirun.{library}", *more]
    for ranks, part in parts:
        words += [*([":"] if "-n" in words else []), "-n", str(ranks), *map(str, part)]
    return words


def command(library, ranks, *words):
    """Returns the words under this library's mpirun."""
    return command_of(library, [(ranks, words)])


def run(library, ranks, *words, build, timeout=120, **more):
    """Returns (exit code, standard output, standard error)."""
    done = subprocess.run(
        command(library, ranks, *words),
        env=environment(**more),
        cwd=os.getcwd(),
        capture_output=True,
        text=True,
        timeout=timeout,
        stdin=subprocess.DEVNULL,
    )
    return done.returncode, done.stdout, done.stderr
