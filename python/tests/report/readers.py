"""Files that couplet's programs read and that may come from anybody. Each row has a small complete file, and the
arguments with which the program reads it."""

import functools
import gzip
import io
import json
import pathlib
from importlib.util import find_spec
from typing import Callable, NamedTuple

import numpy
from conftest import ROOT
from couplet import plot
from couplet.certify import __main__ as certify
from couplet.compare import __main__ as compare
from couplet.export import __main__ as export
from couplet.export._tensorboard import find_writer
from invented import SIX

HERE = pathlib.Path(__file__).parent
DUMPS = ("z-loss.layers", "erc.some-active", "load-balancing-mixtral.dropped", "gate-weights.some")


def json_of(value):
    return json.dumps(value).encode()


def lines_of(value):
    return b"".join(json_of(one) + b"\n" for one in value)


def page_of(value):
    return b'<script type="application/json" id="couplet-data">%b</script>' % json_of(value)


class Reader(NamedTuple):
    name: str
    program: str
    main: Callable
    file: str  # its place in a test's folder
    words: "list[str]"  # {} stands for the test's folder
    refused: int  # exit code if the file is not usable
    value: object  # the content: bytes, or the value of a JSON text
    write: Callable = bytes  # the function from the value to bytes
    pack: Callable = bytes
    prepare: Callable = lambda folder: None  # writes the other files
    optional: bool = False  # the file may be absent
    share: int = 1  # every share-th of the damages is tried, because a try takes long

    @property
    def whole(self):
        return self.pack(self.write(self.value))

    def with_text(self, text):
        """Returns the file with another JSON text in the place of "@@" in its value."""
        return self.pack(self.write(self.value).replace(b'"@@"', text.encode()))

    def path(self, folder, name=None):
        """Writes the other files, and returns the path of this file, which is absent, under its own or another name."""
        self.prepare(folder)
        path = folder / (name or self.file)
        path.unlink(missing_ok=True)
        return path

    def words_in(self, folder, name=None):
        return [word.replace("{}", str(folder)).replace(self.file, name or self.file) for word in self.words]


# ---- runs ----


RUN = SIX[4]._replace(name="run", last=2, steps=2)
DOCUMENTS = [{"source": "ab"[i % 2], "id": f"d{i}", "bytes": 100 + i, "tokens": 30, "nll": 50 + i} for i in range(4)]
BESIDE = {
    "documents.json": {"step": 2, "window": 8, "documents": DOCUMENTS},
    "questions.json": {"results": {"quiz": {"metrics": {"acc": 0}, "samples": [{"id": 1, "correct": {"acc": 1}}] * 2}}},
}
START = {"data": "a", "val_loss": 8.5, "eps_mean": [0.25], "val_loss_by_source": {"c": 9}}
LINES = [{**RUN.line(step), "made_with": {"dtype": "bf16"}} for step in (1, 2)]
CONFIG = b'# a run\ntrain:\n    steps: 2\n    seed: 1\ndata:\n    train: [/a, "b"]\n    batch_tokens: 100\nerc:\n    weight: 1\n'


def two_runs(folder, packed=False):
    for one in (RUN, SIX[0]._replace(name="other", last=2, steps=2)) if not (folder / "run").exists() else ():
        made = one.write(folder)
        for name, value in BESIDE.items():
            (made / name).write_bytes(json_of(value))
    if packed:  # a plain file is preferred to a packed one
        (folder / "run" / "metrics.jsonl").unlink(missing_ok=True)


def one_run(folder, packed=False):
    (folder / "run").mkdir(exist_ok=True)
    (folder / "run" / "config.yaml").write_bytes(CONFIG)
    if not packed:
        (folder / "run" / "metrics.jsonl").write_bytes(lines_of(LINES))


def of_run(program, main, name, words, refused, value, write, beside, **more):
    """Returns the row of a file of a run."""
    packed = name.endswith(".gz")
    pack = functools.partial(gzip.compress, mtime=0) if packed else bytes
    prepare = functools.partial(beside, packed=packed)
    return Reader(
        f"{program} {name}", program, main, f"run/{name}", words, refused, value, write, pack, prepare, **more
    )


def of_compare(name, value, write=bytes, refused=1, **more):
    words = ["{}/other", "{}/run", "--no-documents", "--json", "{}/c.json", "--overwrite"]
    return of_run("couplet.compare", compare.main, name, words, refused, value, write, two_runs, **more)


def of_tensorboard(name, value, write=bytes):
    words = ["tensorboard", "{}/run", "--out", "{}/events"]
    return of_run("couplet.export", export.main, name, words, 1, value, write, one_run, share=2)


# ---- the table ----


def results():
    """Returns results with one task of options and two tasks of texts."""
    ours = json.loads(gzip.decompress((HERE.parent / "export" / "evaluation" / "own.json.gz").read_bytes()))
    return {**ours, "results": {name: ours["results"][name] for name in ("arc_challenge", "gsm8k", "triviaqa")}}


def rows_of_gates():
    made = numpy.zeros(8, [("layer", "<i4"), ("expert", "<i4"), ("row", "<f4", (3,))])
    made["row"] = numpy.arange(24).reshape(8, 3) % 7
    numpy.save(file := io.BytesIO(), made)
    return file.getvalue()


def page():
    page = json.loads((HERE / "page.json").read_text(encoding="utf-8"))
    return {
        **page,
        "report": {**page["report"]["checkpoints"][0], "layers": page["report"]["checkpoints"][0]["layers"][:2]},
    }


def readers():
    for name in DUMPS:
        blob = (ROOT / "python" / "conformance" / f"{name}.safetensors").read_bytes()
        yield Reader(f"certify {name}", "couplet.certify", certify.main, "f.safetensors", ["{}/f.safetensors"], 2, blob)
    if plot.can_draw():
        draw = ("couplet.plot", plot.main)
        words = ["{}/f.json", "--out", "{}/out"]
        few = [*words, "--only", "z-score,coupling-0"]
        yield Reader("plot report", *draw, "f.json", few, 1, page()["report"], json_of, share=40)
        yield Reader("plot page", *draw, "f.html", ["{}/f.html", *few[1:]], 1, page(), page_of, share=80)
    if plot.can_draw() and find_spec("sklearn"):
        words = ["--tsne", "{}/r.npy", "--out", "{}/p.svg"]
        yield Reader("plot --tsne", *draw, "r.npy", words, 1, rows_of_gates(), share=80)
    yield of_compare("config.yaml", CONFIG, share=2)
    yield of_compare("metrics.jsonl", LINES, lines_of, optional=True, share=4)
    yield of_compare("metrics.jsonl.gz", LINES, lines_of, optional=True, share=4)
    yield of_compare("start.json", START, json_of, optional=True, share=2)
    for name, value in BESIDE.items():
        yield of_compare(name, value, json_of, 0, optional=True, share=8)
    words = ["lm-eval", "{}/f.json", "--out", "{}/out"]
    yield Reader("export lm-eval", "couplet.export", export.main, "f.json", words, 1, results(), json_of)
    if find_writer():
        yield of_tensorboard("config.yaml", CONFIG)
        yield of_tensorboard("metrics.jsonl", LINES, lines_of)
        yield of_tensorboard("metrics.jsonl.gz", LINES, lines_of)


READERS = {one.name: one for one in readers()}
