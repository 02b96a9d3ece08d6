"""Invented runs in folders. Tests can compute every figure of these runs."""

import json
from typing import NamedTuple, Optional

from couplet.compare._comparison import Comparison
from couplet.compare._runs import read_runs


class Invented(NamedTuple):
    name: str
    seed: int = 0
    weight: float = 0
    alpha: float = 1
    shift: float = 0  # added to every loss
    last: int = 20  # the last step that is logged
    steps: int = 20  # the number of steps in the config
    train: str = "[/some/where/docs]"
    more: str = ""  # further lines of config.yaml
    no_eval: bool = False
    start: Optional[dict] = None

    def loss(self, step):
        """Returns a loss that is not smooth in the step, so that a mean over wrong steps differs."""
        return 6 - 0.1 * step + self.shift + 0.03 * self.seed + 0.02 * (step * 7 % 5)

    def val(self, step):
        return self.loss(step) + 0.25

    def eps(self, step, layer):
        return 0.5 + 0.01 * step - 0.1 * layer + self.alpha / 8

    def line(self, step):
        line = {"step": step, "tokens": 100 * step, "loss": self.loss(step), "erc": None, "balance": 1.5}
        line |= {"tokens_per_s": 1000 + 100 * self.seed + 10 * (step % 3), "memory_bytes": (3 + step % 4) << 20}
        line |= {"eps_mean": [self.eps(step, 0), self.eps(step, 1)], "alpha_min": [2, None]}
        if step % 2 == 0 and not self.no_eval:
            val = self.val(step)
            line |= {"val_loss": val, "val_loss_by_source": {"a": val - 0.5, "b": val + 0.5}, "erc_clean": [0.5, 0.25]}
        return line

    def write(self, root):
        folder = root / self.name
        folder.mkdir()
        (folder / "config.yaml").write_text(
            f"model:\n    vocab_size: 300\ndata:\n    train: {self.train}\n    batch_tokens: 100\n    seed: unset\n"
            f"train:\n    steps: {self.steps}\n    seed: {self.seed}\nerc:\n    weight: {self.weight}\n"
            f"    alpha: {self.alpha}\n{self.more}"
        )
        lines = (json.dumps(self.line(step)) + "\n" for step in range(1, self.last + 1))
        (folder / "metrics.jsonl").write_text("".join(lines))
        if self.start is not None:
            (folder / "start.json").write_text(json.dumps(self.start))
        return folder


# Two groups of three seeds.
SIX = [Invented(f"vanilla-s{seed}", seed, shift=shift) for seed, shift in ((0, 0), (1, 0.01), (2, -0.02))]
SIX += [Invented(f"erc-s{seed}", seed, 1, shift=shift) for seed, shift in ((2, -0.05), (0, -0.04), (1, 0.02))]


def compared(root, *invented, by=None):
    return Comparison(read_runs([str(one.write(root)) for one in invented]), by)


def figure(comparison, key, source=None):
    return next(f for f in comparison.figures if (f.of.key, f.source) == (key, source))
