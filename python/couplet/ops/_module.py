"""couplet.ErcLoss: the loss of one layer as a module, for code that keeps its losses as modules."""

from __future__ import annotations

from typing import Any, Dict, Optional

from torch import Tensor, nn

from ._functional import Matrices, erc_loss


class ErcLoss(nn.Module):
    """Module that returns weight * L [] of one layer, by `couplet.erc_loss`. It has no parameters and no state.

        loss = couplet.ErcLoss(alpha=1.0, layer=3)(router, w_gate, step=step)

    The arguments are those of `couplet.erc_loss`. `step`, the number of the optimizer step, is required: with a
    constant step the noise would be constant."""

    def __init__(
        self,
        alpha: float = 1.0,
        weight: float = 1.0,
        seed: int = 0,
        layer: int = 0,
        activation: str = "gate",
        noise: str = "bounded",
        *,
        gate_half: Optional[str] = None,
        latent_eps: Optional[float] = None,
        compute: Any = None,
    ):
        super().__init__()
        self.settings: Dict[str, Any] = dict(
            alpha=alpha,
            weight=weight,
            seed=seed,
            layer=layer,
            activation=activation,
            noise=noise,
            gate_half=gate_half,
            latent_eps=latent_eps,
            compute=compute,
        )

    def forward(
        self,
        router: Tensor,
        w_gate: Optional[Matrices],
        *,
        step: int,
        w_up: Optional[Matrices] = None,
        w_down: Optional[Matrices] = None,
        down: Optional[Tensor] = None,
        latent_norm: Optional[Tensor] = None,
        delta: Optional[Tensor] = None,
        proxy: str = "row",
        mean: Optional[Tensor] = None,
        scale: Optional[float] = None,
    ) -> Tensor:
        """Returns weight * L [] for router [n, d] and w_gate [n, D, d]."""
        more = dict(self.settings, w_up=w_up, w_down=w_down, down=down, latent_norm=latent_norm, delta=delta)
        more.update(proxy=proxy, mean=mean, scale=scale)
        return erc_loss(router, w_gate, step=step, **more)

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.settings.items())
