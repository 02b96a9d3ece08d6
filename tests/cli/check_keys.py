#!/usr/bin/env python3
"""check_keys.py COUPLET: the members of the JSON of inspect, eval and plan, and the tensors of grad, are those that the
program of d6841828 wrote, without those of GONE and with those of CAME.

With --write FILE it lists the members that COUPLET writes, in FILE. tests/golden/keys.json.gz is the list of
d6841828."""

import gzip
import json
import pathlib
import re
import sys

from inputs import GOLDEN, config, read_tensors
from program import check, finish, good, in_json, scratch_folder
from train_case import train, write_corpus

MODEL, OTHER = GOLDEN / "eval" / "model", GOLDEN / "model" / "base"
TASKS = {
    "inloop": "arc_challenge,boolq,copa,mmlu,triviaqa",
    "harness": "arc_challenge,agieval,mmlu_pro,math,gsm8k,triviaqa",
    "olmes": "arc_challenge,boolq,hellaswag,sciq",
}
ROWS = ("--data", GOLDEN / "eval" / "data", "--limit", "1", "--samples", "--max-gen-toks", "8")
CAME = {  # read by pages and couplet.export; of plan: with the GPU, and with latent experts
    "inspect": r"\.(state|summary|coupled_layers|quantiles|verdict|load_evenness|router_evenness|standard_error|mean_token)\b",
    "eval": r"^\.(conclusion|eot_token_id|program|warnings)\b|\.(forms|group_list|headline_of|reported|rows|summary)\b",
    "plan": r"\.(activations|gpu|latent_dim|bytes\.(device|evaluation|host)|time\.(attention\w*|traffic_s))$",
}

GONE = {  # docs/formats.md, "What went after 0.1.0"
    "inspect, sampled": r"\.sample\..*(bounds|\.z|\.low|\.high)\b|\.expert_norm\b",
    "inspect, text": r"\.(halves|next_ids|examples|tokens_M\.(erc|all|all_scaled|offdiag|centred_offdiag))\b",
}


def cases(folder):
    """Yields the name of each case and its members."""
    write_corpus(folder)
    run = train(folder, "run", "train.steps=4", "checkpoint.every=1", "eval.every=2")
    text = ("--text", folder / "docs")
    some = ("--alpha", "0.5,1", "--noise", "3")
    yield "inspect", in_json("inspect", MODEL)
    yield "inspect, all figures", in_json("inspect", MODEL, "--silhouette", "--lambda", *some)
    yield "inspect, sampled", in_json("inspect", MODEL, "--sample", "0.5")
    yield "inspect, two", in_json("inspect", MODEL, OTHER, "--layers", "0")
    yield "inspect, text", in_json("inspect", run, *text, "--text-tokens", "2000")
    yield "eval, text", in_json("eval", run, *text)
    for profile, tasks in TASKS.items():
        yield f"eval, {profile}", in_json("eval", MODEL, "--tasks", tasks, *ROWS, "--profile", profile)
    (folder / "ids.json").write_text('{"input_ids": [[1, 2, 3, 4], [5, 6, 7, 8]]}')
    for name, more in (("", ()), (", all losses", ("--set", "orth.weight=1", "--set", "z.weight=1"))):
        good("grad", run, "--tokens", folder / "ids.json", "--out", folder / "g", "--overwrite", *more)
        yield f"grad{name}", dict.fromkeys(read_tensors(folder / "g"))
    (folder / "plan.yaml").write_text(config())
    yield "plan", in_json("plan", folder / "plan.yaml")
    speeds = ("--flops-per-second", "1e9", "--expert-parallel", "2")
    yield "plan, ranks", in_json("plan", folder / "plan.yaml", "--ranks", "4", *speeds)


def paths(value, path=""):
    """Returns the paths of every member, and of every member of an element of a list."""
    inner = [(f".{key}", one) for key, one in value.items()] if isinstance(value, dict) else []
    inner += [("[]", one) for one in value] if isinstance(value, list) else []
    return {path}.union(*(paths(one, path + step) for step, one in inner))


def main():
    with scratch_folder() as folder:
        found = {name: sorted(paths(members)) for name, members in cases(folder)}
    if "--write" in sys.argv:
        text = json.dumps(found, indent=0)
        pathlib.Path(sys.argv[-1]).write_bytes(gzip.compress(text.encode(), mtime=0))
        return finish()
    want = json.loads(gzip.decompress((GOLDEN / "keys.json.gz").read_bytes()))
    check(found.keys() == want.keys(), f"cases {found.keys() ^ want.keys()}")
    for name, members in found.items():
        came, gone = re.compile(CAME.get(name.split(",")[0], "$^")), re.compile(GONE.get(name, "(?!)"))
        known = {one for one in want.get(name, ()) if not gone.search(one)}
        lost, more = known - set(members), [one for one in members if one not in known and not came.search(one)]
        check(not lost and not more, f"{name}: without {sorted(lost)}, with {more}")
    return finish()


if __name__ == "__main__":
    sys.exit(main())
