#!/usr/bin/env python3
"""Compares the questions a second of llama.cpp and `couplet eval`, on one model, with equal rows, tasks and threads:
ARC-Challenge (0 shots) and MMLU (5 shots) scored, GSM8K (5 shots) generated greedily, in f32.

Model:   an OLMoE directory (eval_lm_eval.py --make writes one), passed to llama.cpp as an f32 GGUF
         without a vocabulary: it gets token ids. Ids come from the samples that couplet writes: its
         texts, tokenised by Hugging Face tokenizers.
Scored:  as llama.cpp's own scorer of HellaSwag does it: the common part of a question's options is computed once,
         and the options are sequences that share it in one batch.
Timed:   for llama.cpp only the calls of the library, for couplet the whole command."""

import argparse
import ctypes
import json
import os
import pathlib
import tempfile

import eval_lm_eval
import gguf
import llama_cpp
import numpy
import peers
import tokenizers

MOST = 4096  # largest number of tokens of a question


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model", help="OLMoE directory")
    parser.add_argument("--couplet", default=str(eval_lm_eval.ROOT / "build/release/couplet"))
    parser.add_argument("--data", type=pathlib.Path, default=eval_lm_eval.ROOT / "data/eval")
    parser.add_argument("--tasks", default=",".join(eval_lm_eval.TASKS))
    parser.add_argument("--limit", type=int, default=40, help="questions of ARC and GSM8K")
    parser.add_argument("--per-subject", type=int, default=1, help="questions of a subject of MMLU")
    parser.add_argument("--max-gen-toks", type=int, default=64)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


# ---- the model as GGUF ----


def write_gguf(model, path):
    from safetensors.numpy import load_file

    config = json.loads((pathlib.Path(model) / "config.json").read_text())
    tensors = {}
    for file in sorted(pathlib.Path(model).glob("*.safetensors")):
        tensors |= load_file(file)
    layers, experts = config["num_hidden_layers"], config["num_experts"]
    writer = gguf.GGUFWriter(str(path), "olmoe")
    writer.add_block_count(layers)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    rope = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
    writer.add_rope_freq_base(rope)
    writer.add_expert_count(experts)
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")
    names = {
        "input_layernorm": "attn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm",
        "post_attention_layernorm": "ffn_norm",
        "mlp.gate": "ffn_gate_inp",
    }

    def add(name, value):
        writer.add_tensor(name, numpy.ascontiguousarray(value, dtype=numpy.float32))

    head = "lm_head.weight" if "lm_head.weight" in tensors else "model.embed_tokens.weight"
    add("token_embd.weight", tensors["model.embed_tokens.weight"])
    add("output_norm.weight", tensors["model.norm.weight"])
    add("output.weight", tensors[head])
    for i in range(layers):
        at = f"model.layers.{i}."
        for theirs, ours in names.items():
            add(f"blk.{i}.{ours}.weight", tensors[f"{at}{theirs}.weight"])
        for part in ("gate", "up", "down"):
            each = [tensors[f"{at}mlp.experts.{e}.{part}_proj.weight"] for e in range(experts)]
            add(f"blk.{i}.ffn_{part}_exps.weight", numpy.stack(each))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# ---- llama.cpp ----


class Llama:
    def __init__(self, path, threads):
        llama_cpp.llama_backend_init()
        quiet = llama_cpp.llama_log_callback(lambda *_: None)
        self.quiet = quiet
        llama_cpp.llama_log_set(quiet, ctypes.c_void_p(0))
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        assert self.model, "llama.cpp cannot read the model"
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = MOST, MOST, 512, 16
        params.n_threads = params.n_threads_batch = threads
        params.kv_unified = True
        params.type_k = params.type_v = 0  # f32
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        self.batch = llama_cpp.llama_batch_init(MOST, 0, 16)
        self.vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))

    def clear(self):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        self.batch.n_tokens = 0

    def add(self, token, position, sequences, wanted):
        b, i = self.batch, self.batch.n_tokens
        b.token[i], b.pos[i], b.n_seq_id[i], b.logits[i] = token, position, len(sequences), wanted
        for k, sequence in enumerate(sequences):
            b.seq_id[i][k] = sequence
        b.n_tokens += 1
        return i

    def decode(self):
        assert llama_cpp.llama_decode(self.context, self.batch) == 0

    def logits(self, i):
        row = llama_cpp.llama_get_logits_ith(self.context, i)
        return numpy.ctypeslib.as_array(row, (self.vocab,))

    def score(self, options):
        """Returns log-probabilities of the tails; options: [(ids, scored)]."""
        self.clear()
        fed = [ids[:-1] for ids, _ in options]
        common = min(map(len, fed))
        while any(ids[:common] != fed[0][:common] for ids in fed):
            common -= 1
        first = min(len(ids) - scored for ids, scored in options) - 1  # position of the first wanted logits
        at = [self.add(fed[0][p], p, range(len(options)), p >= first) for p in range(common)]
        rows = [list(at) for _ in options]
        for k, ids in enumerate(fed):
            rows[k] += [self.add(ids[p], p, [k], 1) for p in range(common, len(ids))]
        self.decode()
        sums = []
        for (ids, scored), row in zip(options, rows):
            total = 0.0
            for p in range(len(ids) - scored, len(ids)):
                logits = self.logits(row[p - 1]).astype(numpy.float64)
                top = logits.max()
                total += logits[ids[p]] - top - numpy.log(numpy.exp(logits - top).sum())
            sums.append(total)
        return sums

    def write(self, ids, most, end):
        self.clear()
        for p, token in enumerate(ids):
            last = self.add(token, p, [0], p == len(ids) - 1)
        made = []
        while True:
            self.decode()
            token = int(self.logits(last).argmax())
            made.append(token)
            if token == end or len(made) == most:
                return made
            self.batch.n_tokens = 0
            last = self.add(token, len(ids) + len(made) - 1, [0], 1)


# ---- both programs ----


def questions_of(task, samples, tokenizer, contexts):
    """Returns the requests of couplet as ids."""

    def encode(text):
        return tokenizer.encode(text, add_special_tokens=False).ids

    asked = []
    for sample in samples:
        if task == "gsm8k":
            asked.append(encode(sample["prompt"]))
            continue
        context = sample["contexts"][0]
        before, options = encode(context), []
        for text in sample["continuations"]:
            whole = encode(context + text)
            options.append((before + whole[len(before) :], len(whole) - len(before)))
        asked.append(options)
    return asked


def main():
    options = arguments()
    tokenizer = tokenizers.Tokenizer.from_file(str(pathlib.Path(options.model) / "tokenizer.json"))
    end = tokenizer.token_to_id("<|endoftext|>")
    print(f"{peers.processor()}, {options.threads} threads, f32, {options.model}")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_gguf(options.model, folder / "model.gguf")
        llama = Llama(folder / "model.gguf", options.threads)
        for task in options.tasks.split(","):
            out, kept = folder / f"{task}.json", {}
            eval_lm_eval.couplet(options, task, out)
            samples = eval_lm_eval.results_of(out)["samples"]
            asked = questions_of(task, samples, tokenizer, None)

            def theirs():
                if task == "gsm8k":
                    kept["ids"] = [llama.write(ids, options.max_gen_toks, end) for ids in asked]
                else:
                    kept["sums"] = [llama.score(one) for one in asked]

            times, ours = peers.in_turn(options.rounds, theirs, lambda: eval_lm_eval.couplet(options, task, out))
            ratio = peers.median([a / b for a, b in zip(times, ours)])
            if task == "gsm8k":
                tokens = sum(map(len, kept["ids"]))
                own = sum(sample["gen_tokens"] for sample in samples)
                told = f"{tokens} and {own} tokens"
            else:
                worst = max(
                    abs(a - b) for sums, sample in zip(kept["sums"], samples) for a, b in zip(sums, sample["loglik"])
                )
                told = f"log-likelihoods within {worst:.1e}"
            n = len(asked)
            print(
                f"{task}: {n} questions; llama.cpp {n / peers.median(times):.2f}/s, couplet "
                f"{n / peers.median(ours):.2f}/s: {ratio:.2f} times; {told}",
                flush=True,
            )


if __name__ == "__main__":
    main()
