#!/usr/bin/env python3
"""check_verbs.py COUPLET: plan, tokenize and generate from end to end, on their own small inputs: their printed lines
and their files. Wrong uses are in wrong.txt."""

import gzip
import json
import math
import pathlib
import shutil
import sys

from inputs import GOLDEN, TRAIN_TOKENIZER, files_of, read_json
from program import apart, bad, check, equal, finish, in_json, output, run, run_bytes, same, says, scratch_folder

CONFIGS = pathlib.Path("configs").resolve()


# ---- plan ----


def plan(config, *words):
    return in_json("plan", config, *words)


def fits(got, want):
    return math.isclose(got, want, rel_tol=1e-12)


# The reference's dp are the devices that read their own data. Here all ranks do.
RENAMED = {
    "dp": "ranks",
    "ep": "expert_parallel",
    "base_token_equivalents_per_device": "base_token_equivalents_per_rank",
    "erc_token_equivalents_per_device": "erc_token_equivalents_per_rank",
}
SPEED = ("--flops-per-second", "4e14")


def check_plan_of_ranks():
    """Checks flags, figures that agree with each other, and the sentences of training if ranks do not fit."""
    config = CONFIGS / "paper-15b.yaml"
    one = plan(config, *SPEED)
    many = plan(config, "--ranks", 32, "--expert-parallel", 8, *SPEED)
    same_mesh = plan(config, "--ranks", 32, "--set", "dist.expert_parallel=8", *SPEED)
    check(many == same_mesh, "--expert-parallel is not dist.expert_parallel")
    check(plan(config)["time"] is None, "a time without a speed")
    check((many["ranks"], many["expert_parallel"], many["data_parallel"]) == (32, 8, 4), "the mesh")
    check(many["micro_batches"] == 736 / 32, "micro-batches of a rank")
    check(many["bytes"]["total"] < one["bytes"]["total"] / 4, "the memory of a rank of 32")
    check(one["bytes"]["worst"] == one["bytes"]["total"], "one rank has no worst case")
    terms, time = many["sent"], many["time"]
    for name, term in terms.items():
        seconds = term["messages"] * time["latency_s"] + term["bytes"] / time["bytes_per_second"]
        check(fits(term["s"], seconds) and 0 <= term["exposed_s"] <= term["s"], f"the time of {name}")
    check(terms["exchange"]["worst_bytes"] > 2 * terms["exchange"]["bytes"], "the worst exchange")
    parts = [time[part] for part in ("compute_s", "update_s", "copies_s")]
    exposed = [term["exposed_s"] for term in terms.values()]
    check(math.isclose(time["step_s"], sum(parts + exposed), rel_tol=1e-9), "the step")
    check(
        fits(one["time"]["efficiency"], 1) and not any(term["bytes"] for term in one["sent"].values()), "one rank sends"
    )
    check(fits(time["efficiency"], one["time"]["step_s"] / 32 / time["step_s"]), "efficiency")
    slow = plan(config, "--ranks", 32, "--expert-parallel", 8, "--bandwidth", 1, "--latency", 1000, *SPEED)
    check(
        fits(slow["time"]["bytes_per_second"], 1.25e8) and fits(slow["time"]["latency_s"], 1e-3),
        "the units of --bandwidth and --latency",
    )
    check(slow["time"]["step_s"] > time["step_s"], "a slow network costs nothing")
    table = output("plan", config, "--ranks", 32, "--expert-parallel", 8).decode()
    check("rank 0 of 32" in table and "efficiency" in table, "the table of 32 ranks")
    out, err = apart("plan", config, "--ranks", 64, "--expert-parallel", 8, *SPEED)  # the paper's C.2
    check("0.7246 %" in out and "free memory: " in out, f"the paper's ranks: {out}")
    says(
        err,
        ["736 sequences, which do not divide among 64 ranks; data.batch_tokens=2883584 or 3145728 does"],
        "the paper's ranks",
    )


def check_plan_of_gpus():
    """Checks which models fit on which GPU, and the time from the assumed rates by the formula of docs/scale.md."""
    norms, large = ("--set", "train.recompute=norms"), ("--set", "data.batch_tokens=2949120")
    for name, gpu, words, most in (
        ("paper-3b", "h100", (), 8),
        ("paper-3b", "a100", (), 8),
        ("paper-3b", "a100-40gb", (), 0),
        ("paper-3b", "h100", (*norms, *large), 10),
        ("paper-3b", "h200", (), 23),
        ("paper-3b", "h100", ("--set", "compute.activations=f32"), 4),
        ("olmoe-1b-7b", "h200", norms, 4),
        ("olmoe-1b-7b", "h100", (), 0),
    ):
        got = plan(CONFIGS / f"{name}.yaml", "--gpu", gpu, *words)
        equal(
            (got["gpu"]["largest_micro_batch"], got["gpu"]["fits"], got["dtype"]),
            (most, most > 0, "bf16"),
            f"{name} on {gpu} {words}",
        )
    for name, gpu, micro, words, gib in (("paper-3b", "h100", 8, (), 76.1), ("olmoe-1b-7b", "h200", 4, norms, 134.8)):
        got = plan(CONFIGS / f"{name}.yaml", "--gpu", gpu, "--set", f"train.micro_batch={micro}", *words)
        bytes_ = got["bytes"]
        check(round(bytes_["total"] / 2**30, 1) == gib, f"{name}: {bytes_}")
        says(
            (CONFIGS / f"{name}.yaml").read_text(),
            [f"{micro} sequences at once, {gib} of"],
            f"{name}.yaml says another size",
        )
        state = sum(bytes_[part] for part in ("weights", "compute_copies", "gradients", "moments"))
        check(math.isclose(state, 18 * got["total_parameters"], rel_tol=1e-3), f"18 bytes a parameter: {state}")
    time, b = got["time"], 2
    L, d, D, K, T = (got[key] for key in "LdDKT")
    attention = 3 * T * L * 4 * d * (got["seq_len"] + 1) / 2
    moved = 3 * T * (L * b * (18 * d + 3 * K * D + 2 * (K + 1) * d) + 10 / 3 * got["V"])
    want = (got["rank_flops"] - attention) / (0.4 * 989e12) + attention / (0.3 * 989e12) + moved / (0.75 * 4800e9)
    check(math.isclose(time["compute_s"], want, rel_tol=1e-9), f"the time on a GPU: {time}, wanted {want}")
    check(math.isclose(time["update_s"], 30 * got["total_parameters"] / (0.75 * 4800e9), rel_tol=1e-9), "its update")
    config = CONFIGS / "paper-3b.yaml"
    own = plan(config, "--gpu", "h100", *SPEED, "--memory-bandwidth", 2000)["time"]
    equal((own["flops_per_second"], own["traffic_s"], own["memory_bytes_per_second"]), (4e14, 0, 2e12), "given")
    check(plan(config, "--gpu", "h100", "--set", "compute.dtype=f32")["time"] is None, "f32 has no published rate")
    check(plan(config)["gpu"] is None, "a GPU on the CPU")
    check("assumed of" not in output("plan", config, "--gpu", "h100", *SPEED).decode(), "assumed, though it was given")
    short = output("plan", config, "--gpu", "h100", "--tokens", 100).decode()
    check("enough for this run" in short and "no micro-batch" not in short, short[-300:])
    table = output("plan", config, "--gpu", "l40s").decode()
    assumed = "assumed of l40s, not measured: products reach 40 % of its 362 TFLOP/s"
    says(table, [assumed, "too little for this run", "no micro-batch fits"], "the plan of an l40s")


def check_plan(folder):
    """The configurations kept in the project give the reference's figures."""
    for case in read_json(GOLDEN / "planner.json"):
        config = CONFIGS / f"{case['name']}.yaml"
        same(case, plan(config), case["name"], fits, (str, list))
        for one in case.get("runs", []):
            got = plan(config, "--tokens", one["T"], "--ranks", one["dp"], "--expert-parallel", one["ep"], *SPEED)
            want = {RENAMED.get(name, name): value for name, value in one.items()}
            same(want, got, f"{case['name']} dp {one['dp']}", fits, (str, list))
    table = output("plan", CONFIGS / "paper-3b.yaml", "--json", folder / "plan.json").decode()
    check("2,986,944,000" in table and "454,239,744" in table, "the table lacks the parameters")
    check(read_json(folder / "plan.json")["n"] == 64, "plan.json lacks n")
    more = plan(CONFIGS / "paper-3b.yaml", "--set", "train.micro_batch=2", "--set", "compute.dtype=f32")
    less = plan(CONFIGS / "paper-3b.yaml", "--set", "compute.dtype=f32")
    check(more["bytes"]["activations"] > 1.9 * less["bytes"]["activations"], "activations")
    check(more["bytes"]["compute_copies"] == 0, "f32 needs no copies")
    L, d, D, K = less["L"], less["d"], less["D"], less["K"]
    low = plan(CONFIGS / "paper-3b.yaml", "--set", "compute.dtype=bf16")
    check((less["activations"], low["activations"]) == ("f32", "bf16"), "the type of activations")
    equal(
        less["bytes"]["activations"] - low["bytes"]["activations"],
        2 * 4096 * (L * (8 * d + 2 * K * D) + d),
        "a sequence in bf16: the halves of a layer's norms, q, k, v, attention, gate and up, and of the head's input",
    )
    check_plan_of_ranks()
    check_plan_of_gpus()


# ---- tokenize ----

TEXTS = [
    ("one", "The cat sat on the mat, and the cat sat on the hat.\n\n  Then it ran."),
    ("two", "H\u00e4tte der Hund nicht gebellt, h\u00e4tte er den Hasen gefangen. \U0001f642 "),
    ("one", "the the the the cat cat cat <|endoftext|> hat hat"),
    ("two", "   \n "),
    ("three", "x" * 3000 + " and so on and so on"),
]


def write_documents(folder):
    (folder / "docs").mkdir()
    lines = [json.dumps({"id": str(i), "source": source, "text": text}) for i, (source, text) in enumerate(TEXTS)]
    (folder / "docs" / "a.jsonl").write_text("\n".join(lines[:2]) + "\nnot json\n")
    with gzip.open(folder / "docs" / "b.json.gz", "wt", encoding="utf-8") as out:
        out.write("\n".join(lines[2:]) + "\n")
    (folder / "docs" / "c.txt").write_bytes(b"plain text that is \xff broken\n")


def train_tokenizer(folder):
    tokenizer = folder / "T.json"
    out = output(*TRAIN_TOKENIZER, "--out", tokenizer, folder / "docs").decode()
    check("documents: 5," in out and "300 tokens" in out, f"tokenize train says {out!r}")
    other_order = [folder / "docs" / name for name in ("c.txt", "b*", "a.jsonl")]
    output(*TRAIN_TOKENIZER, "--out", folder / "T2.json", *other_order)
    check(tokenizer.read_bytes() == (folder / "T2.json").read_bytes(), "the order of inputs changes the tokenizer")
    return tokenizer


def round_trip(tokenizer):
    for text in [
        b"",
        b" ",
        b"\n\n",
        "H\u00e4tte \U0001f642\n".encode(),
        b"a\0b\r\n\t ",
        b"the cat<|endoftext|>the hat",
        b"  leading and trailing  ",
    ]:
        ids = output("tokenize", "encode", "--tokenizer", tokenizer, "--ids", data=text)
        check(ids.count(b"\n") == 1 and ids.endswith(b"\n"), f"ids of {text!r}: {ids!r}")
        back = output("tokenize", "decode", "--tokenizer", tokenizer, data=ids)
        check(back == text, f"{text!r} came back as {back!r}")
    ids = output("tokenize", "encode", "--tokenizer", tokenizer, "--ids", data=b"<|endoftext|>")
    check(ids == b"0\n", f"<|endoftext|> is {ids!r}")
    plain = output("tokenize", "encode", "--tokenizer", tokenizer, "--ids", "--special-as-text", data=b"<|endoftext|>")
    check(plain.split() != [b"0"], "--special-as-text changes nothing")
    skipped = output("tokenize", "decode", "--tokenizer", tokenizer, "--skip-special", data=b"0 2 0")
    check(skipped == b"!", f"--skip-special gives {skipped!r}")
    out, err, code = run("tokenize", "encode", "--tokenizer", tokenizer, "--ids", data=b"a\xffb")
    check(code == 0 and "U+FFFD" in err, f"broken UTF-8: {code} {err!r}")


def tokens_of(file):
    raw = file.read_bytes()
    return [int.from_bytes(raw[i : i + 2], "little") for i in range(0, len(raw), 2)]


def shards(folder, tokenizer):
    words = ("tokenize", "encode", "--tokenizer", tokenizer)
    out = output(*words, "--out", folder / "all", "--threads", 1, folder / "docs").decode()
    says(out, ["documents: 5,", "1 bad documents, 1 empty ones", "repaired: 1"], "tokenize encode says")
    output(*words, "--out", folder / "again", "--threads", 3, folder / "docs" / "*")
    check(files_of(folder / "all") == files_of(folder / "again"), "encoding is not deterministic")
    ids = tokens_of(folder / "all" / "part-0-00000.npy")
    texts = [TEXTS[0][1], TEXTS[1][1].strip(), TEXTS[2][1], TEXTS[4][1], "plain text that is \ufffd broken"]
    want = "".join(text + "<|endoftext|>" for text in texts)
    back = output("tokenize", "decode", "--tokenizer", tokenizer, data=" ".join(map(str, ids)).encode()).decode()
    check(back == want, f"the shards hold {back!r}, wanted {want!r}")
    output(*words, "--out", folder / "each", "--by-source", folder / "docs")
    parts = {f.parent.name: len(tokens_of(f)) for f in (folder / "each").rglob("*.npy")}
    check(set(parts) == {"one", "two", "three", "docs"}, f"sources {sorted(parts)}")
    check(sum(parts.values()) == len(ids), "sources do not add up")
    kept = output(*words, "--out", folder / "kept", "--no-strip", "--split", "line", folder / "docs" / "c.txt").decode()
    check("documents: 1," in kept, kept)
    out, err, code = run(*words, "--out", folder / "stop", "--bad", "stop", folder / "docs")
    check(code == 1 and "a.jsonl" in err and "3" in err, f"--bad stop: {code} {err!r}")
    bad(1, "already", *words, "--out", folder / "all", folder / "docs")
    (folder / "void").mkdir()
    (folder / "void" / "v.txt").write_text(" \n")
    bad(1, "the corpus is empty", *words, "--out", folder / "none", folder / "void")
    return ids


def show(folder, tokenizer, ids):
    out = output("tokenize", "show", "--tokenizer", tokenizer, folder / "all").decode()
    check(f"{len(ids)} tokens" in out and "uint16" in out, f"show says {out!r}")
    check("The cat sat on the mat" in out, f"show gives no sample: {out!r}")
    for source in ("one", "two", "three"):
        check(any(line.split()[:1] == [source] for line in out.splitlines()), f"no {source}: {out}")
    out = output("tokenize", "show", "--samples", 1, folder / "all" / "part-0-00000.npy").decode()
    check(" ".join(map(str, ids[:8])) in out, f"show gives no ids: {out!r}")


# ---- generate ----


def make_model(folder, tokenizer):
    """Makes the reference's small model with our tokenizer, as a Hugging Face directory."""
    model = folder / "model"
    model.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(GOLDEN / "model" / "base" / name, model / name)
    shutil.copy(tokenizer, model / "tokenizer.json")
    return model


def generate(folder, tokenizer):
    model = make_model(folder, tokenizer)
    words = ("generate", model, "--prompt", "The cat", "--tokens", 24)
    greedy = output(*words, "--temperature", 0)
    check(greedy.startswith(b"The cat") and greedy.endswith(b"\n"), f"greedy gives {greedy!r}")
    greedy.decode()
    check(output(*words, "--temperature", 0, "--seed", 9) == greedy, "greedy obeys the seed")
    check(output(*words, "--top-p", 1e-6, "--seed", 5) == greedy, "the smallest top-p is not greedy")
    first = output(*words, "--seed", 1)
    check(output(*words, "--seed", 1) == first, "a seed does not reproduce")
    check(output(*words, "--seed", 2) != first, "seeds do not differ")
    equal(
        output("generate", model, "--prompt", "-", "--tokens", 24, "--seed", 1, data=b"The cat"),
        first,
        "a prompt from the standard input",
    )
    new = output(*words, "--seed", 1, "--only-new")
    check(b"The cat" + new == first, f"--only-new gives {new!r} of {first!r}")
    for seed in range(4):
        output(
            "generate", model, "--prompt", "\U0001f642", "--tokens", 60, "--temperature", 30, "--seed", seed
        ).decode()
    check(len(output("generate", model, "--prompt", "", "--tokens", 5)) > 0, "no empty prompt")
    check(output("generate", model, "--prompt", "x", "--tokens", 0) == b"x\n", "no tokens at all")
    output(*words, "--set", "compute.dtype=bf16", "--set", "compute.threads=1")
    long, err, code = run_bytes("generate", model, "--prompt", "x", "--tokens", 512, "--ignore-eos")
    check(
        code == 0 and err.count(b"\n") == 1 and b"--tokens 512 is cut to 511" in err,
        f"--tokens beyond the context: {code} {err!r}",
    )
    equal(
        output("generate", model, "--prompt", "x", "--tokens", 511, "--ignore-eos"),
        long,
        "all that the context has room for",
    )
    check(output(*words, "--seed", 1, "--threads", 1) == first, "--threads changes the text")
    several(folder, words)
    equal(
        output("generate", model, "--prompt", "x", "--set", "compute.device=cpu"),
        output("generate", model, "--prompt", "x"),
        "auto is not the CPU",
    )
    (model / "tokenizer.json").unlink()
    other_tokenizer(folder, model)


def several(folder, words):
    """Checks --samples, --stop and --prompt-file."""
    samples = output(*words, "--samples", 3, "--seed", 1)
    each = [f"--- sample {i} of 3, seed {i} ---\n".encode() + output(*words, "--seed", i) for i in (1, 2, 3)]
    equal(samples, b"\n".join(each), "--samples")
    whole = output(*words, "--seed", 1, "--only-new").decode().removesuffix("\n")
    longest = max(whole.split("\ufffd"), key=len)  # U+FFFD stands for other bytes
    for begin, end in ((0, 1), (1, 6), (len(longest) - 2, len(longest))):
        stop = longest[begin:end]
        cut = output(*words, "--seed", 1, "--only-new", "--stop", stop).decode()
        check(cut == whole[: whole.index(stop)] + "\n", f"--stop {stop!r} of {whole!r}: {cut!r}")
    equal(
        output(*words, "--seed", 1, "--only-new", "--stop", "never there").decode(),
        whole + "\n",
        "a --stop that does not come changes the text",
    )
    prompt = folder / "prompt.txt"
    prompt.write_text("The cat")
    words = ["--prompt-file" if word == "--prompt" else prompt if word == "The cat" else word for word in words]
    check(output(*words, "--seed", 1, "--only-new").decode() == whole + "\n", "--prompt-file")


def other_tokenizer(folder, model):
    small = ("generate", model, "--tokenizer", folder / "T.json", "--prompt", "x", "--tokens", 3)
    output(*small)
    big = folder / "big.json"
    output("tokenize", "train", "--vocab-size", 400, "--min-frequency", 1, "--out", big, folder / "docs")
    if b'"399"' in big.read_bytes() or len(read_json(big)["model"]["vocab"]) > 320:
        bad(1, "the vocabulary of", "generate", model, "--tokenizer", big, "--prompt", "x")


def main():
    with scratch_folder() as folder:
        check_plan(folder)
        write_documents(folder)
        tokenizer = train_tokenizer(folder)
        round_trip(tokenizer)
        show(folder, tokenizer, shards(folder, tokenizer))
        generate(folder, tokenizer)
    return finish()


if __name__ == "__main__":
    sys.exit(main())
