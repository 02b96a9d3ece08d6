#!/usr/bin/env python3
"""check_tokenizer.py COUPLET: the kept tokenizer of data/ is what its command makes of data/train."""
import os
import subprocess
import sys
import tempfile

with tempfile.TemporaryDirectory() as folder:
    made = os.path.join(folder, "tokenizer.json")
    subprocess.run([sys.argv[1], "tokenize", "train", "--vocab-size", "4096", "--out", made,
                    "data/train"], check=True, stdout=subprocess.DEVNULL)
    with open(made, "rb") as a, open("data/tokenizer.json", "rb") as b:
        if a.read() != b.read():
            sys.exit("data/tokenizer.json is not what the command of data/TOKENIZER.md makes")
