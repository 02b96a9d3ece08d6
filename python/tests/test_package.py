"""Installation: the source distribution, an editable installation, and the choice of the backend with its reason."""

import importlib.metadata
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import warnings

import couplet
import pytest
import torch
from conftest import ROOT, InMemory
from couplet import _program
from couplet.ops import _library

LOSS = (
    "import couplet, torch; print(couplet.__version__); print(couplet.backend()); torch.manual_seed(1); "
    "r, g = torch.randn(6, 8), torch.randn(6, 5, 8); print(float(couplet.erc_loss(r, g, alpha=0.5)))"
)

FORKS = """
import multiprocessing, os, signal
import couplet, torch
torch.set_num_threads(2)
r, g = torch.randn(24, 40, requires_grad=True), torch.randn(24, 28, 40, requires_grad=True)
def loss(_=None):
    signal.alarm(60)  # ends a process that hangs
    value = couplet.erc_loss(r, g, alpha=0.9)
    value.backward()
    return float(value.detach())
here = loss()
child = os.fork()
if child == 0:
    os._exit(loss() != here)
assert os.waitpid(child, 0)[1] == 0
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map(loss, range(4)) == [here] * 4
print("equal")
"""

HAS_NATIVE = importlib.util.find_spec("couplet_native") is not None
if HAS_NATIVE:
    import couplet_native
needs_native = pytest.mark.skipif(not HAS_NATIVE, reason="couplet_native is not installed")


def run(*command, path="", **environment):
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(path), **environment},
    )
    assert done.returncode == 0, done.stderr
    return done


def loss_of(python=sys.executable, path="", **environment):
    """Returns version, backend and loss in a fresh process, and its warnings."""
    done = run(python, "-c", LOSS, path=path, **environment)
    version, backend, loss = done.stdout.splitlines()
    return version, backend, float(loss), done.stderr


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Returns a copy of python/ alone, without targets of links. A build may write into it."""
    folder = tmp_path_factory.mktemp("source") / "python"
    shutil.copytree(
        ROOT / "python", folder, symlinks=True, ignore=shutil.ignore_patterns("conformance", "build", "__pycache__")
    )
    return folder


@pytest.fixture(scope="module")
def name():
    """Returns the name of the distribution, which only pyproject.toml has."""
    return re.search('(?m)^name = "(.*?)"', (ROOT / "python" / "pyproject.toml").read_text())[1]


def times(folder):
    """Returns the times of all files and folders. A file that was made and removed changes the time of its folder."""
    return {path: path.stat().st_mtime_ns for path in (folder, *folder.rglob("*"))}


def build(source, call, out):
    pytest.importorskip("hatchling")
    run(
        sys.executable,
        "-c",
        f"import os; os.chdir({str(source)!r}); import hatchling.build as b; print(b.{call}({str(out)!r}))",
    )


@needs_native
@pytest.mark.parametrize("backend", ("torch", ""))
def test_backends_agree(backend):
    version, name, loss, _ = loss_of(COUPLET_BACKEND=backend)
    assert version == (ROOT / "VERSION").read_text().strip() == couplet.__version__
    assert name.startswith("torch: COUPLET_BACKEND=torch" if backend else f"native: couplet_native {version}, /")
    torch.manual_seed(1)
    r, g = torch.randn(6, 8), torch.randn(6, 5, 8)
    assert loss == pytest.approx(float(couplet.erc_loss(r, g, alpha=0.5)), rel=1e-6)


def test_copies_of_files_at_the_root():
    """The package has no links out of its folder, so a copy of the folder is complete."""
    for copy in ("python/couplet/VERSION", "python/LICENSE", "python/native/LICENSE"):
        assert not (ROOT / copy).is_symlink(), copy
        assert (ROOT / copy).read_bytes() == (ROOT / pathlib.Path(copy).name).read_bytes(), copy


@needs_native
def test_children_of_fork_compute():
    """A child of fork lacks the threads of the parent's OpenMP."""
    assert run(sys.executable, "-c", FORKS, COUPLET_BACKEND="").stdout == "equal\n"


def test_the_source_distribution_is_whole(source, name, tmp_path):
    before = times(source)
    build(source, "build_sdist", tmp_path)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        assert not [member.name for member in tar if member.issym() or member.islnk()]
        tar.extractall(tmp_path, filter="data") if sys.version_info >= (3, 12) else tar.extractall(tmp_path)
    (unpacked,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert {path.name for path in unpacked.iterdir()} <= {
        "couplet",
        "LICENSE",
        "README.md",
        "pyproject.toml",
        "PKG-INFO",
    }
    build(unpacked, "build_wheel", tmp_path)
    build(source, "build_wheel", tmp_path)  # a second build writes the same file
    assert times(source) == before  # the source may be read-only
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl") and wheel.stat().st_size < 400_000
    shutil.unpack_archive(wheel, tmp_path / "site", "zip")
    names = {path.name for path in (tmp_path / "site").rglob("*")}
    assert {"VERSION", "py.typed", "families.json", "LICENSE"} <= names
    assert wheel.name.startswith(f"{name.replace('-', '_')}-{couplet.__version__}-")
    quiet = run(sys.executable, "-S", "-W", "error", "-c", "import couplet._version", path=tmp_path / "site")
    assert (
        quiet.stderr == ""
        and name != "couplet"
        and any(importlib.metadata.distributions(name=name, path=[str(tmp_path / "site")]))
    )
    installed = run(sys.executable, "-c", "import couplet; print(couplet.__file__)", path=tmp_path / "site").stdout
    assert str(tmp_path) in installed and loss_of(path=tmp_path / "site")[2] == loss_of()[2]


def test_an_editable_installation(source, tmp_path):
    run(
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "--target",
        tmp_path / "site",
        "-e",
        source,
    )
    made = f"import site; site.addsitedir({str(tmp_path / 'site')!r}); import couplet; print(couplet.__file__)"
    code = "import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p]; " + made
    assert str(source) in run(sys.executable, "-S", "-c", code).stdout


def fake_native(folder, library):
    (folder / "couplet_native").mkdir()
    (folder / "couplet_native" / "__init__.py").write_text(f"def library():\n    return {str(library)!r}\n")
    return folder


def test_a_library_that_cannot_be_loaded(tmp_path):
    (tmp_path / "no.so").write_text("no library")
    _, backend, loss, said = loss_of(path=fake_native(tmp_path, tmp_path / "no.so"))
    assert backend.startswith("torch: couplet_native cannot be loaded: ") and "plain torch is used" in said
    assert loss == pytest.approx(loss_of()[2], rel=1e-6)


@needs_native
def test_a_library_of_another_version(source, tmp_path):
    shutil.copytree(source / "couplet", tmp_path / "couplet")
    (tmp_path / "couplet" / "VERSION").write_text("99.1")
    version, backend, loss, said = loss_of(path=tmp_path)
    sentence = f"couplet_native has version {couplet.__version__}, couplet 99.1; install the same"
    assert version == "99.1" and backend == f"torch: {sentence}" and f"plain torch is used: {sentence}" in said
    assert loss == pytest.approx(loss_of()[2], rel=1e-6)


@needs_native
def test_two_copies_of_the_library(tmp_path):
    _, backend, _, said = loss_of(path=fake_native(tmp_path, couplet_native.library()))
    assert backend.startswith("native: ") and "is installed 2 times, in " in said and str(tmp_path) in said


@needs_native
def test_one_copy_is_no_warning():
    assert len(_library._copies()) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _library._load()[0] is not None


def test_without_native(monkeypatch):
    monkeypatch.setattr(_library.importlib.util, "find_spec", lambda name: None)
    assert _library._load() == (None, "couplet_native is not installed (pip install ./python/native)")
    monkeypatch.setattr(_program.shutil, "which", lambda name: None)
    assert couplet.find_program() is None


def test_torch_that_is_too_old(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.3.1+cpu")
    with pytest.raises(ImportError, match="needs PyTorch 2.4 or newer, this is 2.3.1"):
        couplet._need_torch()


def test_transformers_that_is_too_old(monkeypatch):
    pytest.importorskip("transformers")
    erc = couplet.hf.attach(
        InMemory(
            "olmoe",
            {
                "model.layers.0.mlp.gate.weight": (4, 6),
                **{f"model.layers.0.mlp.experts.{e}.gate_proj.weight": (5, 6) for e in range(4)},
            },
        )
    )
    erc.callback()
    monkeypatch.setattr(sys.modules["transformers"], "__version__", "4.55.4")  # the imported module
    with pytest.raises(ImportError, match="Trainer of Transformers 4.55.4 is too old, couplet needs 4.56 or newer"):
        erc.callback()


def other_distribution(folder):
    """Writes the files that pip leaves of PyPI's couplet 0.1.0: an empty module and its metadata."""
    (folder / "couplet").mkdir(exist_ok=True)
    (folder / "couplet" / "__init__.py").write_text("__version__ = '0.1.0'\n")
    (folder / "couplet-0.1.0.dist-info").mkdir()
    (folder / "couplet-0.1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.0\nName: couplet\nVersion: 0.1.0\n"
    )


@pytest.mark.parametrize("overwritten", (False, True))
def test_another_distribution_has_the_name(overwritten, source, tmp_path):
    shutil.copytree(source / "couplet", tmp_path / "here" / "couplet")
    where = tmp_path / "here" if overwritten else tmp_path
    other_distribution(where)
    said = run(sys.executable, "-S", "-c", "import couplet.ops._library", path=f"{tmp_path / 'here'}:{tmp_path}").stderr
    assert (
        said.count("UserWarning") == 1
        and f"couplet: the distribution couplet 0.1.0 in {where} is not this package" in said
    )
    assert "pip uninstall couplet, then pip install --force-reinstall --no-deps ./python" in said


def test_pages_name_the_source_and_no_distribution(name):
    """Pages do not name the distribution before it is published. A stranger who registered the name on PyPI could run
    code on the machines of users who install it."""
    for page in {ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("python/**/*.md")} - {
        ROOT / "docs" / "releasing.md"
    }:
        assert name not in page.read_text(), page
    for folder in ("python", "python/native"):
        text = (ROOT / folder / "pyproject.toml").read_text()
        assert f'name = "{name}' in text and '"Private :: Do Not Upload"' in text


def test_versions_are_declared(name):
    declared = importlib.metadata.requires(name)
    assert "torch>=2.4" in declared and any(
        one.replace("'", '"') == 'transformers>=4.56; extra == "hf"' for one in declared
    )


@needs_native
def test_the_program_is_on_the_path():
    program = shutil.which("couplet", path=os.path.dirname(sys.executable))
    assert program and run(program, "--version").stdout.strip() == f"couplet {couplet.__version__}"


# ---- contents of couplet_native ----


@pytest.fixture
def bundled():
    """Returns the folder of libraries of a wheel as `make wheels` makes it."""
    if not HAS_NATIVE:
        pytest.skip("couplet_native is not installed")
    folder = couplet_native.library().parent / "lib"
    if not folder.exists():
        pytest.skip("this couplet_native links to the system's libraries")
    return folder


def test_the_program_needs_libc_alone(bundled):
    loaded = run(couplet_native.program(), LD_TRACE_LOADED_OBJECTS="1").stdout
    paths = [pathlib.Path(path) for path in re.findall(r"=> (\S+) \(", loaded)]
    others = [path.name for path in paths if path.resolve().parent != bundled.resolve()]
    assert "not found" not in loaded and set(others) <= {"libc.so.6", "libm.so.6"}
    assert {"libdnnl.so.2", "libstdc++.so.6", "libgomp.so.1"} <= {path.name for path in paths}


def test_licences_of_what_it_brings(bundled):
    folder = bundled.parent / "licenses"
    named = dict(line.split(": ", 1) for line in (folder / "SOURCES").read_text().splitlines())
    if (bundled.parent / "couplet-cuda.so").exists():
        assert "https://docs.nvidia.com/cuda/eula/" in named.pop("couplet-cuda.so")
    assert set(named) == {path.name for path in bundled.iterdir() if path.is_file()}
    for what in named.values():
        package = what.split()[0]
        assert len((folder / package).read_text()) > 500, package
    assert "GCC RUNTIME LIBRARY EXCEPTION" in (folder / "libgomp1").read_text().upper()


def test_one_openmp_beside_torch(bundled):
    """The operator uses PyTorch's threads, and as many of them as PyTorch."""
    code = (
        "import os, re, sys, torch; threads = lambda: len(os.listdir('/proc/self/task')); "
        "torch.set_num_threads(2); torch.randn(1 << 22).exp_().sum(); before = threads(); "
        + LOSS
        + "; print(threads() - before, *sorted(set(re.findall(r'\\S*gomp\\S*', open('/proc/self/maps').read()))))"
    )
    more, *runtimes = run(sys.executable, "-c", code).stdout.splitlines()[-1].split()
    assert int(more) == 0
    assert len(runtimes) == 1 and "/torch/lib/" in runtimes[0]


def test_both_are_typed():
    pytest.importorskip("couplet_native")
    for package in (couplet, couplet_native):
        assert any((pathlib.Path(folder) / "py.typed").exists() for folder in package.__path__)
