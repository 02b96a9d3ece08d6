"""config.json is read as Transformers reads it. src/store/hf_keys.def has every key, with the class's defaults. Folders
with odd keys, tied heads or two models give the logits of Transformers or are refused."""

import dataclasses
import inspect
import json
import re
import subprocess

import pytest
import torch
from conftest import ROOT
from couplet import find_program

transformers = pytest.importorskip("transformers", "5.0")
load_file, save_file = (getattr(pytest.importorskip("safetensors.torch"), name) for name in ("load_file", "save_file"))
needs_program = pytest.mark.skipif(find_program() is None, reason="the program couplet is not on PATH")

KEYS = re.findall(
    r'CPL_HF_([A-Z]+)\((\w+)(?:, "((?:\\"|[^"])*)")?', (ROOT / "src/store/hf_keys.def").read_text().split(" */", 1)[1]
)
OF_OTHER_MODELS = {"number_of_conv_states"}


def test_every_key_is_in_the_list():
    config = transformers.OlmoeConfig
    read = {field.name for field in dataclasses.fields(config)} | set(config.attribute_map)
    read |= set(
        re.findall(r'kwargs\.(?:pop|get)\("(\w+)"', inspect.getsource(transformers.PreTrainedConfig.__post_init__))
    )
    read |= set(transformers.GenerationConfig._get_default_generation_params())
    for module in (transformers.masking_utils, transformers.cache_utils):
        read |= set(re.findall(r'getattr\(\w*config, "(\w+)"', inspect.getsource(module)))
    read = {key for key in read if not key.startswith("_")} - OF_OTHER_MODELS
    assert len(read) > 60
    assert read - {key for _, key, _ in KEYS} == set()


def test_defaults_are_those_of_the_class():
    fields = {field.name: field.default for field in dataclasses.fields(transformers.OlmoeConfig)}
    told = {key: text for use, key, text in KEYS if use in ("SETTING", "FIXED") and key in fields}
    assert len(told) > 15
    for key, text in told.items():
        text = text.replace('\\"', '"')
        assert (None if text == "unset" else json.loads(text)) == fields[key], key


# ---- folders ----

IDS = torch.randint(0, 300, (2, 24), generator=torch.Generator().manual_seed(3))


def draw(model):
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 1 if parameter.dim() == 1 else 0, 0.3)


@pytest.fixture()
def folder(tmp_path):
    torch.manual_seed(4)
    model = transformers.OlmoeForCausalLM(
        transformers.OlmoeConfig(
            vocab_size=300,
            hidden_size=32,
            intermediate_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            num_experts=8,
            num_experts_per_tok=2,
            max_position_embeddings=64,
            eos_token_id=256,
            pad_token_id=None,
        )
    )
    draw(model)
    model.save_pretrained(tmp_path)
    return tmp_path


def ours(folder):
    """Returns the program's logits and its messages, or None if it refuses the folder."""
    out = folder.with_suffix(".out")  # outside of the model's folder
    (folder / "ids").write_text(json.dumps({"input_ids": IDS.tolist()}))
    done = subprocess.run(
        [find_program(), "grad", folder, "--tokens", folder / "ids", "--out", out, "--overwrite"],
        capture_output=True,
        text=True,
    )
    return None if done.returncode else load_file(out)["logits"], done.stderr


def theirs(folder):
    model = transformers.OlmoeForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return model(IDS).logits


def assert_same(folder, warned):
    logits, told = ours(folder)
    assert logits is not None, told
    assert told.count("warning") == bool(warned) and warned in told
    wanted = theirs(folder)
    assert (logits - wanted).abs().max() <= 1e-5 * wanted.abs().max()  # F32 sums in another order


def edit(folder, **keys):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


def edit_weights(folder, change):
    path = folder / "model.safetensors"
    weights = load_file(path)
    change(weights)
    save_file(weights, path, metadata={"format": "pt"})


@needs_program
@pytest.mark.parametrize(
    "keys, warned",
    [
        ({"rope_parameters": {"rope_theta": 500.0}, "rope_theta": 3.0}, ""),
        ({"rope_parameters": {"rope_theta": 500.0}, "rope_scaling": {"type": "default", "rope_theta": 7.0}}, ""),
        ({"rope_parameters": {"rope_theta": 500.0}, "rope_scaling": {"type": "default"}}, ""),
        ({"rope_parameters": {"rope_theta": 500.0, "partial_rotary_factor": 0.5}, "rope_scaling": {}}, ""),
        ({"num_experts": 4, "num_local_experts": 8}, ""),
        ({"head_dim": 16, "layer_types": ["full_attention"] * 2, "is_causal": True}, ""),
        ({"attention_dropout": 0.5, "output_router_logits": True, "use_cache": False, "temperature": 0.1}, ""),
        ({"norm_topk_prob": True, "clip_qkv": 0.5, "rms_norm_eps": 1e-2, "num_experts_per_tok": 3}, ""),
        ({"router": "sigmoid", "router_bias": True}, "router, router_bias"),
        ({"n_shared_experts": 1}, "n_shared_experts"),
        ({"first_k_dense_replace": 1, "routed_scaling_factor": 2.5}, "first_k_dense_replace, routed_scaling_factor"),
    ],
)
def test_keys_that_are_read(folder, keys, warned):
    edit(folder, **keys)
    assert_same(folder, warned)


@needs_program
@pytest.mark.parametrize(
    "key, value",
    [
        ("is_causal", False),
        ("sliding_window", 4),
        ("attention_chunk_size", 4),
        ("head_dim", 8),
        ("attention_bias", True),
        ("layer_types", ["sliding_attention"] * 2),
        ("per_layer_config", {"0": {"num_experts_per_tok": 1}}),
        ("hidden_act", "gelu"),
        ("rope_parameters", {"rope_type": "linear", "factor": 2.0}),
        ("quantization_config", {"quant_method": "fp8"}),
        ("transformers_weights", "other.safetensors"),
    ],
)
def test_keys_that_are_refused(folder, key, value):
    edit(folder, **{key: value})
    logits, told = ours(folder)
    assert logits is None and key in told


@needs_program
def test_tied_heads(folder):
    edit(folder, tie_word_embeddings=True)
    assert_same(folder, "lm_head.weight and model.embed_tokens.weight differ")
    edit_weights(
        folder, lambda weights: weights.update({"lm_head.weight": weights["model.embed_tokens.weight"].clone()})
    )
    assert_same(folder, "")
    edit_weights(folder, lambda weights: weights.pop("model.embed_tokens.weight"))
    assert_same(folder, "")


@needs_program
def test_tensors_without_use(folder):
    edit_weights(
        folder,
        lambda weights: weights.update(
            {
                "model.layers.0.self_attn.q_proj.bias": torch.ones(32),
                "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8),
            }
        ),
    )
    assert_same(folder, "no use for 1 of the tensors, which are passed over: model.layers.0.self_attn.q_proj.bias")


@needs_program
def test_a_model_saved_over_its_shards(folder):
    model = transformers.OlmoeForCausalLM.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="40KB")
    assert_same(folder, "")
    draw(model)
    model.save_pretrained(folder)
    assert (folder / "model.safetensors.index.json").exists()
    assert_same(folder, "model.safetensors is read")
