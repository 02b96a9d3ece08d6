"""Maps names of arguments in public trainers to the inputs of a kind."""

from __future__ import annotations

import re
from typing import Dict, Iterable, List, Mapping, Sequence

# input: the names that its argument has in trainers
NAMES = {
    "logits": "logits router_logits gate_logits gate_logit expert_logits x",
    "probs": "probs scores router_probs gate_probs gate_prob routing_probs routing_weights router_scores expert_scores "
    "gates",
    "tokens_per_expert": "tokens_per_expert expert_load batch_size_per_expert exp_counts load",
    "total_num_tokens": "total_num_tokens num_tokens total_tokens total_bz",
    "routing_map": "routing_map dispatch_mask topk_map",
    "top_k": "top_k k K topk num_experts_per_tok num_experts_per_token moe_topk moe_top_k moe_router_topk moe_k "
    "n_activated_experts",
    "num_experts": "num_experts n_experts num_local_experts n_routed_experts moe_num_experts num_moe_experts n E",
    "mask": "mask attention_mask padding_mask key_padding_mask token_mask loss_mask valid_mask non_padding_mask",
    "coefficient": "coefficient weight alpha",  # and each name that COEFFICIENT finds
    "micro_batches": "micro_batches accumulation_steps gradient_accumulation_steps",
    "sequences": "sequences batch_size num_sequences bsz",
    "indices": "indices topk_indices top_indices selected_experts expert_indices topk_idx topk_ids",
    "kept": "kept",
    "router": "router R r router_weight router_weights gate_weight gate W weight",
    "outputs": "outputs expert_outputs y",
    "bias": "bias expert_bias e_score_correction_bias correction_bias",
    "counts": "counts tokens_per_expert expert_load load",
    "rate": "rate update_rate expert_bias_update_rate bias_update_rate bias_update_factor load_balance_coeff coeff u gamma",
    "scale": "scale routed_scaling_factor route_scale",
    "tokens": "tokens x hidden_states",
    "W_down": "W_down w_down down W_g_down",
    "down": "down P W_l w_latent latent_proj latent_down fc1_latent_proj routed_expert_down_proj w_latent_down down_proj "
    "projection",
    "latent_norm": "latent_norm latent_norm_weight norm norm_weight gain g",
    "latent_eps": "latent_eps eps norm_eps rms_norm_eps epsilon",
    "w_gate": "w_gate W_g Wg gate gates gate_proj expert_gate_weights",
    "w_up": "w_up W_p Wp up up_proj",
    "w_gate_up": "w_gate_up gate_up gate_up_proj",
    "delta": "delta",
    "alpha": "alpha",
}
COEFFICIENT = re.compile(r"(coeff?|coefficient|weight|alpha|lambda|lambd)(_|$)")
AXES = re.compile(r"_[A-Z]+$")  # torchtitan ends names so: padding_mask_T, expert_bias_E
PADDING = re.compile(r"(?<!non)(?<!non_)(?<!not_)pad")


def is_padding(theirs: str) -> bool:
    """Returns whether a mask of this name is True at padding, as in Megatron-Core, NeMo Automodel and PyTorch."""
    return bool(PADDING.search(theirs))


def readings(theirs: str, inputs: Sequence[str]) -> List[str]:
    """Returns the inputs that an argument of this name can be, in the kind's order."""
    name = AXES.sub("", theirs)
    listed = [one for one, names in NAMES.items() if {theirs, name} & set(names.split())]
    found = [one for one in inputs if one in listed]
    if not found and "mask" in inputs and "mask" in name and "pad" in name:
        return ["mask"]
    is_coefficient = COEFFICIENT.search(name) and "router" not in listed and "coefficient" in inputs
    return found or (["coefficient"] if is_coefficient else [])


def read(parameters: Iterable[str], inputs: Sequence[str]) -> Dict[str, str]:
    """Returns input -> argument for each argument that can be read. Arguments with one reading are read first. `weight`
    has two readings: it is the router where another argument is the coefficient. Second names are not read."""
    found: Dict[str, str] = {}
    options_of = {theirs: options for theirs in parameters if (options := readings(theirs, inputs))}
    for theirs, options in sorted(options_of.items(), key=lambda one: len(one[1])):
        free = [one for one in options if one not in found]
        if free:
            found[free[0]] = theirs
    return found


def wrapper(function: str, found: Mapping[str, str], missing: Sequence[str], unknown: Sequence[str]) -> str:
    """Returns two lines of Python that call the function with the inputs by our names. `found` is input -> argument,
    `missing` the inputs that the kind needs, `unknown` the arguments that were not read. A single missing input goes to
    a single unknown argument, and *args gets all inputs by position. Otherwise lines have ... in place of a value."""
    name = function if function.isidentifier() else "my_loss"
    pairs = dict(zip(missing, unknown)) if len(missing) == len(unknown) == 1 else {}
    given = [f"{theirs}={ours}" for ours, theirs in {**found, **pairs}.items()]
    asked = [f"{theirs}=..." for theirs in unknown if theirs not in pairs.values()]
    given = given if found or unknown else list(missing)
    return f"def wrapped({', '.join(dict.fromkeys((*found, *missing)))}):\n    return {name}({', '.join((*given, *asked))})"
