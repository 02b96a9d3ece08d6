#!/usr/bin/env python3
"""check_ranks_verbs.py COUPLET: eval, inspect --text and tokenize encode over ranks, with each MPI library that is
installed. They give the bytes of one process, also after an interruption and with other ranks. A failure of one rank is
one sentence. Forms that share no work are refused."""

import concurrent.futures
import json
import os
import pathlib
import signal
import sys

sys.path.append("tests/cli")
from check_eval_goes_on import words_of, write_tasks
from inputs import different, files_of, keep_record
from program import COUPLET, apart, check, finish, scratch_folder
from ranks_case import LIBRARIES, Ranks, bad, sentences
from train_case import train, write_corpus

RANKS = {"openmpi": {2: ("ranked", "text", "encode"), 3: None}, "mpich": {2: ("written", "routing", "by-source")}}
ROWS = 1300  # rows of the long task: eleven blocks
BLOCK = 128  # questions of a block
DOCUMENTS = 3000  # more than eleven batches


def write_more(folder):
    """Writes a long task, and a folder of documents of many kinds."""
    rows = (folder / "data/ranked/a.jsonl").read_text().splitlines(True)
    (folder / "data/long").mkdir()
    (folder / "data/long/a.jsonl").write_text("".join(rows[i % len(rows)] for i in range(ROWS)))
    (folder / "long.yaml").write_text((folder / "ranked.yaml").read_text().replace("task: ranked", "task: long"))
    (folder / "other/ranked").mkdir(parents=True)
    (folder / "other/ranked/a.jsonl").write_text("".join(rows[1:]))
    texts = [json.loads(line)["text"] for line in (folder / "docs/one.jsonl").open()]
    (folder / "many").mkdir()
    lines = [json.dumps({"text": texts[i % len(texts)][i % 50 :], "source": f"s{i % 3}"}) for i in range(DOCUMENTS)]
    (folder / "many/a.jsonl").write_text("\n".join(lines[:1000] + ["bad", json.dumps({"text": " "})] + lines[1000:]))
    (folder / "many/b.jsonl").write_text(json.dumps({"text": " ".join(texts) * 300}) + "\n" + lines[0])
    for i in range(5):
        (folder / f"many/t{i}.txt").write_text(texts[i])


# ---- as one process ----


def encode(folder, out, *more):
    return ["tokenize", "encode", "--tokenizer", folder / "T.json", "--out", out, *more, folder / "many"]


def cases(folder):
    """Returns name -> the words of a command that writes into a path."""
    text = [folder / "plain", "--text", folder / "docs", "--json"]
    return {
        "ranked": lambda out: words_of(folder, "ranked", out),
        "written": lambda out: words_of(folder, "written", out),
        "few": lambda out: words_of(folder, "written", out) + ["--limit", 1],
        "text": lambda out: ["eval", *text, out, "--stride", 10],
        "routing": lambda out: ["inspect", *text, out],
        "encode": lambda out: encode(folder, out),
        "by-source": lambda out: encode(folder, out, "--by-source"),
    }


def lines_of(said, out):
    """Returns the printed lines without the path, and without times and memory."""
    return [line for line in said.replace(str(out), "OUT").splitlines() if "MB/s" not in line]


def content(out):
    return {"": out.read_bytes()} if out.is_file() else files_of(out)


def run_alone(folder):
    alone = {}
    for name, words in cases(folder).items():
        out = folder / f"{name}-alone"
        alone[name] = lines_of(apart(*words(out))[0], out)
    return alone


def check_same(folder, library, ranks, names, alone):
    for name in names or alone:
        out = folder / f"{name}-{library}-{ranks}"
        job = Ranks(library, ranks, *cases(folder)[name](out))
        code, said = job.end()
        check(code == 0 and not sentences(said), f"{job.name}: exit {code}: {said[-2000:]}")
        check(lines_of(job.out, out) == alone[name], f"{job.name}: prints {job.out!r}, not {alone[name]}")
        names = code == 0 and different(content(out), content(folder / f"{name}-alone"))
        check(not names, f"{job.name}: not the bytes of one process: {names}")


# ---- interrupted ----


def check_goes_on(folder, library):
    """Resumes from a record of one process, and with other ranks from the record of ranks of which one was killed."""
    whole = (folder / "long-alone").read_bytes()
    out = folder / f"long-{library}"
    partial = pathlib.Path(f"{out}.partial")
    partial.write_text("".join((folder / "long.kept").read_text().splitlines(True)[: BLOCK + 9]))
    job = Ranks(library, 3, *words_of(folder, "long", out))
    code, said = job.end()
    check(code == 0 and f"long: {BLOCK} of {ROWS} answered before" in said, f"{job.name}: exit {code}: {said}")
    check(out.read_bytes() == whole and not partial.exists(), f"{job.name}: other bytes")
    out.unlink()
    job = Ranks(library, 2, *words_of(folder, "long", out))
    job.wait_for(lambda: partial.exists() and partial.read_bytes().count(b"\n") > BLOCK)
    job.send(signal.SIGKILL, 1)
    code, said = job.end(20)
    check(code != 0 and partial.exists() and not out.exists(), f"{job.name}: killed: exit {code}: {said}")
    check(all("rank 1 " in line and "was lost" in line for line in sentences(said)), f"{job.name}: {said}")
    said = apart(*words_of(folder, "long", out))[1]
    check("answered before" in said and out.read_bytes() == whole, f"{job.name}: one process after a kill: {said}")


def check_stopped(folder, library):
    """A signal to one rank ends all ranks and leaves no process."""
    out = folder / f"stopped-{library}"
    job = Ranks(library, 2, *encode(folder, out))
    job.wait_for(out.exists)
    job.send(signal.SIGTERM, 1)
    code, said = job.end()
    check(code == 128 + signal.SIGTERM and len(sentences(said)) == 1, f"{job.name}: exit {code}: {said}")
    check(not out.exists() or not list(out.rglob("*.*")), f"{job.name}: left behind: {said}")


def check_farewell(folder, library):
    """Ctrl-C: the kept answers are reported once."""
    partial = folder / f"farewell-{library}.partial"
    job = Ranks(library, 2, *words_of(folder, "long", folder / f"farewell-{library}"))
    job.wait_for(lambda: partial.exists() and partial.read_bytes().count(b"\n") > BLOCK)
    job.send(signal.SIGINT)
    code, said = job.end()
    told = f"couplet: stopped; the answers so far are kept in {partial}, and the same command goes on from there"
    check(sentences(said) == [told], f"{job.name}: exit {code}: {said}")


# ---- refused ----


def differing(library, words, *others):
    """Runs the words with the last words of rank 0, and those of rank 1."""
    return Ranks(library, 2, parts=[(1, [COUPLET, *words, *other]) for other in others])


def check_ranks_differ(folder, library):
    out, model = folder / f"refused-{library}", folder / "plain"
    task = words_of(folder, "ranked", out)
    data = task.index("--data")
    task = task[:data] + task[data + 2 :]
    own = ["--data", folder / "data"]
    bad(
        1,
        ["rank 1: ", "the questions of ranked", "on rank 0"],
        differing(library, task, own, ["--data", folder / "other"]),
    )
    bad(1, ["rank 1: --data ", "no such folder"], differing(library, task, own, ["--data", folder / "none"]))
    bad(
        1,
        ["rank 1: dtype is", "float32", "bfloat16"],
        differing(library, task, own, [*own, "--set", "compute.dtype=bf16"]),
    )
    bad(
        1,
        ["rank 1: the check sum of the text"],
        differing(library, ["eval", model], ["--text", folder / "docs"], ["--text", folder / "docs/one.jsonl"]),
    )
    bad(
        1,
        ["rank 1: ", "none.jsonl"],
        differing(library, ["inspect", model], ["--text", folder / "docs"], ["--text", folder / "none.jsonl"]),
    )
    words = ["tokenize", "encode", "--tokenizer", folder / "T.json", "--out", out]
    bad(1, ["rank 1: the fingerprint of the inputs"], differing(library, words, [folder / "many"], [folder / "docs"]))
    check(not out.exists(), f"{library}: ranks that differ left {out}")


def check_refused(folder, library):
    out = folder / f"damaged-{library}"
    bad(1, ["many/a.jsonl", "line 1001"], Ranks(library, 2, *encode(folder, out, "--set", "data.bad=stop")))
    limited = ["bash", "-c", 'ulimit -f 20; exec "$@"', "-", COUPLET, *encode(folder, out)]
    bad(1, ["File too large"], Ranks(library, 2, parts=[(2, limited)]))
    check(not out.exists() or not list(out.rglob("*.*")), f"{library}: a failed encode left files")
    there = folder / "ranked-alone"
    bad(1, ["is there already"], Ranks(library, 2, *words_of(folder, "ranked", there)))
    bad(2, ["couplet eval --list runs in one process"], Ranks(library, 2, "eval", "--list"))
    bad(2, ["couplet inspect without --text runs in one process"], Ranks(library, 2, "inspect", folder / "plain"))
    bad(
        2,
        ["couplet tokenize encode --ids runs in one process"],
        Ranks(library, 2, "tokenize", "encode", "--tokenizer", folder / "T.json", "--ids"),
    )


def check_library(folder, library, alone):
    for ranks, names in RANKS[library].items():
        check_same(folder, library, ranks, names, alone)
    check_goes_on(folder, library)
    check_stopped(folder, library)
    check_farewell(folder, library)
    check_ranks_differ(folder, library)
    if library == LIBRARIES[0]:
        check_refused(folder, library)


def run_long(folder):
    """Writes the results of the long task, and its record, which is kept under a second name."""
    keep_record(folder / "long-alone", folder / "long.kept")
    apart(*words_of(folder, "long", folder / "long-alone"))


def main():
    if not LIBRARIES:
        return 77
    os.environ["OMP_NUM_THREADS"] = "1"
    with scratch_folder() as folder:
        write_corpus(folder)
        write_tasks(folder)
        write_more(folder)
        train(folder, "plain")
        run_long(folder)
        alone = run_alone(folder)
        with concurrent.futures.ThreadPoolExecutor(len(LIBRARIES)) as pool:
            list(pool.map(lambda library: check_library(folder, library, alone), LIBRARIES))
    return finish()


if __name__ == "__main__":
    sys.exit(main())
