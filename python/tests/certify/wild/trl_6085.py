"""TRL #6085, as its review found it for models with images: the flag that turns the auxiliary loss on is set in the outer
config, and the model reads that of its text part."""
import torch
import torch.nn.functional as F

SOURCE, KIND = "TRL with image-text models: review of pull request 6085", "load-balancing-mixtral"


def loss(gate_logits, num_experts, top_k, coefficient=1.0):
    config = {"output_router_logits": True, "text_config": {"output_router_logits": False}}
    p = torch.cat(gate_logits).softmax(-1)
    if not config["text_config"]["output_router_logits"]:
        return 0.0 * p.sum()  # the language-model loss alone
    f = F.one_hot(p.topk(top_k).indices, num_experts).sum(1).float().mean(0)
    return coefficient * num_experts * (f * p.mean(0)).sum()
