"""train_case.py: what the end-to-end tests of training share: a small corpus, a tokenizer, a
configuration, the program with its checks, and runs that are read back."""
import json
import os
import pathlib
import random
import subprocess
import sys

COUPLET = os.path.abspath(sys.argv[1])
GOLDEN = pathlib.Path("tests/golden").resolve()
TIMING = ("tokens_per_s", "peak_share", "step_s", "memory_bytes")
wrong = []

CONFIG = """\
model:
    hidden_size: 16
    intermediate_size: 8
    num_hidden_layers: 2
    num_attention_heads: 2
    num_experts: 4
    num_experts_per_tok: 2
    max_position_embeddings: 64
data:
    train: docs
    validation: docs/two.jsonl
    tokenizer: T.json
    seq_len: 16
    batch_tokens: 64
train:
    steps: 12
    lr: 1e-2
    warmup_steps: 2
compute:
    threads: 2
    dtype: f32
checkpoint:
    every: 4
eval:
    every: 6
    max_sequences: 3
log:
    every: 1
"""


def check(truth, what):
    if not truth:
        wrong.append(what)


def said(words):
    return "couplet " + " ".join(map(str, words))


def run(*words, cwd=None, limit_blocks=None):
    """Output, error and exit code; `limit_blocks`: no file may grow beyond so many KiB."""
    command = [COUPLET, *map(str, words)]
    if limit_blocks is not None:
        command = ["bash", "-c", f'ulimit -f {limit_blocks}; exec "$@"', "-", *command]
    done = subprocess.run(command, capture_output=True, check=False, timeout=300, cwd=cwd)
    out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    sound = "Sanitizer" not in err and "runtime error" not in err
    check(sound and done.returncode in (0, 1, 2),
          f"{said(words)}: exit {done.returncode}: {err[-2000:]}")
    check(done.returncode == 0 or err.splitlines()[-1:] and err.splitlines()[-1].startswith("couplet: "),
          f"{said(words)}: no sentence: {err!r}")
    return out, err, done.returncode


def good(*words, **how):
    out, err, code = run(*words, **how)
    check(code == 0, f"{said(words)}: exit {code}: {err}")
    return out + err


def bad(code, parts, *words, **how):
    """A failure: this exit code and one last sentence that has all the parts."""
    out, err, got = run(*words, **how)
    last = err.strip().splitlines()[-1] if err.strip() else ""
    parts = [parts] if isinstance(parts, str) else parts
    fits = got == code and last.startswith("couplet: ") and all(part in last for part in parts)
    check(fits, f"{said(words)}: exit {got}, {err!r}; wanted {code} and {parts!r}")
    return out + err


def write_corpus(folder):
    """Two sources of invented words, the same for everyone."""
    numbers = random.Random(1)
    words = ["".join(numbers.choice("abcdefghij") for _ in range(numbers.randint(2, 6)))
             for _ in range(60)]
    (folder / "docs").mkdir()
    for source, count in (("one", 30), ("two", 60)):
        lines = [json.dumps({"id": f"{source}{i}", "source": source,
                             "text": " ".join(numbers.choice(words[:count]) for _ in range(60))})
                 for i in range(40)]
        (folder / "docs" / f"{source}.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "c.yaml").write_text(CONFIG)
    good("tokenize", "train", "--vocab-size", 300, "--min-frequency", 1, "--out",
         folder / "T.json", folder / "docs")


def train(folder, name, *sets, **how):
    """A new run of c.yaml in folder/name, with these settings; gives the folder back."""
    words = [word for one in sets for word in ("--set", one)]
    good("train", folder / "c.yaml", "--out", folder / name, *words, **how)
    return folder / name


def sets(*settings):
    return [word for one in settings for word in ("--set", one)]


def metrics(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def untimed(lines):
    return [{key: value for key, value in line.items() if key not in TIMING} for line in lines]


def checkpoints(folder):
    return sorted(path.name for path in folder.glob("step-*"))


def bytes_of(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def without_settings(files):
    """The files of a checkpoint but for its settings and the check sum that covers them."""
    state = json.loads(files["state.json"])
    del state["settings"]
    return {name: content for name, content in files.items()
            if name not in ("state.json", "checksums.json")} | {"state.json": state}


def same_run(a, b, what, same_settings=True):
    """Bit for bit: the losses of every line and everything in the last checkpoint."""
    x, y = untimed(metrics(a)), untimed(metrics(b))
    check(len(x) == len(y), f"{what}: {len(x)} and {len(y)} lines of metrics")
    for one, other in zip(x, y):
        different = [key for key in one if one[key] != other.get(key)]
        check(one == other, f"{what}: step {one['step']} differs in {different}")
    check(os.readlink(a / "last") == os.readlink(b / "last"), f"{what}: `last` differs")
    one, other = bytes_of(a / "last"), bytes_of(b / "last")
    starts = untimed([json.loads((run / "start.json").read_text()) for run in (a, b)])
    if not same_settings:
        one, other = without_settings(one), without_settings(other)
        for start in starts:
            del start["settings"]
    different = [name for name in one if one[name] != other.get(name)]
    check(one == other, f"{what}: the last checkpoints differ in {different}")
    check(starts[0] == starts[1], f"{what}: start.json differs")


def whole(folder, what):
    """Nothing half-written is left, and `last` leads to a checkpoint that verifies."""
    left = [str(path) for path in folder.rglob("*") if ".tmp-" in path.name]
    check(not left, f"{what}: left over: {left}")
    check((folder / "last" / "checksums.json").exists(), f"{what}: `last` leads nowhere")


def tensors_of(path):
    """Name -> (shape, numbers) of an F32 safetensors file."""
    import array
    raw = path.read_bytes()
    header = int.from_bytes(raw[:8], "little")
    table = json.loads(raw[8:8 + header])
    table.pop("__metadata__", None)
    data = raw[8 + header:]
    return {name: (entry["shape"], array.array("f", data[slice(*entry["data_offsets"])]))
            for name, entry in table.items()}


def finish():
    for sentence in wrong:
        print(sentence)
    return len(wrong) > 0
