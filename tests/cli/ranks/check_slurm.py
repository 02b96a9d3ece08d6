#!/usr/bin/env python3
"""check_slurm.py COUPLET: the calls of examples/slurm.sbatch, with programs in place of srun and scontrol that record
their words: a new run, a resumed run, and the return to the queue after exit code 143 alone."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

sys.path.append("tests/cli")
from program import capture, check, finish, scratch_folder

SCRIPT = pathlib.Path("examples/slurm.sbatch").resolve()
SRUN = """\
#!/bin/sh
echo "srun $* [$COUPLET_MPI $OMP_NUM_THREADS]" >> "$CALLS"
[ -z "${PAUSE-}" ] || sleep "$PAUSE"
exit "${CODE-0}"
"""
SCONTROL = '#!/bin/sh\necho "scontrol $*" >> "$CALLS"\n'


def environment(folder, **more):
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("COUPLET")},
        "PATH": f"{folder}:{os.environ['PATH']}",
        "CALLS": str(folder / "calls"),
        "SLURM_JOB_ID": "4711",
        "SLURM_CPUS_PER_TASK": "3",
        **more,
    }


def calls(folder):
    """Returns the calls since the last time."""
    path = folder / "calls"
    lines = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return lines


def submit(folder, *words, code=0, **more):
    done = capture(["bash", SCRIPT, *words], env=environment(folder, CODE=str(code), **more), cwd=folder)
    return done.returncode, calls(folder), done.stderr


def check_job(folder, words, code, wanted, **more):
    got, lines, err = submit(folder, *words, code=code, **more)
    check(
        got == code and lines == wanted and not err,
        f"{words}, srun ends with {code}: {got}, {lines}, {err}; wanted {wanted}",
    )


def call_of(pmi, words, library):
    return f"srun --mpi={pmi} --cpus-per-task=3 --cpu-bind=cores --kill-on-bad-exit=0 {words} [{library} 3]"


def check_jobs(folder):
    new = ["c.yaml", "R", "--set", "train.lr=1e-3"]
    first = call_of("pmix", "couplet train c.yaml --out R --set train.lr=1e-3", "openmpi")
    again = "scontrol requeue 4711"
    for code in (0, 1, 2, 130, 137):
        check_job(folder, new, code, [first])
    check_job(folder, new, 143, [first, again])
    other = call_of("pmi2", "/p/couplet train c.yaml --out R --set train.lr=1e-3", "mpich")
    check_job(folder, new, 0, [other], COUPLET_MPI="mpich", COUPLET="/p/couplet")
    (folder / "R").mkdir()
    check_job(folder, new, 0, [first])
    (folder / "R" / "config.yaml").touch()
    check_job(folder, new, 143, [call_of("pmix", "couplet train --resume R", "openmpi"), again])


def check_refused(folder):
    for words, more, part in (
        (["c.yaml"], {}, "usage: sbatch"),
        (["c.yaml", "R"], {"COUPLET_MPI": "mvapich"}, "mvapich"),
    ):
        got, lines, err = submit(folder, *words, **more)
        check(got == 2 and not lines and part in err, f"{words}, {more}: {got}, {lines}, {err}")


def check_cancelled(folder):
    """scancel sends SIGTERM to the script too: the script ends, and the job stays out of the queue."""
    job = subprocess.Popen(["bash", SCRIPT, "c.yaml", "S"], cwd=folder, env=environment(folder, CODE="143", PAUSE="1"))
    while not (folder / "calls").exists():
        time.sleep(0.01)
    job.send_signal(signal.SIGTERM)
    check(job.wait() == -signal.SIGTERM, f"cancelled: the script ends with {job.returncode}")
    time.sleep(1.5)
    check(len(calls(folder)) == 1, "cancelled: the job goes back into the queue")


def main():
    with scratch_folder() as folder:
        for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        check_jobs(folder)
        check_refused(folder)
        check_cancelled(folder)
    if not shutil.which("shellcheck"):
        print("not checked: the program shellcheck is not here")
    else:
        done = capture(["shellcheck", SCRIPT])
        check(done.returncode == 0, done.stdout)
    return finish()


if __name__ == "__main__":
    sys.exit(main())
