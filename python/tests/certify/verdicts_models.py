"""The verdicts on whole models of Transformers in docs/verdicts.md: a training step of a tiny model of each family whose
code has an auxiliary loss, router included.

    python tests/certify/verdicts_models.py [FAMILY ...]          # of the Transformers that is imported"""

import collections
import importlib
import inspect
import os
import pathlib
import sys
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from couplet import certify

KIND = "load-balancing-mixtral"
# Whichever a config has.
SIZES = dict(
    vocab_size=48,
    hidden_size=32,
    d_model=32,
    intermediate_size=12,
    moe_intermediate_size=12,
    ffn_hidden_size=12,
    shared_expert_intermediate_size=16,
    num_hidden_layers=2,
    n_layers=2,
    num_attention_heads=2,
    n_heads=2,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=64,
    max_seq_len=64,
    num_experts=6,
    num_local_experts=6,
    n_routed_experts=6,
    moe_num_experts=6,
    num_experts_per_tok=2,
    num_experts_per_token=2,
    moe_k=2,
    moe_topk=2,
    first_k_dense_replace=0,
    moe_layer_start_index=0,
    moe_num_shared_experts=0,
    n_group=1,
    topk_group=1,
    mamba_n_heads=4,
    mamba_d_head=16,
    mamba_d_state=8,
    mamba_chunk_size=8,
    linear_num_value_heads=2,
    linear_num_key_heads=2,
    linear_key_head_dim=8,
    linear_value_head_dim=8,
    initializer_range=0.3,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    router_aux_loss_coef=0.02,
    aux_loss_coef=0.02,
    output_router_logits=True,
)
ROUTERS = {"jetmoe": ".router.layer.weight"}  # its attention has routers too


def classes_of(families):
    """[(family, class)] of the language models whose file has such a loss."""
    folder = pathlib.Path(transformers.__file__).parent / "models"
    for path in sorted(folder.glob("*/modeling_*.py")):
        family = path.parent.name
        if (families and family not in families) or "load_balancing_loss_func" not in path.read_text():
            continue
        module = importlib.import_module(f"transformers.models.{family}.{path.stem}")
        for name, one in list(vars(module).items()):
            if inspect.isclass(one) and name.endswith("ForCausalLM") and one.__module__ == module.__name__:
                yield family, one


def tiny(kind):
    config = kind.config_class
    known = set(inspect.signature(config.__init__).parameters) | set(vars(config()))
    torch.manual_seed(0)
    return kind(config(**{name: value for name, value in SIZES.items() if name in known})).float().train()


def judged(family, kind):
    """A sentence."""
    try:
        model = tiny(kind)
    except Exception as error:  # each config has errors of its own
        return f"not tried: no tiny model can be made of these sizes ({type(error).__name__})"
    ids = torch.randint(3, 48, (4, 10), generator=torch.Generator().manual_seed(1))

    def step():
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        return loss

    routers = None
    if family in ROUTERS:
        routers = [name for name, _ in model.named_parameters() if name.endswith(ROUTERS[family])]
    try:
        with certify.record(model, routers=routers) as recorded:
            recorded.run(step)
        return certify.sentence(recorded.verdict(KIND))
    except certify.CannotJudge as error:
        return f"not judged: {error}"


def main(families):
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    found = collections.defaultdict(list)
    for family, kind in classes_of(families):
        words = judged(family, kind).partition("\n")[0].partition("; the first numbers")[0]
        found[words.replace(kind.__name__ + ": ", "").replace("|", "or")].append(family)
    print(f"Transformers {transformers.__version__}, PyTorch {torch.__version__.partition('+')[0]}\n")
    print("| verdict | families |", "|---|---|", sep="\n")
    for words, names in found.items():
        print(f"| {words} | {', '.join(names)} |")


if __name__ == "__main__":
    main(sys.argv[1:])
