#!/usr/bin/env python3
"""check_tokenizer.py COUPLET: the kept tokenizer of data/ is what its command makes of data/train."""
import pathlib
import sys

from program import check, finish, good, scratch_folder

with scratch_folder() as folder:
    made = folder / "tokenizer.json"
    good("tokenize", "train", "--vocab-size", 4096, "--out", made, "data/train")
    check(made.read_bytes() == pathlib.Path("data/tokenizer.json").read_bytes(),
          "data/tokenizer.json is not what the command of data/TOKENIZER.md makes")
sys.exit(finish())
