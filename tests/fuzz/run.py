#!/usr/bin/env python3
"""run.py seeds|fuzz PROGRAM [--seconds N] [--jobs J] [--corpus FOLDER] [TARGET...]: runs the targets of targets.c.

seeds  gives each target its seeds, of which it must accept some. PROGRAM is built without libFuzzer.
fuzz   runs each target on seeds and on the inputs that earlier runs found in FOLDER (build/fuzz-corpus).
       An input that ends a target is kept in FOLDER too, and the exit code is 1."""

import argparse
import concurrent.futures
import gzip
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests/golden"
LIMITS = ["-rss_limit_mb=1500", "-timeout=10", "-print_final_stats=1", "-verbosity=0"]
DOCUMENT = b'{"id":"a","source":"s","text":"The wheel \\u00e9\\ud83d\\ude00 turns."}\n{"text":"\\n"}\n'
ROWS = (
    b'{"a":"\\u00e9","b":[1,-2.5e3,null]}\n\n{}\n',
    b'[{"a":"]}"}, {"b":[1,{"c":null}]}]\n',
    b'{"a":[{}],"Data":[{"a":1},{"b":"\\n"}]}',
    b'a,b\r\n1,"x,""y""\n"\n\n,it"s\n',
    b'a\tb\n1\t"2\r\n',
    b'q,"a\nb",D\n1,2,3\n',
    b"1\n\n2\r\n3",
)


def files(*patterns):
    """Returns the small files of the checkout with these names."""
    return [
        path.read_bytes()
        for pattern in patterns
        for path in sorted(ROOT.glob(pattern))
        if path.stat().st_size < 1 << 16
    ]


SEEDS = {
    "safetensors": lambda: files("tests/golden/gguf/*.safetensors", "tests/golden/model/base/*.safetensors"),
    "gguf": lambda: files("tests/golden/gguf/*.gguf"),
    "index": lambda: [b'{"metadata":{"total_size":2},"weight_map":{"a":"one.safetensors","b":"one.safetensors"}}'],
    "tokenizer": lambda: files("tests/golden/tokenizers/small.json"),
    "json": lambda: [b'{"text":"a\\u00e9\\n\\ud83d\\ude00","a":{"b":-1.5e3},"n":7,"x":[null,true,{"y":[]}]}'],
    "yaml": lambda: files("configs/*.yaml", "data/eval/tasks/gsm8k.yaml"),
    "task": lambda: files("data/eval/tasks/*.yaml"),
    "pattern": lambda: [
        b"#### (-?[0-9.,]+)\na #### 42",
        b"(?i)(?:answer is|=)\\s*\\(?([A-D])\\b\nThe answer is (B).",
        b"\\\\boxed\\{((?:[^{}]|\\{[^{}]*\\})*)\\}\n\\boxed{\\frac{1}{2}} \xc3\xa9 \xff",
    ],
    "hub": lambda: [
        b'{"sha":"%s","siblings":[{"rfilename":"config.json"},{"rfilename":"a/b.safetensors"}]}' % (b"0" * 40)
    ],
    "rows": lambda: (
        [bytes([kind, 0]) + text for kind, text in enumerate(ROWS)] + [bytes([0, 1]) + gzip.compress(ROWS[0], mtime=0)]
    ),
    "documents": lambda: [
        b"\0" + DOCUMENT,
        b"\1A text.\n<|endoftext|>\nAnother.\n",
        b"\4" + DOCUMENT,
        b"\2" + gzip.compress(DOCUMENT, mtime=0),
    ],
}


def prepare(folder, program, target):
    """Makes a working folder with the program under the name of the target, and its seeds."""
    work = pathlib.Path(folder, target)
    (work / "seeds").mkdir(parents=True)
    (work / target).symlink_to(pathlib.Path(program).resolve())
    for i, seed in enumerate(SEEDS[target]()):
        (work / "seeds" / str(i)).write_bytes(seed)
    return work, sorted(map(str, (work / "seeds").iterdir()))


def try_seeds(folder, options, target):
    work, seeds = prepare(folder, options.program, target)
    done = subprocess.run([work / target, *seeds], cwd=work, capture_output=True, text=True, check=False)
    good = done.returncode == 0 and int(done.stdout) > 0
    return good, f"{target}: {done.stdout.strip()} of {len(seeds)} seeds accepted\n{done.stderr}"


def fuzz(folder, options, target):
    work, _ = prepare(folder, options.program, target)
    corpus = pathlib.Path(options.corpus, target).resolve()
    corpus.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [
            work / target,
            f"-max_total_time={options.seconds}",
            f"-artifact_prefix={corpus}.",
            *LIMITS,
            corpus,
            work / "seeds",
        ],
        cwd=work,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    said = dict(
        line.removeprefix("stat::").split(":") for line in done.stderr.splitlines() if line.startswith("stat::")
    )
    if done.returncode:
        return False, f"{target}: exit code {done.returncode}\n{done.stderr[-6000:]}"
    return (
        True,
        f"{target:12} {int(said['number_of_executed_units']):>10,} inputs, {len(list(corpus.iterdir())):,} kept",
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("seeds", "fuzz"))
    parser.add_argument("program")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--corpus", default=str(ROOT / "build/fuzz-corpus"))
    parser.add_argument("targets", nargs="*", metavar="TARGET")
    options = parser.parse_intermixed_args()
    one = try_seeds if options.what == "seeds" else fuzz
    bad = 0
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for good, said in pool.map(lambda target: one(folder, options, target), options.targets or SEEDS):
            print(said, flush=True)
            bad += not good
    listed = subprocess.run([options.program], capture_output=True, text=True, check=False).stdout.split()
    if sorted(listed) != sorted(SEEDS):
        print(f"targets.c has {sorted(listed)}, run.py has seeds of {sorted(SEEDS)}")
        bad += 1
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
