"""Runs the code on the pages of docs/ about the package, unchanged, on small inputs."""

import inspect
import json
import os
import pydoc
import re
import shlex
import shutil
import subprocess
import sys
import types

import couplet
import pytest
import torch
from conftest import ROOT, group_of_one


def blocks(page):
    """Returns the indented blocks of a page."""
    text = (ROOT / "docs" / page).read_text()
    found = re.findall(r"(?:^|\n\n)((?:    .*\n(?:\n(?=    ))*)+)", text)
    return [re.sub(r"(?m)^    ", "", block) for block in found]


def block(page, beginning):
    found = [b for b in blocks(page) if b.startswith(beginning)]
    assert len(found) == 1, (page, beginning, len(found))
    return found[0]


# test_fsdp.py runs the block with FSDP.
KNOWN = {
    "pytorch.md": (
        "import couplet",
        "0 {'erc'",
        "loss = couplet.erc_loss",
        "erc = couplet.attach",
        "rows = couplet.mpi_rows",
        "pip install ./python",
        "python -m couplet.certify",
    ),
    "pytorch/trainers.md": (
        "erc = couplet.hf.attach",
        "erc.join",
        "for batch in micro_batches",
        "erc = couplet.attach",
        "for step, batch",
    ),
    "pytorch/sharding.md": ("with FSDP.summon_full_params", "loss = couplet.erc_loss_ep"),
    "pytorch/figures.md": ("erc.join", "stats = couplet.RouterStats", "with erc.record_tokens"),
    "pytorch/precision.md": (),
    "pytorch/api.md": (),
    "certify.md": (
        "python/conformance",
        "python -m couplet.certify python",
        "M_ij",
        "python -m couplet.certify DUMP",
        "import torch",
        "char h[512]",
    ),
}


@pytest.mark.parametrize("page", KNOWN)
def test_every_block_is_known_here(page):
    assert [b.split("\n")[0] for b in blocks(page) if not b.startswith(KNOWN[page])] == []


# ---- coupling.md ----


def test_the_simulation_of_the_mean_token():
    numpy = pytest.importorskip("numpy")
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "mean_token.py"], capture_output=True, text=True, check=True
    )
    shown, made = (text.splitlines() for text in (block("coupling.md", "R_i . mu   proxies"), done.stdout))
    assert [line[:19] for line in shown] == [line[:19] for line in made] and len(shown) == 10 and shown[0] == made[0]
    numbers = [numpy.array([[float(x) for x in line[19:].split()] for line in lines[1:]]) for lines in (shown, made)]
    assert abs(numbers[0] - numbers[1]).max() <= 0.0101  # the last digit may differ on another processor
    loss, below, agreement, symmetric, first = numbers[1].reshape(3, 3, 5).transpose(2, 0, 1)  # [side, proxies]
    assert not loss.any() and not symmetric.any() and below[:, 0].tolist() == [1, 0.44, 0]
    rows, centred, tokens = agreement.T
    assert rows[0] < -0.5 and rows[2] > 0.5 and first[0, 0] == 0
    assert abs(centred).max() < 0.05 and tokens.min() > 0.65  # as the page says


# ---- the pages of the package ----


def test_paragraphs_are_short():
    for page in [ROOT / "docs" / "pytorch.md", *sorted((ROOT / "docs" / "pytorch").glob("*.md"))]:
        for part in re.split(r"\n\s*\n|\n(?=\* |\d+\. |\|)", page.read_text()):
            assert len(part.split()) <= 80 or part.startswith(("|", "    ")), (page.name, len(part.split()), part)


def public(thing, name):
    """Yields public names with docstrings in a module or class: functions, classes, methods, properties."""
    for key in getattr(thing, "__all__", None) or sorted(vars(thing)):
        value = vars(thing)[key] if inspect.isclass(thing) else getattr(thing, key)
        if inspect.isclass(value):
            yield from public(value, f"{name}.{key}")
        if inspect.isclass(thing) and issubclass(thing, torch.nn.Module) and hasattr(torch.nn.Module, key):
            continue
        if not key.startswith("_") and (
            inspect.isfunction(value) or inspect.isclass(value) or isinstance(value, property)
        ):
            if getattr(value, "__module__", "couplet").startswith("couplet"):
                yield f"{name}.{key}", value


def test_functions_and_classes():
    """The page has exactly the public names. pydoc finds a docstring of each, which names each argument."""
    pytest.importorskip("transformers")
    text = (ROOT / "docs" / "pytorch" / "api.md").read_text()
    named = set(re.findall(r"(?m)`(couplet\.[\w.]+)`(?=[^|]*\|[^|]+\|$)", text))
    there = (
        dict(public(couplet, "couplet"))
        | {f"couplet.hf.{name}": getattr(couplet.hf, name) for name in ("attach", "join", "callback")}
        | {
            f"couplet.reference.{name}": value
            for name, value in vars(couplet.reference).items()
            if inspect.isfunction(value)
        }
    )
    assert {name for name in named if ".certify." not in name} == set(there)
    for name, value in there.items():
        said = inspect.getdoc(value)
        assert said and pydoc.resolve(name)[0] is value, name
        said += "".join(inspect.getdoc(other) for key, other in there.items() if f"{key.split('.')[-1]}`" in said)
        arguments = () if isinstance(value, property) or value is couplet.Erc else inspect.signature(value).parameters
        assert not [a for a in arguments if a != "self" and a.replace("local_", "").lower() not in said.lower()], name


def test_the_first_step(capsys):
    pytest.importorskip("transformers")
    exec(block("pytorch.md", "import couplet"), {})
    shown, made = (
        re.findall(r"'alpha_min': ([\d.]+)", text)
        for text in (block("pytorch.md", "0 {'erc'"), capsys.readouterr().out)
    )
    assert [float(x) for x in made] == pytest.approx(
        [float(x) for x in shown], rel=0.05
    )  # other kernels round otherwise
    assert float(made[0]) > 1 > float(made[1])  # as the page says


def test_the_readme(capsys):
    text = (ROOT / "python" / "README.md").read_text()
    code, shown = block("../python/README.md", "import couplet"), block("../python/README.md", "0 6.4")
    assert text[: text.index(shown.split("\n")[0])].count("\n") <= 32 and code.count("\n") <= 20
    exec(code, {})
    made = [line.split() for line in capsys.readouterr().out.splitlines()]
    for (step, loss), (shown_step, shown_loss) in zip(made, map(str.split, shown.splitlines()), strict=True):
        assert step == shown_step and float(loss) == pytest.approx(float(shown_loss), rel=0.02)


class Layer(torch.nn.Module):
    def __init__(self, n=4, d=6, D=5):
        super().__init__()
        self.router = torch.nn.Linear(d, n, bias=False)
        self.w_gate = torch.nn.Parameter(torch.randn(n, D, d))


def test_training_loop():
    moe_layers = [Layer(), Layer()]
    everything = [p for layer in moe_layers for p in layer.parameters()]
    names = dict(
        couplet=couplet,
        moe_layers=moe_layers,
        seed=3,
        coefficient=0.5,
        batches=[1, 2],
        model=lambda batch: types.SimpleNamespace(loss=everything[0].sum() * batch),
    )
    exec(block("pytorch/trainers.md", "for step, batch"), names)
    assert names["step"] == 1 and all(p.grad.abs().sum() > 0 for p in everything)


def test_transformers(tmp_path):
    pytest.importorskip("transformers")
    from test_hf import rows, tiny, trainer_of

    model = tiny()
    names = dict(
        couplet=couplet,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        micro_batches=[{k: v[None] for k, v in row.items()} for row in rows(2)],
    )
    exec(block("pytorch/trainers.md", "erc = couplet.hf.attach"), names)
    exec(block("pytorch/trainers.md", "for batch in micro_batches"), names)
    assert names["erc"].value > 0 and all(p.grad is not None for p in model.parameters())
    names["trainer"] = trainer_of(names["model"], tmp_path, 1)
    exec(block("pytorch/trainers.md", "erc.join(trainer) "), names)
    assert "kappa_own" in names["trainer"].state.log_history[0]


def test_chosen_figures(tmp_path):
    pytest.importorskip("transformers")
    from test_hf import tiny, trainer_of

    trainer = trainer_of(tiny(), tmp_path, 1)
    exec(block("pytorch/figures.md", "erc.join(trainer, "), dict(erc=couplet.hf.attach(trainer.model), trainer=trainer))
    trainer.train()
    assert {"erc", "alpha_min", "maxvio", "router_load_min"} <= set(trainer.state.log_history[0])


def test_any_other_model():
    moe_layers = [Layer(), Layer()]
    names = dict(couplet=couplet, moe_layers=moe_layers, model=torch.nn.ModuleList(moe_layers))
    exec(block("pytorch/trainers.md", "erc = couplet.attach"), names)
    names["erc"].loss().backward()
    assert all(layer.w_gate.grad.any() and layer.router.weight.grad.any() for layer in moe_layers)


def test_latent_experts():
    moe_layers = [Layer(d=3), Layer(d=3)]
    for layer in moe_layers:
        layer.router, layer.latent = torch.nn.Linear(6, 4, bias=False), torch.nn.Linear(6, 3)
    names = dict(couplet=couplet, moe_layers=moe_layers, model=torch.nn.ModuleList(moe_layers), seed=3, step=1, l=0)
    names.update(router=layer.router.weight, w_gate=layer.w_gate, P=layer.latent.weight)
    exec(block("pytorch.md", "loss = couplet.erc_loss"), names)
    (names["loss"] + names["erc"].loss()).backward()
    assert all(layer.w_gate.grad.any() and layer.latent.weight.grad.any() for layer in moe_layers)


def test_proxies_of_tokens():
    moe_layers = [Layer(d=6)]
    moe_layers[0].router = torch.nn.Linear(6, 4, bias=False)
    names = dict(couplet=couplet, moe_layers=moe_layers, model=torch.nn.ModuleList(moe_layers), seed=3, step=1, l=0)
    names.update(router=moe_layers[0].router.weight, w_gate=moe_layers[0].w_gate, m=torch.ones(6), sigma=2.0)
    exec(block("pytorch.md", "erc = couplet.attach"), names)
    assert names["loss"] > 0 and names["erc"].loss() == 0


def test_manifold_power_iteration():
    names = dict(couplet=couplet, torch=torch, x=torch.randn(3, 6), seed=3, step=1, l=0)
    names.update(router=torch.randn(4, 6, requires_grad=True), w_gate=torch.randn(4, 5, 6, requires_grad=True))
    exec(block("pytorch.md", "rows = couplet.mpi_rows"), names)
    (names["loss"] + names["logits"].sum()).backward()
    assert names["logits"].shape == (3, 4) and names["router"].grad.any() and names["w_gate"].grad.any()


def test_router_statistics():
    moe_layers = [Layer(n=64, d=6), Layer(n=64, d=6)]
    names = dict(couplet=couplet, moe_layers=moe_layers)
    exec(block("pytorch/figures.md", "stats = couplet.RouterStats"), names)
    for layer in moe_layers:
        layer.router(torch.randn(100, 6))
    assert names["stats"].figures()["router_maxvio"] > 0


def test_figures_over_tokens(capsys):
    pytest.importorskip("transformers")
    from test_hf import tiny

    model = tiny()
    names = dict(
        torch=torch, model=model, erc=couplet.hf.attach(model), batch=dict(input_ids=torch.randint(2, 96, (2, 9)))
    )
    exec(block("pytorch/figures.md", "with erc.record_tokens"), names)
    assert "signs.tokens.above/1" in capsys.readouterr().out


def test_expert_parallelism():
    layer = Layer()
    with group_of_one():
        names = dict(
            couplet=couplet, router=layer.router.weight, local_w_gate=layer.w_gate, group=None, seed=3, step=1, l=0
        )
        exec(block("pytorch/sharding.md", "loss = couplet.erc_loss_ep"), names)
    assert names["loss"].item() == pytest.approx(
        couplet.erc_loss(layer.router.weight, layer.w_gate, seed=3, step=1).item(), rel=1e-6
    )


def test_certify_from_the_shell(tmp_path):
    words = shlex.split(block("pytorch.md", "python -m couplet.certify").replace("[", "").replace("]", ""))
    (tmp_path / "my_module.py").write_text(
        "from couplet.reference import erc_loss\n"
        "def my_loss(router, w_gate, delta, alpha, weight):\n"
        "    return erc_loss(router, w_gate, alpha=alpha, weight=weight, delta=delta)\n"
    )
    done = subprocess.run([sys.executable, *words[1:]], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done
    assert "right as erc" in done.stdout


# ---- certify.md, losses.md ----


@pytest.mark.parametrize(
    "page, command, said",
    (
        ("certify.md", "python -m couplet.certify python/", "python/conformance"),
        ("losses.md", "python -m couplet.certify my_module:my_loss --loss", "my_module:my_loss: wrong"),
    ),
)
def test_the_first_verdict(page, command, said, tmp_path):
    if page == "losses.md":
        (tmp_path / "my_module.py").write_text(block(page, "import torch"))
    done = subprocess.run(
        [sys.executable, *shlex.split(block(page, command))[1:]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"},
    )
    assert done.stdout == block(page, said) and done.returncode == (page == "losses.md"), done


def judged(folder):
    words = shlex.split(
        block("certify.md", "python -m couplet.certify DUMP").replace("[", "").replace("]", "").replace("DUMP", "dump")
    )
    return subprocess.run([sys.executable, *words[1:]], cwd=folder, capture_output=True, text=True)


@pytest.mark.parametrize("right", (True, False))
def test_dump_in_python(right, tmp_path, monkeypatch):
    def my_loss(router, gates, delta, alpha, weight):
        return couplet.reference.erc_loss(router, gates, alpha=alpha, weight=weight if right else -weight, delta=delta)

    monkeypatch.chdir(tmp_path)
    exec(block("certify.md", "import torch"), dict(my_loss=my_loss))
    done = judged(tmp_path)
    assert done.returncode == (0 if right else 1), done.stdout
    assert right or "loss_sign" in (tmp_path / "FILE").read_text()


MAIN = """#include <stdio.h>
#include <string.h>
enum { n = 3, D = 4, d = 5 };
int main(void)
{
    float R[n * d], W[n * D * d], loss = 1;
    for (int i = 0; i < n * d; i++) R[i] = i * i %% 7 - 3;
    for (int i = 0; i < n * D * d; i++) W[i] = i * i %% 11 - 5;
    FILE *f = fopen("dump.safetensors", "wb");
    %s
    return fclose(f);
}
"""


@pytest.mark.skipif(not shutil.which("cc"), reason="there is no C compiler")
def test_dump_in_c(tmp_path):
    """The dump has no gradients, which count as zero. It is read, and it is not right."""
    (tmp_path / "dump.c").write_text(MAIN % block("certify.md", "char h[512]"))
    subprocess.run(
        ["cc", "-std=c11", "-Wall", "-Wextra", "-Wformat=2", "-Werror", "dump.c", "-o", "dump"],
        cwd=tmp_path,
        check=True,
    )
    subprocess.run(["./dump"], cwd=tmp_path, check=True)
    done = judged(tmp_path)
    said = json.loads((tmp_path / "FILE").read_text())
    assert done.returncode == 1 and said["kind"] == "erc" and said["verdict"] != "right", done
