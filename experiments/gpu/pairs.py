#!/usr/bin/env python3
"""pairs.py --tokens FOLDER --out FOLDER: trains 96 pairs of small models with and without the coupling loss, with and
without the router z-loss, many replicas at a time as one program (experiments/gpu/README.md). It writes results.json,
which decide.py reads, after every program, and ends in time.

FOLDER of --tokens has the token shards train and validation that `couplet tokenize encode` makes.
--rehearse: the same program with sizes for a processor."""

from __future__ import annotations

import time

BEGIN = time.monotonic()  # the import of PyTorch counts

import argparse
import gzip
import json
import math
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys
from typing import Any, Dict, Iterator, List, NamedTuple, Sequence, Tuple

import numpy
import replicas
import torch
from replicas import DECAY, PLAIN, ROOT, Model, Pieces, Shape, coupling, initial, proxies, settings_of, views
from torch import Tensor

sys.path.append(str(ROOT / "experiments" / "tools"))
import mean_token  # noqa: E402

ARMS = {"V0": (0.0, 0.0), "E0": (0.0, 1.0), "V1": (0.001, 0.0), "E1": (0.001, 1.0)}  # weights of z-loss and ERC
BONUS = {"T1": (0.001, 1.0)}  # erc.proxy=tokens
SEEDS, FEWER, FIRST_SEED, REPLICAS = 96, 64, 200, 32
NEEDED = 1.6e6  # tokens/s of the first program below which FEWER seeds are run
SETTINGS = json.loads((ROOT / "experiments/list.json").read_text())["short"]
REHEARSAL = (
    "model.hidden_size=32 model.intermediate_size=16 model.num_hidden_layers=2 model.num_attention_heads=2 "
    "model.num_experts=8 model.num_experts_per_tok=2 data.seq_len=32 data.batch_tokens=128 train.steps=6 "
    "train.warmup_steps=2 eval.max_sequences=2"
).split()
AT_ONCE = 100  # steps between two looks at the clock; their noise is drawn together
FEW = 8  # tokens that an expert needs for a row in M_tok
Run = Tuple[str, int]  # arm, seed


# ---- data ----


class Shards(NamedTuple):
    """The sequences of a folder of token shards, and the number of the source of each."""

    tokens: Tensor  # int32 [sequences, S]
    source: numpy.ndarray  # [sequences]
    names: List[str]


def read_shards(folder: pathlib.Path, S: int) -> Shards:
    """Reads the sequences of a folder as src/data/loader does. A sequence belongs to the source of most of its tokens,
    of equal ones to the first by name."""
    rows, sources, names = [], [], set()
    files = sorted(folder.glob("*.npy"))
    if not files:
        raise SystemExit(f"pairs: {folder} has no token shards (.npy): make them with `couplet tokenize encode`")
    for file in files:
        ids = numpy.fromfile(file, dtype="<u2")
        ids = ids[: len(ids) // S * S].reshape(-1, S)
        own = [line.split("\t")[1] for line in file.with_suffix(".sources.tsv").read_text().splitlines()]
        with gzip.open(file.with_suffix(".csv.gz"), "rt") as table:
            edges = [tuple(map(int, line.split(",")[:2])) for line in table]
        of_document = numpy.frombuffer(file.with_suffix(".sources.u8").read_bytes(), dtype="u1")
        of_token = numpy.repeat(of_document, [end - begin for begin, end in edges])[: ids.size].reshape(ids.shape)
        order = numpy.argsort(own)
        most = numpy.stack([(of_token == k).sum(1) for k in order]).argmax(0)
        rows.append(ids)
        sources.append(numpy.array(own)[order][most])
        names.update(own)
    listed = sorted(names)
    return Shards(
        torch.from_numpy(numpy.concatenate(rows).astype("i4")),
        numpy.searchsorted(listed, numpy.concatenate(sources)),
        listed,
    )


def order_of(n: int, seed: int, steps: int, B: int) -> numpy.ndarray:
    """Returns the sequences of each step, [steps, B]: every epoch is a new permutation, as src/data/loader deals it."""
    each, parts = n // B, []
    for epoch in range(-(-steps // each)):
        order = numpy.arange(n, dtype=numpy.uint32)
        numpy.random.Generator(numpy.random.PCG64(seed=seed + epoch)).shuffle(order)
        parts.append(order[: each * B].reshape(each, B))
    return numpy.concatenate(parts)[:steps].astype("i8")


# ---- one program ----


class Program:
    """N replicas that train as one: `start` with N runs, `train`, `evaluate`. Its tensors stay where they are, so that
    a step is recorded once (CUDA graph) and repeated for every step of every run."""

    def __init__(
        self,
        settings: Dict[str, str],
        tokens: pathlib.Path,
        N: int,
        device: torch.device,
        dtype: torch.dtype,
        pieces: Pieces = PLAIN,
        of_tokens: bool = False,
    ):
        self.settings, self.shape, self.device, self.of_tokens = settings, Shape.of(settings), device, of_tokens
        s, self.steps = self.shape, int(settings["train.steps"])
        self.number = {name: float(settings[name]) for name in ("erc.alpha", "balance.weight", "train.clip")}
        self.adamw = tuple(float(settings[f"train.{name}"]) for name in ("beta1", "beta2", "eps", "weight_decay"))
        self.model = Model(s, dtype, device, pieces)
        self.held_out = read_shards(tokens / "validation", s.S)
        self.tokens = read_shards(tokens / "train", s.S).tokens.to(device)
        P, new = sum(s.sizes().values()), lambda *size: torch.zeros(size, device=device)
        self.flat = new(N, P).requires_grad_()
        self.m, self.v = new(N, P), new(N, P)
        self.means = new(N, s.L, s.d + 1)  # moving means of x and |x|^2, of the tokens of each layer
        self.count = torch.zeros(N, 1, dtype=torch.float64, device=device)  # updates that were made
        self.at = torch.zeros(1, dtype=torch.int64, device=device)  # steps that were done
        self.order = torch.zeros(self.steps, N, s.B, dtype=torch.int64, device=device)
        self.uniform = new(min(AT_ONCE, self.steps), s.L, N, s.n, s.d)
        self.rates = torch.tensor([self.rate(step) for step in range(1, self.steps + 1)], device=device)
        self.z_weight, self.erc_weight = new(N), new(N)
        self.losses = new(self.steps, 5, N)  # cross-entropy, balance, z, ERC, norm of the gradient
        self.repeat: Any = None

    def rate(self, step: int) -> float:
        """Returns the learning rate of a step, from 1 (cpl_optimizer_lr)."""
        lr, warm = float(self.settings["train.lr"]), int(self.settings["train.warmup_steps"])
        low = 0.1 * lr if self.settings["train.lr_min"] == "unset" else float(self.settings["train.lr_min"])
        if step <= warm:
            return lr * step / warm
        if step >= self.steps:
            return low
        return low + (lr - low) * 0.5 * (1.0 + math.cos(math.pi * (step - warm) / (self.steps - warm)))

    @torch.no_grad()
    def start(self, runs: Sequence[Run], weights: Tensor | None = None) -> None:
        """Sets every replica to the start of its run: from its seed, or from weights [N, P]."""
        self.runs, s = list(runs), self.shape
        seeds = sorted({seed for _, seed in runs})
        of = {seed: [r for r, run in enumerate(runs) if run[1] == seed] for seed in seeds}
        for seed, places in of.items():
            self.flat[places] = initial(s, seed, self.device) if weights is None else weights[places]
            order = order_of(len(self.tokens), seed, self.steps, s.B)
            self.order[:, places] = torch.from_numpy(order).to(self.device)[:, None]
        for tensor in (self.m, self.v, self.means, self.count, self.at, self.losses):
            tensor.zero_()
        self.seeds = of
        pair = torch.tensor([(ARMS | BONUS)[arm] for arm, _ in runs], device=self.device)
        self.z_weight.copy_(pair[:, 0])
        self.erc_weight.copy_(pair[:, 1])

    def draw(self, done: int) -> None:
        """Draws the noise of the steps that follow, as many as fit."""
        s, count = self.shape, min(len(self.uniform), self.steps - done)
        step = torch.arange(done + 1, done + count + 1, device=self.device)[:, None, None]
        layer = torch.arange(s.L, device=self.device)[None, :, None]
        for seed, places in self.seeds.items():
            u = replicas._noise.uniform(0, s.n * s.d, seed, step, layer, self.device)
            self.uniform[:count, :, places] = u.view(count, s.L, 1, s.n, s.d)

    def total(self) -> Tuple[Tensor, Tensor, list]:
        """Returns the losses to be trained [N], their parts [4, N], and what the layers leave."""
        s, p = self.shape, views(self.flat, self.shape)
        picked = self.order.index_select(0, self.at).flatten()
        nll, layers = self.model(p, self.tokens.index_select(0, picked).view(-1, s.B, s.S).long())
        balance, z = (torch.stack([getattr(layer, name) for layer in layers]).mean(0) for name in ("balance", "z"))
        has_noise = self.settings["erc.noise"] == "bounded"
        uniform = self.uniform.index_select(0, self.at % len(self.uniform))[0]
        each = []
        for l, (router, gates) in enumerate(zip(p["router"].unbind(1), p["w_gate"].unbind(1))):
            rows = proxies(router, self.means[:, l]) if self.of_tokens else router
            each.append(coupling(rows, gates, self.number["erc.alpha"], uniform[l] if has_noise else None))
        erc, ce = torch.stack(each).mean(0), nll / (s.B * (s.S - 1))
        total = ce + self.number["balance.weight"] * balance + self.z_weight * z + self.erc_weight * erc
        return total, torch.stack((ce, balance, z, erc)), layers

    def step(self) -> None:
        """Does one step of all replicas. A replica whose gradient is not finite stays as it is, as in `couplet train`."""
        total, parts, layers = self.total()
        (gradient,) = torch.autograd.grad(total.sum(), self.flat)
        with torch.no_grad():
            norm = torch.linalg.vector_norm(gradient, dim=1, keepdim=True, dtype=torch.float64).float()
            ok = norm.isfinite() & total.isfinite()[:, None]
            clip = self.number["train.clip"]
            coef = (clip / (norm + 1e-6)).clamp(max=1) if clip > 0 else torch.ones_like(norm)
            self.count += ok
            c1, c2 = ((1 - beta**self.count).float() for beta in self.adamw[:2])
            rate = self.rates.index_select(0, self.at)
            self.model.pieces.adamw(self.flat, self.m, self.v, gradient, coef, ok, rate, c1, c2, self.adamw)
            if self.of_tokens:
                x = torch.stack([layer.x for layer in layers], 1)
                now = torch.cat((x.mean(2), x.square().sum(-1, keepdim=True).mean(2)), -1)
                by = ((1 - DECAY) / (1 - DECAY**self.count)).float()[:, None]
                self.means += torch.where(ok[:, None], by * (now - self.means), 0.0)
            self.losses.index_copy_(0, self.at, torch.cat((parts.detach(), norm.mT))[None])
            self.at += 1

    def record(self, graph: bool = True) -> None:
        """Records the step, on a GPU as a CUDA graph, if `graph`. The state is that of a few steps later: `start` sets
        it."""
        self.repeat = self.step
        if self.device.type != "cuda" or not graph:
            return
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self.step()
        torch.cuda.current_stream().wait_stream(side)
        recorded = torch.cuda.CUDAGraph()
        with torch.cuda.stream(torch.cuda.current_stream()), torch.cuda.graph(recorded):
            self.step()  # the outer context gives the stream back if the capture fails
        self.repeat = recorded.replay

    def train(self, until: float = math.inf) -> float:
        """Trains all steps and returns the seconds. Past `until` on the clock it stops and raises TimeoutError."""
        begin = time.monotonic()
        for done in range(self.steps):
            if done % len(self.uniform) == 0:
                self.wait()
                if time.monotonic() > until:
                    raise TimeoutError(f"the time was over after step {done} of {self.steps}")
                self.draw(done)
            self.repeat()
        self.wait()
        return time.monotonic() - begin

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    @torch.no_grad()
    def evaluate(self) -> List[Dict[str, Any]]:
        """Returns the figures of every run, in f32: the mean negative log-likelihood of the held-out sequences
        (`val_loss` of metrics.jsonl), by source too, and dz of each layer from the tokens of these sequences."""
        s, N, p = self.shape, len(self.runs), views(self.flat.detach(), self.shape)
        plain, most = Model(s, torch.float32, self.device), int(self.settings["eval.max_sequences"])
        M = torch.zeros(s.L, N, s.n, s.n, dtype=torch.float64, device=self.device)
        counts = torch.zeros(s.L, N, s.n, dtype=torch.float64, device=self.device)
        nll, targets = torch.zeros(len(self.held_out.names), N, dtype=torch.float64), []
        for source in range(len(self.held_out.names)):
            own = (self.held_out.source == source).nonzero()[0][:most]
            targets.append(len(own) * (s.S - 1))
            for begin in range(0, len(own), s.B):
                ids = self.held_out.tokens[own[begin : begin + s.B]].long().to(self.device)
                found, layers = plain(p, ids.expand(N, -1, -1), True)
                nll[source] += found.double().cpu()
                for l, layer in enumerate(layers):
                    M[l] += torch.bmm(layer.chosen.mT, layer.responses)
                    counts[l] += layer.chosen.sum(1)
        M = torch.where(counts[..., None] >= FEW, M / counts[..., None], math.nan).cpu()
        curve = self.losses.cpu()
        return [self.figures(r, nll[:, r], targets, M[:, r], curve[:, :, r]) for r in range(N)]

    def figures(self, r: int, nll: Tensor, targets: List[int], M: Tensor, curve: Tensor) -> Dict[str, Any]:
        arm, seed = self.runs[r]
        tenth = max(1, self.steps // 10)
        names = ("loss", "balance", "z", "erc", "grad_norm")
        return {
            "arm": arm,
            "seed": seed,
            "nats": finite(float(nll.sum()) / sum(targets)),
            "by_source": {
                name: finite(float(one) / count) for name, one, count in zip(self.held_out.names, nll, targets) if count
            },
            "dz": [dz(matrix.tolist()) for matrix in M],
            "curve": {  # means of tenths of the steps
                name: [finite(float(part.mean())) for part in curve[:, k].split(tenth)] for k, name in enumerate(names)
            },
            "skipped": self.steps - int(self.count[r]),
        }


def dz(M: List[List[float]]) -> float | None:
    """Returns dz of a layer (docs/method.md 5.3), of the rows of M_tok that are numbers; None below three."""
    return finite(mean_token.dz_of_layer(M)) if sum(not math.isnan(row[0]) for row in M) > 2 else None


def finite(value: float) -> float | None:
    return round(value, 6) if math.isfinite(value) else None


# ---- the command ----


def fused(
    settings: Dict[str, str], tokens: pathlib.Path, N: int, device: torch.device, **more: Any
) -> Tuple[Program, str]:
    """Returns a program that is ready, and a word on its kernels. On a GPU the pieces are compiled and the step is a CUDA
    graph. Without a compiler the pieces are run as they are, and where no graph can be recorded, the steps too."""
    tries = [(Pieces.compiled, True, "compiled"), (Pieces, True, "not compiled")]
    last = (Pieces, False, "not compiled, without a CUDA graph")
    for pieces, graph, word in [*tries, last] if device.type == "cuda" else tries[1:]:
        program = Program(settings, tokens, N, device, pieces=pieces(), **more)
        program.start([("E1", 0)] * N)
        try:
            program.record(graph)
            return program, word
        except Exception as error:  # Triton's exceptions have no common class
            if not graph or device.type != "cuda":
                raise
            said = str(error).partition("\n")[0]
            print(f"pairs: a step that is {word} cannot be recorded, {type(error).__name__}: {said}", flush=True)
            del program
            torch.cuda.empty_cache()
    raise AssertionError


def machine(device: torch.device) -> Dict[str, str]:
    def said(*words: str) -> str:
        if not shutil.which(words[0]):
            return f"unknown: there is no {words[0]}"
        return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()

    found = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "commit": said("git", "rev-parse", "HEAD"),
    }
    if device.type != "cuda":
        return {**found, "device": platform.machine(), "threads": str(torch.get_num_threads())}
    driver = said("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return {**found, "device": torch.cuda.get_device_name(), "cuda": str(torch.version.cuda), "driver": driver}


def summary(runs: List[Dict[str, Any]]) -> Dict[str, Dict[str, Any]]:
    found = {}
    for arm in dict.fromkeys(run["arm"] for run in runs):
        own = [run for run in runs if run["arm"] == arm]
        figures = {"nats": [run["nats"] for run in own], "dz": [value for run in own for value in run["dz"]]}
        numbers = {name: [value for value in values if value is not None] for name, values in figures.items()}
        found[arm] = {name: statistics.fmean(values) if values else None for name, values in numbers.items()}
        found[arm]["runs"] = len(own)
    return found


class Series:
    """All programs of the command, their results and the time that is left."""

    def __init__(self, words: argparse.Namespace, begin: float):
        self.words, self.until = words, begin + 60 * words.minutes
        self.device = torch.device(words.device or ("cuda" if torch.cuda.is_available() else "cpu"))
        name = words.dtype or ("bf16" if self.device.type == "cuda" else "f32")
        self.more = {"dtype": {"bf16": torch.bfloat16, "f32": torch.float32}[name]}
        self.settings = settings_of([*SETTINGS, *(REHEARSAL if words.rehearse else ()), *words.set])
        self.seeds, self.longest = words.seeds, 0.0
        names = ("rehearse", "replicas", "seeds", "first", "set", "needed", "fewer")
        registered = [False, REPLICAS, SEEDS, FIRST_SEED, [], NEEDED, FEWER, "cuda", "bf16"]
        chosen = [*(getattr(words, one) for one in names), self.device.type, name]
        self.results: Dict[str, Any] = {
            "machine": machine(self.device),
            "dtype": name,
            "replicas": words.replicas,
            "rehearsal": chosen != registered,
            "settings": {k: v for k, v in self.settings.items() if k in replicas.READ},
            "programs": [],
            "end": "it did not end by itself",
            "runs": [],
        }
        if words.previous:
            self.go_on(json.loads(words.previous.read_text()))

    def go_on(self, old: Dict[str, Any]) -> None:
        """Takes over the runs of earlier results, and the number of seeds that was decided then."""
        for key in ("dtype", "replicas", "rehearsal", "settings"):
            if old[key] != self.results[key]:
                raise SystemExit(f"pairs: {key} of {self.words.previous} is {old[key]}, here it is {self.results[key]}")
        self.results["machine"] = {**self.results["machine"], "before": old["machine"]}
        self.results |= {key: old[key] for key in ("programs", "runs")}
        self.seeds = old.get("seeds", self.seeds)

    def write(self, **more: Any) -> None:
        self.results |= {"seconds": round(time.monotonic() - self.until + 60 * self.words.minutes, 1), **more}
        self.results["arms"] = summary(self.results["runs"])
        self.words.out.mkdir(parents=True, exist_ok=True)
        scratch = self.words.out / "results.json.new"
        scratch.write_text(json.dumps(self.results, separators=(",", ":")) + "\n")
        os.replace(scratch, self.words.out / "results.json")

    def say(self, sentence: str) -> None:
        print(f"{time.monotonic() - self.until + 60 * self.words.minutes:7.1f} s  {sentence}", flush=True)

    def left(self, arms: Sequence[str]) -> Iterator[List[Run]]:
        """Yields the runs of each program that is not done, seed by seed. The number of seeds may fall meanwhile."""
        N, done = self.words.replicas, {(run["arm"], run["seed"]) for run in self.results["runs"]}
        for begin in range(0, self.words.seeds * len(arms), N):
            runs = [(arm, self.words.first + seed) for seed in range(self.seeds) for arm in arms][begin : begin + N]
            if runs and not done.issuperset(runs):
                yield runs

    def arms(self, arms: Sequence[str], of_tokens: bool = False) -> None:
        """Runs the programs of these arms. Raises TimeoutError when no further one would end in time."""
        N, program, word = self.words.replicas, None, ""
        for runs in self.left(arms):
            if program is None:
                program, word = fused(
                    self.settings, self.words.tokens, N, self.device, of_tokens=of_tokens, **self.more
                )
                self.say(f"{', '.join(arms)}: the step is recorded, {word}")
            if time.monotonic() + self.longest > self.until:
                raise TimeoutError(f"the time was over: the next program would have needed {self.longest:.0f} s")
            begin = time.monotonic()
            program.start(runs)
            speed = N * self.steps_tokens / program.train(self.until)
            self.results["programs"].append({"first": runs[0], "tokens_per_s": round(speed), "pieces": word})
            if len(self.results["programs"]) == 1 and speed < self.words.needed:
                self.seeds = min(self.seeds, self.words.fewer)
                self.say(f"below {self.words.needed:,.0f} tokens/s: {self.seeds} seeds")
            self.results["runs"] += program.evaluate()
            self.longest = max(self.longest, time.monotonic() - begin)
            self.write(seeds=self.seeds)
            self.say(f"{runs[0][0]} {runs[0][1]} to {runs[-1][0]} {runs[-1][1]}: {speed:,.0f} tokens/s")

    @property
    def steps_tokens(self) -> int:
        return int(self.settings["train.steps"]) * int(self.settings["data.batch_tokens"])

    def run(self) -> None:
        try:
            self.arms(list(ARMS))
            self.arms(list(BONUS), of_tokens=True)
            end = "all runs were made"
        except TimeoutError as error:
            end = str(error)
        self.write(end=end)
        self.say(end)


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--tokens", type=pathlib.Path, required=True)
    words.add_argument("--out", type=pathlib.Path, default=os.environ.get("OUT"), required="OUT" not in os.environ)
    words.add_argument("--minutes", type=float, default=14)
    words.add_argument("--from", dest="previous", type=pathlib.Path, metavar="RESULTS.json", help="goes on from these")
    words.add_argument("--rehearse", action="store_true")
    words.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    words.add_argument("--seeds", type=int)
    words.add_argument("--first", type=int, default=FIRST_SEED)
    words.add_argument("--replicas", type=int)
    words.add_argument("--needed", type=float, default=NEEDED, help=argparse.SUPPRESS)
    words.add_argument("--fewer", type=int, default=FEWER, help=argparse.SUPPRESS)
    words.add_argument("--device")
    words.add_argument("--dtype", choices=("bf16", "f32"))
    found = words.parse_args(given)
    found.out = pathlib.Path(found.out)
    found.replicas = found.replicas or (2 if found.rehearse else REPLICAS)
    found.seeds = found.seeds or (2 if found.rehearse else SEEDS)
    for arms in (ARMS, BONUS):
        if len(arms) * found.seeds % found.replicas or len(arms) * min(found.seeds, found.fewer) % found.replicas:
            words.error(f"{len(arms)} arms of {found.seeds} seeds are no whole number of programs of {found.replicas}")
    return found


def main(begin: float, given: Sequence[str] | None = None) -> None:
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False  # sums are f32
    Series(arguments(given), begin).run()


if __name__ == "__main__":
    main(BEGIN)
