"""The verdicts on whole models of Transformers in docs/verdicts.md. A training step of a tiny model is judged for each
family whose code has an auxiliary loss, router included.

    python tests/certify/verdicts_models.py [FAMILY ...]          # judges the Transformers that is imported"""

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
# Sizes by the names in configs. A config gets the sizes whose names it has.
SIZES = {
    name: value
    for value, names in (
        (48, "vocab_size"),
        (32, "hidden_size d_model"),
        (12, "intermediate_size moe_intermediate_size ffn_hidden_size"),
        (16, "shared_expert_intermediate_size head_dim mamba_d_head"),
        (2, "num_hidden_layers n_layers num_attention_heads n_heads num_key_value_heads"),
        (64, "max_position_embeddings max_seq_len"),
        (6, "num_experts num_local_experts n_routed_experts moe_num_experts"),
        (2, "num_experts_per_tok num_experts_per_token moe_k moe_topk"),
        (0, "first_k_dense_replace moe_layer_start_index moe_num_shared_experts"),
        (1, "n_group topk_group"),
        (4, "mamba_n_heads"),
        (8, "mamba_d_state mamba_chunk_size linear_key_head_dim linear_value_head_dim"),
        (2, "linear_num_value_heads linear_num_key_heads"),
        (0.3, "initializer_range"),
        (0, "pad_token_id"),
        (1, "bos_token_id"),
        (2, "eos_token_id"),
        (0.02, "router_aux_loss_coef aux_loss_coef"),
        (True, "output_router_logits"),
    )
    for name in names.split()
}
ROUTERS = {"jetmoe": ".router.layer.weight"}  # the attention of this family has routers too


def classes_of(families):
    """Yields (family, class) of the language models whose file has load_balancing_loss_func."""
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
    """Returns the verdict as a sentence."""
    try:
        model = tiny(kind)
    except Exception as error:  # each config has its own errors
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
        words = judged(family, kind).partition("\n")[0].partition(": on c ")[0]
        found[words.replace(kind.__name__ + ": ", "").replace("|", "or")].append(family)
    print(f"Transformers {transformers.__version__}, PyTorch {torch.__version__.partition('+')[0]}\n")
    print("| verdict | families |", "|---|---|", sep="\n")
    for words, names in found.items():
        print(f"| {words} | {', '.join(names)} |")


if __name__ == "__main__":
    main(sys.argv[1:])
