#!/usr/bin/env python3
"""check_bare_device.py ARCHIVE FOLDER: runs the archive of `make device-bundle MODULE=host`, whose module is the
emulation, in a root that has only glibc. Each of its programs runs there, on the device cuda. Prints each command with
its seconds. Needs root or user namespaces."""

import pathlib
import re
import shutil
import sys
import tarfile

from check_bare_wheels import OF_LIBC, PROJECT, copy_to, libraries_of, show

SMALL = (
    "compute.device=cuda compute.dtype=bf16 model.num_hidden_layers=1 model.hidden_size=32 model.intermediate_size=16 "
    "model.num_experts=4 model.num_experts_per_tok=2 model.num_attention_heads=2 model.vocab_size=64 data.seq_len=8 "
    "rates=32 rounds=1"
).split()
GOLDEN = "/project/tests/golden/model/no-erc"


def make_root(root, archive):
    shutil.rmtree(root, ignore_errors=True)
    for name in ("dev", "proc", "tmp", "opt"):
        (root / name).mkdir(parents=True)
    with tarfile.open(archive) as file:
        file.extractall(root / "opt")
    for program in (root / "opt/couplet-device/bin").iterdir():
        for path in libraries_of(program):
            if OF_LIBC.match(pathlib.Path(path).name):
                copy_to(root, path)
    for name in ("configs", "tests/golden/model"):
        shutil.copytree(PROJECT / name, root / "project" / name)


def main():
    archive, root = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]).resolve() / "root"
    make_root(root, archive)
    programs = "/opt/couplet-device/bin"
    loaded = show(root, "the libraries of the program", f"{programs}/couplet", LD_TRACE_LOADED_OBJECTS="1")
    foreign = [
        path
        for path in re.findall(r"=> (\S+) \(", loaded)
        if not path.startswith("/opt/couplet-device/") and not OF_LIBC.match(pathlib.Path(path).name)
    ]
    if foreign or "not found" in loaded:
        sys.exit(f"the program has libraries from elsewhere, or none:\n{loaded}")
    show(root, "couplet version", f"{programs}/couplet", "version")
    grad = f"{programs}/couplet grad {GOLDEN} --tokens {GOLDEN}/tokens.json --out /tmp/grads --set compute.device=cuda"
    show(root, "couplet grad on the device", grad)
    show(root, "test_cuda", f"{programs}/test_cuda", "*, odd sizes", lines=2)
    show(root, "operations", f"{programs}/operations", "/project/configs/tiny.yaml", *SMALL, lines=1)
    shutil.rmtree(root)


if __name__ == "__main__":
    main()
