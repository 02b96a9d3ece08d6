"""The functions of this folder: which kind each is judged as, the public code it is written after, and its verdict.

Each is written anew for these tests. Names, order of arguments, polarity of masks and formats are those of the public
code. `expected` is one of:

    right             the loss is the kind's
    right as KIND     the loss is another kind's
    a fault's key     the loss has this fault alone
    not right         the loss is no kind's, and no listed fault explains it
    random            the function cannot be judged: two calls give two numbers

`PYTHONPATH=. python -m styles.table`, in `python/tests/certify`, prints all verdicts."""

import importlib

from couplet import certify

MEGATRON = "NVIDIA/Megatron-LM 00611e6e megatron/core/transformer/moe/moe_utils.py"
SWIFT = "modelscope/ms-swift 00840e65 swift/megatron/argument/megatron_args.py, its name of the coefficient; "
AUTOMODEL = "NVIDIA-NeMo/Automodel 01883b41 nemo_automodel/components/moe/layers.py, Gate and MoE"
VERL = "volcengine/verl 068d82f5 verl/models/mcore/config_converter.py, its name of the coefficient; "
FACTORY = "hiyouga/LLaMA-Factory cc22c045 src/llamafactory/hparams/model_args.py, its name of the coefficient; "
MIXTRAL = "huggingface/transformers af3efdd7 src/transformers/models/mixtral/modeling_mixtral.py"
MINIMIND = "jingyaogong/minimind 9d898576 model/model_minimind.py, MoEGate after DeepSeek's"
MINIMIND_LATER = "jingyaogong/minimind 0074dcfd model/model_minimind.py, MOEFeedForward"
DEEPSPEED = "deepspeedai/DeepSpeed 0c691a52 deepspeed/moe/sharded_moe.py"
MEGABLOCKS = "databricks/megablocks 07d572ce megablocks/layers/moe.py"
OLMO = "allenai/OLMo-core 05affc7f src/olmo_core/nn/moe/loss.py"
TORCHTITAN = "pytorch/torchtitan d0eb02f2 torchtitan/components/optimizer.py"
MOD_SQUAD = "UMass-Foundation-Model/Mod-Squad 1d17e81d parallel_linear/parallel_experts/moe.py"
ERNIE = "PaddlePaddle/ERNIE fec4aa6c ernie/moe/topk_gate.py"
PAPER = "Coupling Experts and Routers (arXiv 2512.23447), pseudo-code of figure 8"
SHENSI = "zongzhilou/shensi b4d6bcca src/megatron_ext/core/transformer/shensi/moe.py, its names; "

OLMOE, DEEPSEEK, ORTHOGONALITY = "load-balancing-olmoe", "load-balancing-deepseek", "router-orthogonality"
MIXTRAL_KIND, CENTRED, SIGN = "load-balancing-mixtral", "bias-update-centred", "bias-update-sign"

# function, kind, public code, expected
TABLE = (
    ("megatron.switch_load_balancing_loss_func", OLMOE, MEGATRON, "right"),
    ("megatron.z_loss_func", "z-loss", MEGATRON, "right"),
    ("megatron.get_updated_expert_bias", SIGN, MEGATRON, "right"),
    ("automodel.gate_aux_loss", OLMOE, AUTOMODEL, "right"),
    ("hugging_face.load_balancing_loss_func", MIXTRAL_KIND, VERL + MIXTRAL, "right"),
    ("deepseek.seq_aux_loss", DEEPSEEK, MINIMIND, "right"),
    ("deepspeed.topkgating_l_aux", OLMOE, DEEPSPEED, "right"),
    ("megablocks.batched_load_balancing_loss", OLMOE, MEGABLOCKS, "right"),
    ("ernie.orthogonal_loss", ORTHOGONALITY, ERNIE, "right"),
    ("coupling.erc_loss", "erc", PAPER, "right"),
    ("megatron.z_loss_of_mean", "z-loss", SWIFT + MEGATRON, "mean_first"),
    ("automodel.gate_aux_loss_of_context", OLMOE, AUTOMODEL, "padding_divides"),
    ("hugging_face.loss_with_half_a_mask", MIXTRAL_KIND, FACTORY + MIXTRAL, "padding_in_P"),
    ("hugging_face.loss_from_threshold", MIXTRAL_KIND, MIXTRAL, "not right"),
    ("deepseek.seq_aux_loss_without_view", DEEPSEEK, MINIMIND, "groups_joined"),
    ("deepseek.aux_loss_times_k", OLMOE, MINIMIND_LATER, "right as load-balancing-mixtral"),
    ("deepseek.group_limited_loss", OLMOE, MINIMIND, "not right"),
    ("deepspeed.topkgating_with_jitter", OLMOE, DEEPSPEED, "random"),
    ("megablocks.load_balancing_loss_of_bf16", OLMOE, OLMO, "softmax_in_bf16"),
    ("torchtitan.update_expert_bias", CENTRED, TORCHTITAN, "mean_floored"),
    ("mod_squad.importance_and_load", OLMOE, MOD_SQUAD, "not right"),
    ("ernie.orthogonal_loss_of_columns", ORTHOGONALITY, ERNIE, "columns_normalised"),
    ("coupling.erc_loss_of_rows", "erc", PAPER, "row_twice"),
    ("coupling.erc_loss_of_pairs", "erc", SHENSI + PAPER, "pairs_mean"),
)


def function(name):
    """The function of a row, "module.function"."""
    module, _, name = name.partition(".")
    return getattr(importlib.import_module(f"styles.{module}"), name)


def judge_function(name, kind):
    """(outcome, sentence): the verdict in the words of the table, and as it is printed."""
    try:
        verdict = certify.certify(function(name), kind)
    except certify.CannotJudge as error:
        said = str(error).partition("\n\n")[0]
        return "random" if "called with the same inputs again" in said else "refused", said
    return outcome(certify.as_json(verdict)), certify.sentence(verdict)


def outcome(found):
    """A verdict's JSON in the words of the table."""
    if found["verdict"] == "right":
        return "right"
    if found["verdict"] == "other":
        return f"right as {found['right_as'][0]}"
    return found["faults"][0]["key"] if found["faults"] else "not right"


if __name__ == "__main__":
    for name, kind, _, expected in TABLE:
        got, said = judge_function(name, kind)
        print(f"{'  ' if got == expected else '! '}{name}: {got}, expected {expected}\n    {said}", flush=True)
