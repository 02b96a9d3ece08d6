#!/usr/bin/env python3
"""check_tokenizer.py COUPLET: the kept tokenizer of data/ is the one that its command makes of data/train. Every verb
that reads texts warns once of the parts of a tokenizer.json that it ignores."""

import json
import pathlib
import sys

from program import apart, check, equal, finish, good, scratch_folder
from train_case import write_corpus


def check_ignored(folder):
    """The tokenizer of a trained model was used with truncation and padding by Transformers."""
    write_corpus(folder)
    tokenizer, text = folder / "T.json", folder / "docs"
    model, ids = folder / "run", {"data": b"The wheel turned, they'd say."}
    encode = "tokenize", "encode", "--tokenizer", tokenizer
    plain = apart(*encode, "--ids", **ids)[0]
    limits = {"truncation": {"max_length": 2}, "padding": {"strategy": {"Fixed": 9}}}
    tokenizer.write_text(json.dumps({**json.loads(tokenizer.read_text()), **limits}))
    check(apart(*encode, "--ids", **ids)[0] == plain, "truncation or padding changes ids")
    for words in (
        (*encode, "--ids"),
        (*encode, "--out", folder / "shards", text),
        ("train", folder / "c.yaml", "--out", model),
        ("eval", model, "--text", text),
        ("inspect", model, "--text", text),
        ("generate", model, "--prompt", "The", "--tokens", 2),
    ):
        told = apart(*words, **ids)[1].count(
            "truncation is ignored, and texts keep all of their ids; padding is ignored"
        )
        check(told == 1, f"{words[:2]}: told {told} times what is ignored")


with scratch_folder() as folder:
    made = folder / "tokenizer.json"
    good("tokenize", "train", "--vocab-size", 4096, "--out", made, "data/train")
    equal(
        made.read_bytes(),
        pathlib.Path("data/tokenizer.json").read_bytes(),
        "data/tokenizer.json is not what the command of data/TOKENIZER.md makes",
    )
    check_ignored(folder)
sys.exit(finish())
