# SPDX-License-Identifier: Apache-2.0
# Copyright The Couplet contributors
"""The expert-router coupling (ERC) loss of Mixture-of-Experts layers in one file, to copy into a trainer.

Lv, Ma, Ma, Qiao: "Coupling Experts and Routers in Mixture-of-Experts via an Auxiliary Loss", equation 3. With router
rows R_i [d], gates W_j [D, d] (y = W x, the matrix whose output enters the activation function) and noise delta:

    M[i, j] = |W_j (R_i * delta_i)|
    L = 1 / n^2 * sum over i and j != i of max(M[i, j] - alpha M[i, i], 0) + max(M[j, i] - alpha M[i, i], 0)

No token enters it: it is evaluated once a layer and optimizer step, in training only. Either add it to a loss in one
micro-batch of a step, times the number by which the trainer divides its losses,

    loss = loss + sum(erc_loss(router, w_gate, weight=1 / len(layers), step=step, layer=l)
                      for l, (router, w_gate) in enumerate(layers))

or let `add_gradients(layers, step=step)` add its gradients, behind the last backward pass of a step, where gradients
are reduced already, and before they are clipped.

At a tie, M[i, j] = alpha M[i, i] but for rounding (all experts are equal after upcycling), the gradient passes, as
torch.clamp had it when the paper was written. The noise is a function of (seed, step, layer) alone, by Philox4x32-10
(Salmon et al., 2011): the same on every rank and device and after a resume, and that of the package couplet. Products,
norms, hinges and sums are f32 or wider in every dtype. The
backward pass multiplies by the gates again: between the two passes no more than M [n, n] is kept. Second derivatives
are not supported. There is no state, no hook, and torch is the only dependency. torch.compile works without `group`."""
import torch
import torch.distributed as dist

NUMBERS_AT_ONCE = 1 << 24  # most numbers of gates and responses at once, in f32
LOW = 0xFFFFFFFF


# ---- noise ----

def _philox(blocks, seed, step, layer):
    """blocks int64 [m] -> [m, 4] numbers in 0 ... 2^32 - 1. step: int64 [] or an int; 2 is the stream of the noise."""
    if not torch.is_tensor(step):
        step = torch.full((), step, dtype=torch.int64, device=blocks.device)
    c0, c1, c2, c3 = blocks & LOW, blocks >> 32, step & LOW, (2 | layer << 8 | (step >> 32) << 24) & LOW
    k0, k1 = seed & LOW, seed >> 32 & LOW
    for _ in range(10):
        even, odd = c0 * 0xD2511F53, c2 * 0xCD9E8D57  # int64 wraps as unsigned numbers do
        c0, c1, c2, c3 = (odd >> 32 & LOW) ^ c1 ^ k0, odd & LOW, (even >> 32 & LOW) ^ c3 ^ k1, even & LOW
        k0, k1 = (k0 + 0x9E3779B9) & LOW, (k1 + 0xBB67AE85) & LOW
    return torch.stack((c0, c1, c2, c3), dim=-1)


@torch.no_grad()
def bound_of_noise(router):
    """eps_i = min over j != i of |R_i - R_j| / (2 |R_i|), [n] of router [n, d]; 0 of a zero row and for n = 1."""
    wide = router if router.device.type == "mps" else router.double()
    apart = torch.cdist(wide, wide, compute_mode="donot_use_mm_for_euclid_dist")  # equal rows are exactly 0 apart
    apart = apart.masked_fill(torch.eye(len(wide), dtype=torch.bool, device=wide.device), float("inf"))
    norm = torch.linalg.vector_norm(wide, dim=-1)
    eps = apart.amin(dim=-1) / (2 * norm)
    return torch.where((norm == 0) | (len(wide) == 1), torch.zeros_like(eps), eps)


@torch.no_grad()
def noise(router, *, seed=0, step, layer):
    """delta [n, d] of router [n, d] in f32 or f64: delta_i is uniform in (1 - eps_i, 1 + eps_i), entries independent."""
    blocks = torch.arange((router.numel() + 3) // 4, dtype=torch.int64, device=router.device)
    numbers = _philox(blocks, seed, step, layer).flatten()[:router.numel()].view(router.shape)
    uniform = (numbers >> 8).to(torch.float32) * 2.0**-24
    eps = bound_of_noise(router).clamp(max=torch.finfo(torch.float32).max).to(router.dtype)
    return 1 + (2 * uniform.to(router.dtype) - 1) * eps[:, None]


# ---- loss ----

def _gate(w, half):
    """The gate's rows [c, D, d] in gates [c, D, d], or [c, 2D, d] that hold gate and up projection."""
    middle = w.shape[1] // 2
    return {None: w, "first": w[:, :middle], "second": w[:, middle:], "interleaved": w[:, ::2]}[half]


def _pieces(gates, half, n):
    """(number of the first expert, number of the tensor, its experts) of pieces that are computed at once."""
    first = 0
    for t, w in enumerate(gates):
        D, d = _gate(w, half).shape[1:]
        at_once = max(1, NUMBERS_AT_ONCE // (D * max(n, d)))
        for begin in range(0, len(w), at_once):
            yield first + begin, t, slice(begin, min(begin + at_once, len(w)))
        first += len(w)


class _Erc(torch.autograd.Function):
    """L [] of proxies [n, d] and gates [c, D, d]; with `group`, experts rank * c ... (rank + 1) * c - 1 are here."""

    @staticmethod
    def forward(ctx, proxies, alpha, half, group, *gates):
        n, here = len(proxies), sum(len(w) for w in gates)
        first = dist.get_rank(group) * here if group is not None else 0
        columns = [torch.linalg.vector_norm(proxies @ _gate(gates[t], half)[part].to(proxies.dtype).mT, dim=-1).mT
                   for _, t, part in _pieces(gates, half, n)]
        M = torch.cat(columns, dim=1)                                           # [n, c]
        M = M if M.device.type == "mps" else M.double()
        own = own_here = M[first:first + here].diagonal().contiguous()
        if group is not None:
            own = M.new_empty(n)
            dist.all_gather_into_tensor(own, own_here, group=group)
        rows, cols = M - alpha * own[:, None], M - alpha * own_here
        numbers = torch.arange(n, device=M.device)
        others = numbers[:, None] != numbers[first:first + here]
        # Products of equal rows differ in their last bits: the order of a sum depends on the place of the row.
        D, d = _gate(gates[0], half).shape[1:]
        least = alpha * (1 - (3 + (24 + d**0.5) / D**0.5) * torch.finfo(proxies.dtype).eps)
        in_rows, in_cols = (M >= least * own[:, None]) & others, (M >= least * own_here) & others
        loss = ((rows.clamp(min=0) + cols.clamp(min=0)) * others).sum() / n**2  # NaN stays NaN
        active = in_rows.sum(1, dtype=M.dtype)                                  # by row, in all columns
        if group is not None:
            sums = torch.cat((loss[None], active))
            dist.all_reduce(sums, group=group)
            loss, active = sums[0], sums[1:]
        of_own = -alpha * (active[first:first + here] + in_cols.sum(0, dtype=M.dtype))
        G = torch.where(others, in_rows.to(M.dtype) + in_cols.to(M.dtype), of_own) / n**2
        scale = torch.where(M == 0, torch.zeros_like(M), G / M).to(proxies.dtype)
        ctx.save_for_backward(proxies, scale, *gates)
        ctx.half, ctx.group = half, group
        return loss.to(proxies.dtype)

    @staticmethod
    def backward(ctx, by):
        proxies, scale, *gates = ctx.saved_tensors
        scale = (scale * by).mT[..., None]                                      # [c, n, 1]
        d_proxies = torch.zeros_like(proxies)
        d_gates = [torch.zeros_like(w) if needed else None for w, needed in zip(gates, ctx.needs_input_grad[4:])]
        with torch.autocast(proxies.device.type, enabled=False):
            for first, t, part in _pieces(gates, ctx.half, len(proxies)):
                W = _gate(gates[t], ctx.half)[part].to(proxies.dtype)
                d_out = proxies @ W.mT * scale[first:first + len(W)]            # [c, n, D]
                if ctx.needs_input_grad[0]:
                    d_proxies = d_proxies + (d_out @ W).sum(0)
                if d_gates[t] is not None:
                    _gate(d_gates[t], ctx.half)[part] = (d_out.mT @ proxies).to(gates[t].dtype)
        if ctx.group is not None:
            dist.all_reduce(d_proxies, group=ctx.group)
        return d_proxies, None, None, None, *d_gates


def erc_loss(
    router, w_gate, *, step, layer, alpha=1.0, weight=1.0, seed=0, delta=None, down=None, gate_half=None, group=None
):
    """weight * L [], f32 (f64 where router or gates are).

    router: [n, d]. w_gate: [n, D, d], or a list of n [D, d], in bf16, f16, f32 or f64. gate_half: "first", "second" or
    "interleaved" where gate and up projection share [n, 2D, d] (or [2D, d] of a list): which rows are the gate's.
    step, layer, seed: of the noise; step: a number, or a tensor int64 []. delta: [n, d] noise of your own; ones: none.
    down: [l, d], the projection of latent experts, whose gates are [n, D, l]; no norm acts on its output.
    group: the process group of expert parallelism. Every process has the whole router and n / p experts, process r
    those from r n / p on. The loss and the router's gradient are then the same in all processes: a mean over them is
    right, a sum counts it p times; an expert's gradient is where the expert is."""
    gates = [w_gate] if torch.is_tensor(w_gate) else [w[None] for w in w_gate]
    n, here = router.shape[0], sum(len(w) for w in gates)
    processes = dist.get_world_size(group) if group is not None else 1
    if down is not None and (down.dim() != 2 or down.shape[1:] != router.shape[1:]):
        raise ValueError(f"down is {list(down.shape)}, it must be [l, d] beside a router {list(router.shape)}")
    width = router.shape[-1] if down is None else down.shape[0]
    if router.dim() != 2 or any(w.dim() != 3 or w.shape[2] != width for w in gates):
        raise ValueError(f"router {list(router.shape)} must be [n, d] and the gates {[list(w.shape) for w in gates[:2]]} "
                         "[n, D, d], rows as nn.Linear stores them")
    if here * processes != n:
        raise ValueError(f"the router has {n} rows, and there are gates of {here} experts in each of {processes} processes")
    if gate_half not in (None, "first", "second", "interleaved"):
        raise ValueError(f"gate_half is {gate_half!r}, it must be None, 'first', 'second' or 'interleaved'")
    dtypes = {torch.float32, *(t.dtype for t in (router, *gates, *([] if down is None else [down])) if t.dtype == torch.float64)}
    wide = router.to(torch.float64 if torch.float64 in dtypes else torch.float32)
    if delta is None:
        delta = noise(wide.detach(), seed=seed, step=step, layer=layer)
    with torch.autocast(wide.device.type, enabled=False):
        proxies = wide * delta.detach().to(wide.dtype)
        if down is not None:
            proxies = proxies @ down.to(wide.dtype).mT
        return weight * _Erc.apply(proxies, alpha, gate_half, group, *gates)


def add_gradients(layers, *, step, weight=1.0, scale=1.0, attribute="grad", **options):
    """Adds the gradients of weight * mean over layers of L to the attribute of routers and gates, a layer at a time;
    returns that loss without a graph. Once a step, behind its last backward pass, before gradients are clipped.

    layers: [(router, gates)] or [(router, gates, down)], gates a parameter or a list. scale: of the gradients, a number or a tensor [], as of a
    gradient scaler. attribute: "main_grad" in Megatron-Core. options: those of `erc_loss`."""
    total = 0.0
    for layer, (router, gates, *down) in enumerate(layers):
        with torch.enable_grad():
            options["down"] = down[0] if down else None
            loss = erc_loss(router, gates, step=step, layer=layer, weight=weight / len(layers), **options)
        learned = [p for p in (router, *([gates] if torch.is_tensor(gates) else gates), *down) if p.requires_grad]
        for p, gradient in zip(learned, torch.autograd.grad(loss * scale, learned) if learned else ()):
            there = getattr(p, attribute)
            if there is None:
                setattr(p, attribute, gradient)
            else:
                there.add_(gradient)
        total = total + loss.detach()
    return total
