#!/usr/bin/env python3
"""check_certify.py COUPLET: `couplet certify` over dumps made of the reference's cases: exit codes,
words, JSON, and files that are no dumps."""
import array
import json
import sys

import program
from inputs import GOLDEN, dump_of, read_json, write_tensors
from program import check, finish, scratch_folder

ERC = GOLDEN / "erc"


def run(*words):
    out, err, code = program.run("certify", *words)
    return out, err.strip(), code


def times(tensor, factor):
    numbers = array.array("d", tensor[2])
    return tensor[0], tensor[1], array.array("d", [factor * x for x in numbers]).tobytes()


def right(folder):
    dump = write_tensors(folder / "right.safetensors", dump_of("basic"))
    out, err, code = run(dump)
    check(code == 0 and err == "", f"a right dump: exit {code}, {err}")
    for part in ("n 8, d 24, D 40, alpha 1", "right: loss, M and gradients", "would not show"):
        check(part in out, f"no {part!r} in {out!r}")
    out, err, code = run(dump, "--json", "-")
    told = json.loads(out)
    check(told["verdict"] == "right" and told["faults"] == [] and told["rounding"] == "f32",
          f"JSON of a right dump: {told}")
    check(told["figures"]["dR"]["distance"] < 1e-6, f"figures: {told['figures']}")
    out, err, code = run(dump, "--json", folder / "right.json")
    check(code == 0 and "right: " in out and
          read_json(folder / "right.json") == told, "--json FILE differs from -")
    check(f"json: {folder}/right.json" in out.splitlines(), f"not said where the JSON is: {out}")
    out, err, code = run(dump, "--json", folder / "right.json")
    check(code == 1 and "--overwrite" in err and not out, f"a result that is there: {code} {err}")
    check(run(dump, "--json", folder / "right.json", "--overwrite")[2] == 0, "--overwrite")
    return dump


def faults(folder):
    tensors = dump_of("basic")
    del tensors["dR"]
    out, err, code = run(write_tensors(folder / "detached.safetensors", tensors))
    check(code == 1 and "is not right: the router gets no gradient" in err, f"{code}: {err}")
    check("fault router_detached: " in out and "To fix it: use router.weight itself" in out, out)
    tensors = dump_of("basic")
    for name in ("loss", "dR", "dW_g"):
        tensors[name] = times(tensors[name], 8 / 7)
    out, err, code = run(write_tensors(folder / "pairs.safetensors", tensors), "--json", "-")
    told = json.loads(out)
    check(code == 1 and [f["key"] for f in told["faults"]] == ["pairs_mean"], f"{code}: {told}")
    check("n (n - 1)" in err, err)
    tensors["dR"] = times(tensors["dR"], -3)
    out, err, code = run(write_tensors(folder / "nonsense.safetensors", tensors))
    check(code == 1 and "no known fault" in err and "Nearest: " in out, f"{code}: {err}\n{out}")


def no_dumps(folder, dump):
    for words, code, part in (
            ((folder / "absent.safetensors",), 1, "absent.safetensors"),
            ((ERC / "cases.json",), 1, "cases.json"),
            ((ERC / "basic.safetensors",), 1, "did you mean dW_g?"),
            ((dump, "--json", dump), 1, "right.safetensors"),
            ((dump, "--json", folder / "no" / "x.json"), 1, "there is no folder"),
            ((dump, "--json", folder), 1, "is a folder"),
            ((), 2, "DUMP"), ((dump, "--jsn", "x"), 2, "--json")):
        out, err, got = run(*words)
        check(got == code and part in err and len(err.splitlines()) == 1,
              f"{words}: exit {got}, {err!r}; wanted {code}, {part!r}")
    damaged = folder / "damaged.safetensors"
    whole = dump.read_bytes()
    for at in range(0, len(whole), max(1, len(whole) // 40)):
        damaged.write_bytes(whole[:at])
        out, err, got = run(damaged)
        check(got == 1 and "damaged.safetensors" in err, f"cut at {at}: exit {got}, {err!r}")


def main():
    with scratch_folder() as folder:
        dump = right(folder)
        faults(folder)
        no_dumps(folder, dump)
    return finish()


if __name__ == "__main__":
    sys.exit(main())
