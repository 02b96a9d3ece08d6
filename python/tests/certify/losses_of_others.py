"""Coupling losses as other people write them: right ones, and some with a fault."""

import couplet
import torch


def ours(router, w_gate, delta, alpha, weight):
    return couplet.erc_loss(router, w_gate, delta=delta, alpha=alpha, weight=weight)


def papers(r, gate, noise, a, w):  # no name that is known: by position
    return couplet.reference.erc_loss(r, gate, alpha=a, weight=w, delta=noise)


def fused(R, gate_up_proj, delta, alpha, weight):
    return couplet.erc_loss(R, gate_up_proj, gate_half="first", delta=delta, alpha=alpha, weight=weight)


def draws_itself(router, w_gate, alpha, weight):
    eps = couplet.reference.eps_of(router.detach())[:, None]
    delta = 1 + eps * (2 * torch.rand_like(router) - 1)
    return {"loss": couplet.reference.erc_loss(router, w_gate, alpha=alpha, weight=weight, delta=delta), "delta": delta}


def merged(router, w_gate_up, delta, alpha, weight):
    return couplet.reference.erc_loss(router, w_gate_up, alpha=alpha, weight=weight, delta=delta)


def detached(router, w_gate, delta, alpha, weight):
    return couplet.reference.erc_loss(router.detach(), w_gate, alpha=alpha, weight=weight, delta=delta)


def pairs_mean(router, w_gate, delta, alpha, weight):
    n = len(router)
    return couplet.reference.erc_loss(router, w_gate, alpha=alpha, weight=weight, delta=delta) * n / (n - 1)


def through_eps(router, w_gate, alpha, weight):
    eps = couplet.reference.eps_of(router)[:, None]
    delta = 1 + eps * (2 * torch.rand_like(router) - 1)
    return {"loss": couplet.reference.erc_loss(router, w_gate, alpha=alpha, weight=weight, delta=delta), "delta": delta}


def under_no_grad(router, w_gate, delta, alpha, weight):
    with torch.no_grad():
        return couplet.reference.erc_loss(router, w_gate, alpha=alpha, weight=weight, delta=delta)


def by_position(router, w_gate, delta=None, eps=1e-3, alpha=1.0, weight=1.0, /):
    return couplet.reference.erc_loss(router, w_gate, alpha=alpha, weight=weight, delta=delta)


async def later(router, w_gate, delta, alpha, weight):
    return papers(router, w_gate, delta, alpha, weight)


def prints(router, w_gate, delta, alpha, weight):
    print("a word of mine")
    return papers(router, w_gate, delta, alpha, weight)


def sparse(router, w_gate, delta, alpha, weight):
    return papers(router, w_gate, delta, alpha, weight).reshape(1).to_sparse()


def on_meta(router, w_gate, delta, alpha, weight):
    return papers(router, w_gate, delta, alpha, weight).to("meta")


# ---- those that leave something to the caller ----


def without_weight(router, w_gate, delta, alpha):
    return couplet.reference.erc_loss(router, w_gate, alpha=alpha, weight=1.0, delta=delta)


def without_alpha(router, w_gate, delta, weight):
    return couplet.reference.erc_loss(router, w_gate, alpha=1.0, weight=weight, delta=delta)


def without_both(router, w_gate, delta):
    return couplet.reference.erc_loss(router, w_gate, alpha=0.6, weight=1.0, delta=delta)


class Module(torch.nn.Module):
    def forward(self, w_gate, router, delta, alpha, weight):
        return couplet.reference.erc_loss(router, w_gate, alpha=alpha, weight=weight, delta=delta)


module = Module()


def draws_and_keeps(router, w_gate, alpha, weight):
    return draws_itself(router, w_gate, alpha, weight)["loss"]


def changes_its_inputs(router, w_gate, delta, alpha, weight):
    with torch.no_grad():
        for t in (router, w_gate, delta):
            t.mul_(2)
    return couplet.reference.erc_loss(router, w_gate, alpha=alpha, weight=weight, delta=delta)


# ---- those that cannot be judged ----

number = 3


def a_float(*given):
    return papers(*given).item()


def nothing(router, w_gate, delta, alpha, weight):
    return None


def a_tuple(*given):
    return papers(*given), 1


def a_vector(router, w_gate, delta, alpha, weight):
    return router.sum(1)


def an_integer(*given):
    return papers(*given).long()


def no_loss(*given):
    return {"Loss": papers(*given)}


def short_M(*given):
    return {"loss": papers(*given), "M": torch.ones(3)}


def raises(router, w_gate, delta, alpha, weight):
    raise KeyError("boom")


def leaves(router, w_gate, delta, alpha, weight):
    raise SystemExit(0)


class Unsaid(BaseException):
    def __str__(self):
        raise ValueError("no words")


def raises_its_own(router, w_gate, delta, alpha, weight):
    raise Unsaid


def interrupted(router, w_gate, delta, alpha, weight):
    raise KeyboardInterrupt


def unsigned(router, w_gate, delta, alpha, weight):
    return router.sum()


unsigned.__signature__ = 3


def backward_raises(router, w_gate, delta, alpha, weight):
    loss = (router**2).sum()
    with torch.no_grad():
        router.mul_(2)
    return loss


def other_arguments(a, b):
    return a.sum()


WRONG = {
    "merged": "over gate and up together",
    "detached": "the router gets no gradient",
    "pairs_mean": "n (n - 1)",
    "through_eps": "through eps",
    "under_no_grad": "no gradient",
}
CANNOT = {
    "a_float": "it returns a float, must return the loss",
    "nothing": "it returns None, must return the loss",
    "a_tuple": "it returns a tuple, must return the loss",
    "a_vector": "it returns a tensor [5] of torch.float32, must return the loss",
    "an_integer": "it returns a tensor [] of torch.int64, must return the loss",
    "no_loss": "it returns a dict with Loss, must have loss",
    "short_M": "it returns as M a tensor [3] of torch.float32, must be a tensor [5, 5]",
    "raises": "it raises KeyError: 'boom'\n\nTraceback",
    "leaves": "it raises SystemExit: 0",
    "raises_its_own": "it raises Unsaid: \n\nTraceback",
    "backward_raises": "it changes its input router",
    "changes_its_inputs": "it changes its input router",
    "other_arguments": "a is none of router, w_gate",
    "Module": "Module is a class; name a function, or an instance",
    "number": "number is 3, which cannot be called",
    "later": "it is a coroutine (async def), must be a function\n",
    "sparse": "it returns a tensor [1] of torch.float32, sparse_coo, must return the loss",
    "on_meta": "it returns a tensor [] of torch.float32, meta, must return the loss",
    "absent": "losses_of_others has no absent",
    "without_alpha": "it takes no alpha; say which it has inside, as --set alpha=VALUE",
    "unsigned": "its arguments cannot be read; wrap it in a function",
}
