"""The package of llama.cpp reads the program's GGUF files: names, shapes, types, metadata, and numbers bit for bit."""

import json
import subprocess

import numpy as np
import pytest
from conftest import ROOT
from couplet import find_program

gguf = pytest.importorskip("gguf")
save_file = pytest.importorskip("safetensors.numpy").save_file

pytestmark = pytest.mark.skipif(find_program() is None, reason="the program couplet is not on PATH")
CONFIG = {
    "vocab_size": 400,
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_experts": 3,
    "num_experts_per_tok": 2,
    "rms_norm_eps": 1e-6,
    "rope_theta": 5e5,
    "max_position_embeddings": 128,
    "eos_token_id": 0,
    "pad_token_id": 1,
    "model_type": "olmoe",
}
OF_LAYER = {  # our name: the package's name, and the shape
    "input_layernorm": ("ATTN_NORM", (64,)),
    "post_attention_layernorm": ("FFN_NORM", (64,)),
    "self_attn.q_proj": ("ATTN_Q", (64, 64)),
    "self_attn.k_proj": ("ATTN_K", (64, 64)),
    "self_attn.v_proj": ("ATTN_V", (64, 64)),
    "self_attn.o_proj": ("ATTN_OUT", (64, 64)),
    "self_attn.q_norm": ("ATTN_Q_NORM", (64,)),
    "self_attn.k_norm": ("ATTN_K_NORM", (64,)),
    "mlp.gate": ("FFN_GATE_INP", (3, 64)),
    "gate_proj": ("FFN_GATE_EXP", (3, 48, 64)),
    "up_proj": ("FFN_UP_EXP", (3, 48, 64)),
    "down_proj": ("FFN_DOWN_EXP", (3, 64, 48)),
}


def name_of(word, layer=None):
    name = gguf.TENSOR_NAMES[gguf.MODEL_TENSOR[word]]
    return (name if layer is None else name.format(bid=layer)) + ".weight"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Writes a model's folder. Returns it with the expected content of its file: name -> numbers."""
    folder, draw = tmp_path_factory.mktemp("model"), np.random.default_rng(5).standard_normal
    wanted, stored = {}, {}

    def add(hub, name, shape):
        wanted[name] = draw(shape, np.float32)
        if len(shape) < 3:
            stored[f"model.{hub}.weight"] = wanted[name]
        for e, one in enumerate(wanted[name] if len(shape) == 3 else ()):
            layer, _, part = hub.rpartition(".")
            stored[f"model.{layer}.mlp.experts.{e}.{part}.weight"] = np.ascontiguousarray(one)

    add("embed_tokens", name_of("TOKEN_EMBD"), (400, 64))
    add("norm", name_of("OUTPUT_NORM"), (64,))
    for layer in range(2):
        for hub, (word, shape) in OF_LAYER.items():
            add(f"layers.{layer}.{hub}", name_of(word, layer), shape)
    stored["lm_head.weight"] = wanted[name_of("OUTPUT")] = draw((400, 64), np.float32)
    save_file(stored, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_bytes((ROOT / "tests" / "golden" / "tokenizers" / "small.json").read_bytes())
    return folder, wanted


def exported(folder, tmp_path, kind):
    path = tmp_path / "m.gguf"
    subprocess.run([find_program(), "export", folder, "--gguf", path, "--type", kind], check=True, capture_output=True)
    return gguf.GGUFReader(path)


@pytest.mark.parametrize("kind", ["f32", "bf16", "f16", "q8_0"])
def test_tensors(model, tmp_path, kind):
    folder, wanted = model
    types = gguf.GGMLQuantizationType
    read = {tensor.name: tensor for tensor in exported(folder, tmp_path, kind).tensors}
    assert read.keys() == wanted.keys()
    for name, numbers in wanted.items():
        want = types[kind.upper()]
        if numbers.ndim == 1 or "ffn_gate_inp" in name:
            want = types.F32
        elif want is types.Q8_0 and numbers.shape[-1] % 32:
            want = types.F16
        tensor = read[name]
        assert tensor.tensor_type is want and tuple(tensor.shape[::-1]) == numbers.shape, name
        stored = gguf.quants.quantize(numbers, want)
        assert tensor.data.tobytes() == stored.tobytes(), name


def test_names_are_of_the_architecture(model):
    words = {word for word, _ in OF_LAYER.values()} | {"TOKEN_EMBD", "OUTPUT_NORM", "OUTPUT"}
    listed = {tensor.name for tensor in gguf.MODEL_TENSORS[gguf.MODEL_ARCH.OLMOE]}
    assert words <= listed and listed - words <= {"ATTN_QKV"}
    renormalised = {tensor.name for tensor in gguf.MODEL_TENSORS[gguf.MODEL_ARCH.MINIMAXM2]}
    assert words | {"FFN_EXP_PROBS_B"} <= renormalised


def test_metadata(model, tmp_path):
    folder, _ = model
    read = exported(folder, tmp_path, "q8_0")
    keys, arch = gguf.Keys, gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH.OLMOE]
    wanted = {
        keys.LLM.VOCAB_SIZE: 400,
        keys.LLM.CONTEXT_LENGTH: 128,
        keys.LLM.EMBEDDING_LENGTH: 64,
        keys.LLM.BLOCK_COUNT: 2,
        keys.LLM.FEED_FORWARD_LENGTH: 48,
        keys.LLM.EXPERT_FEED_FORWARD_LENGTH: 48,
        keys.LLM.EXPERT_COUNT: 3,
        keys.LLM.EXPERT_USED_COUNT: 2,
        keys.Attention.HEAD_COUNT: 4,
        keys.Attention.HEAD_COUNT_KV: 4,
        keys.Attention.LAYERNORM_RMS_EPS: np.float32(1e-6),
        keys.Rope.FREQ_BASE: 5e5,
        keys.Rope.DIMENSION_COUNT: 16,
    }
    wanted = {key.format(arch=arch): value for key, value in wanted.items()}
    wanted |= {
        keys.General.ARCHITECTURE: arch,
        keys.General.NAME: folder.name,
        keys.General.TYPE: "model",
        keys.General.FILE_TYPE: gguf.LlamaFileType.MOSTLY_Q8_0,
        keys.General.QUANTIZATION_VERSION: gguf.GGML_QUANT_VERSION,
        keys.Tokenizer.MODEL: "gpt2",
        keys.Tokenizer.PRE: "olmo",
        keys.Tokenizer.EOS_ID: 0,
        keys.Tokenizer.PAD_ID: 1,
        keys.Tokenizer.ADD_BOS: False,
        keys.Tokenizer.ADD_EOS: False,
    }
    for key, value in wanted.items():
        assert read.fields[key].contents() == value, key
    lists = {keys.Tokenizer.LIST, keys.Tokenizer.TOKEN_TYPE, keys.Tokenizer.MERGES}
    assert {key for key in read.fields if not key.startswith("GGUF.")} == wanted.keys() | lists


def test_vocabulary(model, tmp_path):
    folder, _ = model
    read = exported(folder, tmp_path, "f32")
    spec = json.loads((folder / "tokenizer.json").read_text())
    tokens, types = [read.fields[key].contents() for key in (gguf.Keys.Tokenizer.LIST, gguf.Keys.Tokenizer.TOKEN_TYPE)]
    vocabulary = spec["model"]["vocab"]
    assert [tokens[i] for i in vocabulary.values()] == list(vocabulary) and len(tokens) == len(types) == 400
    assert tokens[384:] == [f"[PAD{i}]" for i in range(384, 400)] and set(types[384:]) == {gguf.TokenType.UNUSED}
    assert types[:2] == [gguf.TokenType.CONTROL] * 2 and set(types[2:384]) == {gguf.TokenType.NORMAL}
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in spec["model"]["merges"]]
    assert read.fields[gguf.Keys.Tokenizer.MERGES].contents() == merges
