"""replicas.py - many replicas of the model of experiments/base.yaml as one: every parameter has a leading replica axis.

A replica is the model that `couplet train` trains from the same settings and the same train.seed: its numbers at the
start, its batches and its noise are equal, and its losses differ by rounding (python/tests/test_pairs.py).

Names: N replicas, L layers, n experts, K experts of a token, d width, D width of an expert, V vocabulary, B sequences
of S tokens, T = B S."""

from __future__ import annotations

import functools
import json
import math
import pathlib
import sys
from typing import Callable, Dict, NamedTuple, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
from couplet import reference  # noqa: E402
from couplet.compare._yaml import read_settings  # noqa: E402
from couplet.ops import _noise  # noqa: E402

INIT_STREAM, CUT = 1, 3.0  # CPL_STREAM_INIT; initial weights are cut at three standard deviations
DECAY = 0.99  # of the moving means of tokens (docs/method.md 3.15)
# Settings that this program reads. Any other setting of the sections below must have its default.
READ = """model.hidden_size model.intermediate_size model.num_hidden_layers model.num_attention_heads model.num_experts
model.num_experts_per_tok model.max_position_embeddings model.rms_norm_eps model.rope_theta model.initializer_range
model.vocab_size data.train data.validation data.tokenizer data.cache data.seq_len data.batch_tokens train.steps train.lr
train.lr_min train.warmup_steps train.beta1 train.beta2 train.eps train.weight_decay train.clip train.seed erc.alpha
erc.noise erc.weight erc.proxy balance.weight z.weight eval.max_sequences eval.every""".split()
SECTIONS = ("model", "data", "train", "erc", "balance", "z", "orth")


# ---- settings ----


def settings_of(sets: Sequence[str] = (), file: pathlib.Path = ROOT / "experiments" / "base.yaml") -> Dict[str, str]:
    """Returns every setting of the configuration with the given NAME=VALUE, as `couplet train FILE --set` reads them.
    Raises ValueError for a setting that this program does not know or cannot follow."""
    defaults = json.loads((ROOT / "python/couplet/compare/defaults.json").read_text())
    found = {**defaults, **read_settings(file.read_bytes()), **dict(one.split("=", 1) for one in sets)}
    for name, value in found.items():
        if name not in defaults:
            raise ValueError(f"pairs: there is no setting {name}")
        if name.split(".")[0] in SECTIONS and name not in READ and value != defaults[name]:
            raise ValueError(f"pairs: {name} is {value}, this program has {defaults[name]} alone")
    if int(found["train.warmup_steps"]) >= int(found["train.steps"]):  # couplet train would lower that of a file
        raise ValueError(f"pairs: train.warmup_steps must be below train.steps, {found['train.steps']}")
    if found["model.vocab_size"] == "unset":
        tokenizer = json.loads((ROOT / "data/tokenizer.json").read_text())
        ids = [*tokenizer["model"]["vocab"].values(), *(one["id"] for one in tokenizer["added_tokens"])]
        found["model.vocab_size"] = str(-(-(max(ids) + 1) // 128) * 128)
    return found


class Shape(NamedTuple):
    """The sizes and constants of a configuration."""

    d: int
    D: int
    L: int
    heads: int
    n: int
    K: int
    V: int
    B: int
    S: int
    eps: float
    theta: float
    std: float

    @classmethod
    def of(cls, settings: Dict[str, str]) -> Shape:
        whole = {k: int(settings[f"model.{k}"]) for k in ("hidden_size", "intermediate_size", "num_hidden_layers")}
        whole |= {k: int(settings[f"model.{k}"]) for k in ("num_attention_heads", "num_experts", "num_experts_per_tok")}
        S, batch = int(settings["data.seq_len"]), int(settings["data.batch_tokens"])
        V, constants = int(settings["model.vocab_size"]), ("rms_norm_eps", "rope_theta", "initializer_range")
        return cls(*whole.values(), V, batch // S, S, *(float(settings[f"model.{k}"]) for k in constants))

    def parameters(self) -> Dict[str, tuple]:
        """Returns name -> (number of its random stream, or None where it starts at 1; shape of a layer, or of the
        model; whether each layer has it), as src/model/params.def lists them."""
        d, D, n, V = self.d, self.D, self.n, self.V
        return {
            "embed": (0, (V, d), False),
            "input_norm": (None, (d,), True),
            "w_q": (2, (d, d), True),
            "w_k": (3, (d, d), True),
            "w_v": (4, (d, d), True),
            "w_o": (5, (d, d), True),
            "q_norm": (None, (d,), True),
            "k_norm": (None, (d,), True),
            "post_norm": (None, (d,), True),
            "router": (9, (n, d), True),
            "w_gate": (10, (n, D, d), True),
            "w_up": (11, (n, D, d), True),
            "w_down": (12, (n, d, D), True),
            "norm": (None, (d,), False),
            "head": (14, (V, d), False),
        }

    def sizes(self) -> Dict[str, int]:
        return {
            k: math.prod(shape) * (self.L if of_layer else 1) for k, (_, shape, of_layer) in self.parameters().items()
        }


# ---- the start ----


def normal(count: int, seed: int, stream: int, layer: int, device: torch.device) -> Tensor:
    """Returns standard normal numbers within CUT, f32 [count]: those of cpl_cpu_normal for this stream of a layer, or of
    the model for layer 0."""

    def drawn(index: Tensor) -> Tensor:
        words = _noise.philox(index >> 1, seed, stream, layer, INIT_STREAM)
        pair = torch.where((index & 1).bool()[:, None], words[:, 2:], words[:, :2]) >> 8
        radius = (-2.0 * ((pair[:, 0] + 1).double() * 2.0**-24).log()).sqrt()
        return (radius * (6.283185307179586 * pair[:, 1].double() * 2.0**-24).cos()).float()

    index = torch.arange(count, dtype=torch.int64, device=device)
    x, again = drawn(index), 0
    while len(wide := (x.abs() > CUT).nonzero().flatten()):
        again += 1
        x[wide] = drawn(index[wide] + (again << 40))
    return x


def initial(shape: Shape, seed: int, device: torch.device) -> Tensor:
    """Returns the numbers of a replica at the start, f32 [P], in the order of `Shape.parameters`."""
    parts = []
    for stream, size, of_layer in shape.parameters().values():
        for layer in range(1, shape.L + 1) if of_layer else (0,):
            count = math.prod(size)
            parts.append(
                torch.ones(count, device=device)
                if stream is None
                else shape.std * normal(count, seed, stream, layer, device)
            )
    return torch.cat(parts)


def views(flat: Tensor, shape: Shape) -> Dict[str, Tensor]:
    """Returns name -> [N, ...], or [N, L, ...] of layers, of the numbers [N, P] of all replicas."""
    rows = shape.parameters()
    parts = flat.split(list(shape.sizes().values()), dim=1)
    return {
        name: part.view(len(flat), *((shape.L,) if of_layer else ()), *size)
        for part, (name, (_, size, of_layer)) in zip(parts, rows.items())
    }


def rotations(shape: Shape, device: torch.device) -> Tensor:
    """Returns cos and sin of the rotary angles, [2, S, h / 2], with frequency and angle rounded to f32."""
    half = shape.d // shape.heads // 2
    power = (torch.arange(half, dtype=torch.float32) * 2) / (2 * half)
    frequency = 1.0 / torch.pow(torch.tensor(shape.theta, dtype=torch.float64), power.double()).float()
    angle = (torch.arange(shape.S, dtype=torch.float32)[:, None] * frequency).double()
    return torch.stack((angle.cos(), angle.sin())).float().to(device)


# ---- the pieces that a compiler joins into few kernels ----


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Returns x [N, T, d] over its root mean square, times weight [N, d], in f32."""
    return weight[:, None] * (x * (x.square().mean(-1, keepdim=True) + eps).rsqrt())


def gated(gate: Tensor, up: Tensor, weight: Tensor) -> Tensor:
    """Returns SiLU(gate) * up * weight, [N, T, n D] of gate's dtype: the experts' hidden numbers, 0 where weight
    [N, T, n] is. A compiler keeps the numbers between in f32; without one they have the dtype of gate."""
    each = (*weight.shape, -1)
    return (F.silu(gate).view(each) * up.view(each) * weight[..., None].to(gate.dtype)).flatten(-2)


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Returns the sum of the negative log-likelihoods of each replica, [N], in f32. A target of -1 has none."""
    each = F.cross_entropy(logits.float().flatten(0, 1), target.flatten(), ignore_index=-1, reduction="none")
    return each.view(target.shape).sum(1)


def adamw(
    p: Tensor, m: Tensor, v: Tensor, g: Tensor, coef: Tensor, ok: Tensor, lr: Tensor, c1: Tensor, c2: Tensor, s: tuple
) -> None:
    """Updates p, m and v [N, P] by the gradient g (docs/method.md 7.3). A replica with ok [N, 1] False stays as it is.
    coef, c1, c2 [N, 1]: clipping, and 1 - beta^t. s: beta1, beta2, eps, decay."""
    beta1, beta2, eps, decay = s
    g = g * coef
    a, b = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * (g * g)
    by = lr * decay * p + (lr / c1) * a / ((b * (1 / c2)).sqrt() + eps)
    p.sub_(torch.where(ok, by, 0.0))
    m.copy_(torch.where(ok, a, m))
    v.copy_(torch.where(ok, b, v))


class Pieces(NamedTuple):
    rms_norm: Callable = rms_norm
    gated: Callable = gated
    cross_entropy: Callable = cross_entropy
    adamw: Callable = adamw

    @classmethod
    def compiled(cls) -> Pieces:
        return cls(*(torch.compile(piece, dynamic=False) for piece in cls()))


PLAIN = Pieces()


# ---- the model ----


class Layer(NamedTuple):
    """What a forward pass leaves of a layer."""

    x: Tensor  # [N, T, d], input of router and experts, f32
    chosen: Tensor  # [N, T, n], 1 where a token chose an expert
    balance: Tensor  # [N]
    z: Tensor  # [N]
    responses: Tensor  # [N, T, n] where asked for, else [0]


class Model:
    """The forward pass. `dtype` is that of the products; router, norms, softmax and sums are f32."""

    def __init__(self, shape: Shape, dtype: torch.dtype, device: torch.device, pieces: Pieces = PLAIN):
        self.shape, self.dtype, self.pieces = shape, dtype, pieces
        self.cos, self.sin = rotations(shape, device)

    def product(self, x: Tensor, w: Tensor) -> Tensor:
        """Returns x w^T, [N, T, rows of w], of x [N, T, columns] and w [N, rows, columns]."""
        return torch.bmm(x.to(self.dtype), w.to(self.dtype).mT)

    def rotated(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat((a * self.cos - b * self.sin, b * self.cos + a * self.sin), -1)

    def attention(self, x: Tensor, w: Dict[str, Tensor], B: int) -> Tensor:
        s, N = self.shape, len(x)
        a = self.pieces.rms_norm(x, w["input_norm"], s.eps)
        q, k, v = (self.product(a, w[f"w_{name}"]).float() for name in "qkv")
        q, k = self.pieces.rms_norm(q, w["q_norm"], s.eps), self.pieces.rms_norm(k, w["k_norm"], s.eps)
        q, k, v = (t.view(N * B, s.S, s.heads, -1).transpose(1, 2) for t in (q, k, v))
        q, k = self.rotated(q), self.rotated(k)
        mixed = F.scaled_dot_product_attention(*(t.to(self.dtype) for t in (q, k, v)), is_causal=True)
        return self.product(mixed.transpose(1, 2).reshape(N, B * s.S, s.d), w["w_o"]).float()

    def experts(self, h: Tensor, w: Dict[str, Tensor], keeps: bool) -> tuple[Tensor, Layer]:
        s = self.shape
        x = self.pieces.rms_norm(h, w["post_norm"], s.eps)
        logits = torch.bmm(x, w["router"].mT)
        probs, lse = logits.softmax(-1), logits.logsumexp(-1)
        chosen = torch.zeros_like(probs).scatter_(-1, logits.detach().topk(s.K, -1).indices, 1.0)
        share = chosen.mean(1) / s.K
        balance = s.n * (share * probs.mean(1)).sum(-1)
        gate, up = (self.product(x, w[f"w_{name}"].flatten(1, 2)) for name in ("gate", "up"))
        hidden = self.pieces.gated(gate, up, probs * chosen)
        out = self.product(hidden, w["w_down"].permute(0, 2, 1, 3).flatten(2)).float()
        norms = torch.linalg.vector_norm(gate.view(*probs.shape, s.D), dim=-1) if keeps else x.new_zeros(0)
        return out, Layer(x, chosen, balance, lse.square().mean(-1), norms)

    def __call__(self, p: Dict[str, Tensor], ids: Tensor, keeps: bool = False) -> tuple[Tensor, list[Layer]]:
        """Returns the sums of the negative log-likelihoods [N] of the tokens after the first of each sequence, ids
        [N, B, S], and what the layers leave. keeps: with the responses |x W_g^j|."""
        N, B, S = ids.shape
        h = p["embed"].gather(1, ids.view(N, B * S, 1).expand(-1, -1, self.shape.d))
        of_layers = {name: p[name].unbind(1) for name, (_, _, of_layer) in self.shape.parameters().items() if of_layer}
        layers = []
        for at in range(self.shape.L):
            w = {name: parts[at] for name, parts in of_layers.items()}
            h = h + self.attention(h, w, B)
            out, layer = self.experts(h, w, keeps)
            h = h + out
            layers.append(layer)
        logits = self.product(self.pieces.rms_norm(h, p["norm"], self.shape.eps), p["head"])
        target = F.pad(ids[..., 1:], (0, 1), value=-1).view(N, B * S)
        return self.pieces.cross_entropy(logits, target), layers


# ---- the coupling loss of many replicas ----


def proxies(router: Tensor, means: Tensor) -> Tensor:
    """Returns the rows [N, n, d] on the side of the tokens, of the moving means [N, d + 1] of x and |x|^2."""
    scale = (means[:, -1] - means[:, :-1].square().sum(-1)).clamp(min=0).sqrt()
    return torch.vmap(reference.rows_of_tokens)(router, means[:, :-1], scale)


def coupling(router: Tensor, gates: Tensor, alpha: float, uniform: Tensor | None) -> Tensor:
    """Returns the coupling loss [N] of the rows [N, n, d] and the gates [N, n, D, d]: the plain definition,
    couplet.reference.erc_loss, of each replica. uniform [N, n, d] in [0, 1) makes the noise; None: no noise."""
    with torch.no_grad():
        bound = 0.0 if uniform is None else _noise.nearest(router)[..., None] * (2 * uniform - 1)
        delta = torch.ones_like(router) + bound
    loss = functools.partial(reference.erc_loss, alpha=alpha)
    return torch.vmap(lambda R, W, noise: loss(R, W, delta=noise))(router, gates, delta)
