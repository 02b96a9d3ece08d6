#!/usr/bin/env python3
"""check_routing.py COUPLET: the routing report from end to end, on a small run: figures that must agree, saturation
between its checkpoints, equal bytes when repeated, page and charts, bad input."""

import json
import math
import shutil
import sys

from inputs import _resolve, files_of, read_json
from losses import erc
from program import apart, bad, check, finish, good, scratch_folder
from train_case import train, write_corpus

N, K, LAYERS = 4, 2, 2


def close(a, b, tolerance=1e-7):
    return abs(a - b) <= tolerance


def report(folder, text, *words):
    out, err = apart("inspect", folder, "--text", text, "--json", "-", *words)
    return json.loads(out), err


def check_load(layer, routing):
    tokens = routing["tokens"]
    check(close(sum(layer["load"]), 1), "the loads are shares")
    check(close(layer["load_max_over_mean"], max(layer["load"]) * N), "max over mean")
    check(layer["dead"] == sum(x == 0 for x in layer["load"]), "dead experts")
    entropy = -sum(x * math.log(x) for x in layer["load"] if x > 0)
    check(close(layer["load_entropy"], entropy), "entropy of the load")
    check(0 < layer["router_entropy"] <= math.log(N) + 1e-6, "entropy of the router")
    together = layer["together"]
    for i in range(N):
        check(close(together[i][i], layer["load"][i] * tokens * K, 1e-2), "the diagonal of together")
        check(sum(together[i]) == K * together[i][i], "a token has K experts")
    for pair in layer["pairs"]:
        i, j = pair["experts"]
        check(pair["tokens"] == together[i][j] == together[j][i], "pairs")
    expected = sum(p["expected"] for p in layer["pairs"])
    pairs = sum(p["tokens"] for p in layer["pairs"])
    check(
        close(expected, pairs, 1e-6 * tokens) if len(layer["pairs"]) == N * (N - 1) // 2 else expected < pairs,
        "what is expected is shared out",
    )


def check_domains(layer, routing):
    shares = layer["domains"]["by_expert"]
    for of_domain in shares:
        check(close(sum(of_domain), 1), "a domain's shares")
    for e in range(N):
        if layer["load"][e]:
            check(close(sum(row[e] for row in layer["domains"]["by_domain"]), 1), "an expert's shares")
            whole = sum(row[e] * s["tokens"] for row, s in zip(shares, routing["sources"]))
            check(close(whole / routing["tokens"], layer["load"][e]), "domains make the load")
    p, q = shares
    m = [(a + b) / 2 for a, b in zip(p, q)]
    both = sum(x * math.log2(x / y) for s in (p, q) for x, y in zip(s, m) if x > 0) / 2
    check(close(layer["domains"]["distance"], math.sqrt(both)), "distance between domains")


def check_answers(layer, routing):
    a, m = layer["agreement"], layer["tokens_M"]
    check(close(a["top1_chance"], 1 / N) and close(a["overlap_chance"], K / N), "chance")
    check(-1 <= a["spearman_mean"] <= 1 and 0 <= a["top1"] <= 1 and 0 <= a["overlap"] <= 1, "shares")
    check(sum(m["routed"]) == K * routing["sampled"], "every sampled token has K experts")
    check(m["experts"] + m["left_out"] == N, "experts kept and left out")
    check(m["experts"] == sum(x >= 8 for x in m["routed"]), "experts with 8 tokens")
    kept = [i for i in range(N) if m["routed"][i] >= 8]
    M = [[m["M"][i][j] for j in kept] for i in kept]
    n = len(kept)
    check(close(m["diag_mean"], sum(M[i][i] for i in range(n)) / n, 1e-6), "mean diagonal")
    for alpha, relative in m["erc_relative"].items():
        want = erc(M, float(alpha))
        check(close(relative * m["diag_mean"], want, 1e-5), f"ERC of M_tok at {alpha}: {relative}, {want}")
    check(set(m["erc_relative"]) == {"0.5", "1", "2", "3"}, f"alphas {set(m['erc_relative'])}")


def check_figures(folder, text):
    everything, err = report(folder, text)
    routing = everything["routing"]
    check("alpha_min" in everything["layers"][0], "the coupling figures are there as ever")
    check(routing["n"] == N and routing["K"] == K and len(routing["layers"]) == LAYERS, "shape")
    check([s["source"] for s in routing["sources"]] == ["one", "two"], "sources")
    check(sum(s["tokens"] for s in routing["sources"]) == routing["tokens"], "tokens of sources")
    check(routing["window"] == 16 and routing["step"] == 12, "the length that the run trains on, and step")
    check(routing["documents"] == 80, f"{routing['documents']} documents")
    check("FLOPs" in err, "the cost is told")
    for layer in routing["layers"]:
        check_load(layer, routing)
        check_domains(layer, routing)
        check_answers(layer, routing)
        ids = layer["input_ids"]
        check(ids["ids"] > 0 and 0 < ids["mean"] <= 1, "vocabulary")
    return routing


def check_saturation(folder, text, routing):
    check([s["step"] for s in routing["saturation"]] == [4, 8], "the steps that are there")
    early, late = routing["saturation"]
    check(all(0 < x <= 1 for x in early["topk"] + late["topk"]), "saturation is a share")
    check(sum(late["topk"]) > sum(early["topk"]), "later is nearer to the last")
    alone, _ = report(folder / "last", text)
    check(alone["routing"]["saturation"] == [], "a checkpoint alone has no saturation")
    check(alone["routing"]["layers"] == routing["layers"], "a run is its last checkpoint")


def check_options(work, folder, text):
    less, _ = report(folder, text, "--text-tokens", 200, "--response-tokens", 50, "--window", 16, "--alpha", "1,4")
    routing = less["routing"]
    check(routing["tokens"] == 200 and routing["sampled"] == 50 and routing["window"] == 16, "limits")
    check([s["tokens"] for s in routing["sources"]] == [100, 100], "an even share")
    check(set(routing["layers"][0]["tokens_M"]["erc_relative"]) == {"1", "4"}, "--alpha")
    again, _ = report(folder, text, "--text-tokens", 200, "--response-tokens", 50, "--window", 16, "--alpha", "1,4")
    check(less == again, "the same again")
    plain = work / "plain.txt"
    plain.write_text("abc dee\n" * 30)
    one, _ = report(folder, plain)
    check(one["routing"]["layers"][0]["domains"]["distance"] is None, "one domain has no distance")


def check_map(chart, values):
    """Checks that cells are those of the report. A cell without a value is None."""
    for (row, column), value in values.items():
        shown = chart["cells"][row][column]
        check((shown is None) == (value is None), f"{row}, {column}: {shown} for {value}")
        if value is not None:
            check(abs(shown - value) <= 1e-6 * value, f"{row}, {column}: {shown} for {value}")


def check_maps(charts, routing):
    for d in range(len(routing["sources"])):
        values = {}
        for l, layer in enumerate(routing["layers"]):
            shares = layer["domains"]["by_expert"]
            for e in range(N):
                mean = sum(row[e] for row in shares) / len(shares)
                values[l, e] = shares[d][e] / mean if mean else None
        check_map(charts["domains"][d], values)
    for l, layer in enumerate(routing["layers"]):
        together, values = layer["together"], {}
        factor = (
            sum(map(sum, together))
            / K
            * (K - 1)
            / 2
            / sum(together[i][i] * together[j][j] for i in range(N) for j in range(i))
        )
        for i in range(N):
            for j in range(N):
                expected = factor * together[i][i] * together[j][j]
                values[i, j] = together[i][j] / expected if i != j and expected else None
        check_map(charts["load"][l], values)


def check_verdict(out, page, figures):
    """Checks that the weights and the text have one verdict each, equal in all places, and that no advice is
    repeated."""
    said, routing = figures["routing"]["verdict"], figures["routing"]
    rho = sum(layer["agreement"]["spearman_mean"] for layer in routing["layers"]) / LAYERS
    centred = sum(layer["mean_token"]["agreement_centred"] for layer in routing["layers"]) / LAYERS
    want = (
        "run against" if rho <= -0.3 else "do not follow" if rho < 0.3 else "follow in part" if rho < 0.6 else "follow"
    )
    check(
        routing["state"] == want
        and f" {rho:.2f} (by layer" in said
        and f"the rank correlation is {centred:.2f}." in said.replace("\n", " ")
        and said.startswith(
            f"Over {routing['sampled']} of the {routing['tokens']} tokens read, the router's choices {want} the"
        ),
        f"the verdict on text: {said}",
    )
    lines = out.splitlines()
    for words in (said, figures["verdict"]):
        check(words.replace("\n", " ") in " ".join(lines), f"not on the terminal: {words}")
        check(any(line and words.startswith(line) and len(line) <= 80 for line in lines), "the verdict is not wrapped")
        check(words.split("'")[0].split("\n")[0] in page.split("<table")[0], f"not above the table: {words}")
    check("--text" not in figures["verdict"] and "--text measures" not in page.split("<script")[0], "--text is advised")


def check_shown(work, folder, text, routing):
    out = good("inspect", folder, "--text", text, "--html", work / "page.html", "--json", work / "figures.json")
    check_verdict(out, page := (work / "page.html").read_text(), read_json(work / "figures.json"))
    for words in (
        "to 4 experts, 2 per token",
        "Load of the experts",
        "rank correlation",
        "M_tok",
        "Vocabulary",
        "Router saturation",
    ):
        check(words in out, f"the tables do not say {words}")
    check("https:" not in page and " src=" not in page, "a request")
    charts = {}
    for chart in _resolve.charts_of(read_json(work / "figures.json")):
        if chart["kind"] == "map":
            charts.setdefault(chart["section"], []).append(chart)
    count = sum(map(len, charts.values()))
    check(count == 2 + 2 * LAYERS, f"{count} maps of routing")
    check_maps(charts, routing)


def check_bad(work, folder, text):
    bare = work / "bare"
    shutil.copytree(folder / "last", bare)
    check(report(bare, text)[0]["routing"]["window"] == 64, "a model without its run is read in its whole context")
    (bare / "tokenizer.json").unlink()
    (bare / "checksums.json").unlink()
    other, own = (
        {**report(of, text, *words)[0]["routing"], "model": ""}
        for of, words in ((bare, ("--tokenizer", work / "T.json")), (folder / "last", ("--window", 64)))
    )
    check(other == own, "a tokenizer of another place does not take the place of the folder's")
    config = read_json(bare / "config.json")
    shutil.copy(work / "T.json", bare / "tokenizer.json")
    config["vocab_size"] = 100
    (bare / "config.json").write_text(json.dumps(config))
    bad(1, ["ids up to", "100 rows"], "inspect", bare, "--text", text)


def main():
    with scratch_folder() as work:
        write_corpus(work)
        folder, text = train(work, "run", "checkpoint.keep=3"), work / "docs"
        before = files_of(folder / "last")
        routing = check_figures(folder, text)
        check_saturation(folder, text, routing)
        check_options(work, folder, text)
        check_shown(work, folder, text, routing)
        check_bad(work, folder, text)
        check(files_of(folder / "last") == before, "something was written into the checkpoint")
    return finish()


if __name__ == "__main__":
    sys.exit(main())
