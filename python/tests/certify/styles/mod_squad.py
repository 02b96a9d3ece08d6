"""The balance loss in the style of Mod-Squad and of the sparsely-gated layers before it: a squared variation."""


def _cv_squared(x):
    x = x.float() if x.dtype.itemsize < 4 else x
    return x.var() / (x.mean() ** 2 + 1e-10)


def importance_and_load(logits, top_k, loss_coef):
    probs = logits.softmax(dim=1)
    top_k_gates, top_k_indices = probs.topk(top_k, dim=1)
    gates = probs.new_zeros(probs.shape).scatter(1, top_k_indices, top_k_gates)
    load = (gates > 0).to(probs.dtype).sum(0)
    return loss_coef * (_cv_squared(gates.sum(0)) + _cv_squared(load))
