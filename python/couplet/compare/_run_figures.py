"""The figures of a run that are lined up, in the order of tables and charts."""

from __future__ import annotations

from typing import NamedTuple

WHOLE = 9  # digits of a figure that is a count


class RunFigure(NamedTuple):
    key: str  # member of a line of metrics.jsonl
    of: str  # step: one number a line; layers: one a layer, of which the mean is taken; run: no line has it
    # The value of a run. at: at the point of comparison; loss: the same, linear between two evaluations; tenth: the mean
    # over the last tenth before it; median, most: over all lines; equal_time: validation loss at equal time; tokens: those
    # of the last line.
    how: str
    at_start: bool  # start.json has it too
    curve: str  # none, plain, log, share (from 0 to 1), or loss, whose first twentieth is left out
    file: str  # plain name of its chart
    label: str
    digits: int  # that are shown
    help: str


# fmt: off
FIGURES = tuple(RunFigure(*row) for row in (
    ("loss", "step", "tenth", False, "loss", "training-loss",
     "training loss", 4,
     "Cross-entropy of the training batches, nats per token, mean over the logged lines of the last tenth before "
     "the point of comparison."),
    ("val_loss", "step", "loss", True, "loss", "validation-loss",
     "validation loss", 4,
     "Cross-entropy of held-out text, nats per token, mean over all its targets."),
    ("val_loss_equal_time", "run", "equal_time", False, "none", "validation-loss-equal-time",
     "validation loss at equal time", 4,
     "Validation loss after the time in which the first run reached its last evaluation; a run's time is its "
     "tokens over its median tokens/s, and between two evaluations the loss is taken to be linear."),
    ("erc", "step", "at", False, "log", "erc",
     "ERC in training", 4,
     "The coupling loss as the step computed it, with its noise, before its weight; only runs that train with it "
     "have it."),
    ("erc_clean", "layers", "at", True, "log", "erc-clean",
     "ERC of clean weights", 4,
     "The coupling loss of the weights at erc.alpha without noise, mean over layers."),
    ("alpha_min", "layers", "at", True, "plain", "alpha-min",
     "alpha_min", 3,
     "The smallest alpha at which the coupling loss is 0."),
    ("eps_mean", "layers", "at", True, "plain", "eps",
     "eps", 4,
     "The bound of the noise: half the distance to the nearest other router row over the norm of the row, mean "
     "over experts."),
    ("router_norm_mean", "layers", "at", True, "plain", "router-norm",
     "|R|, mean", 4,
     "Norm of a router row, mean over experts."),
    ("router_norm_std", "layers", "at", True, "none", "router-norm-std",
     "|R|, sd over experts", 4,
     "Its standard deviation over the experts of a layer."),
    ("gate_norm_mean", "layers", "at", True, "plain", "gate-norm",
     "|W_g|, mean", 4,
     "Frobenius norm of the gate of an expert, mean over experts."),
    ("gate_norm_std", "layers", "at", True, "none", "gate-norm-std",
     "|W_g|, sd over experts", 4,
     "Its standard deviation over the experts of a layer."),
    ("router_cos", "layers", "at", True, "plain", "router-cosine",
     "router |cos|", 4,
     "Mean absolute cosine between two router rows of a layer."),
    ("kappa_diagonal", "layers", "at", True, "none", "kappa-own",
     "kappa, own pairs", 4,
     "M[i,i] / (|R_i| |W_g^i|), mean over experts: coupling free of the weights' scale."),
    ("kappa_off_diagonal", "layers", "at", True, "none", "kappa-others",
     "kappa, other pairs", 4,
     "The same for row i and another expert's gate."),
    ("kappa_row_top1", "layers", "at", True, "share", "kappa-row-top1",
     "rows whose own is largest", 4,
     "Share of router rows to which their own expert responds most, by kappa."),
    ("kappa_column_top1", "layers", "at", True, "none", "kappa-column-top1",
     "columns whose own is largest", 4,
     "Share of experts that respond most to their own router row, by kappa."),
    ("balance", "step", "at", False, "plain", "balance",
     "load-balancing loss", 4,
     "n sum f_e P_e before its weight; 1 is balanced."),
    ("load_max", "layers", "at", False, "none", "load-max",
     "largest load", 3,
     "Assignments of the busiest expert over the mean."),
    ("dead_experts", "layers", "at", False, "none", "dead-experts",
     "dead experts per layer", 3,
     "Experts to which no token of the step was sent."),
    ("routing_entropy", "layers", "at", False, "none", "routing-entropy",
     "routing entropy", 4,
     "Entropy of the router's probabilities, nats, mean over tokens."),
    ("grad_norm", "step", "at", False, "none", "grad-norm",
     "gradient norm", 4,
     "Norm of all gradients together, before clipping."),
    ("skipped", "step", "at", False, "none", "skipped",
     "skipped steps", 3,
     "Steps skipped so far because loss or gradient was not finite."),
    ("tokens_per_s", "step", "median", False, "none", "tokens-per-s",
     "tokens/s, median", 4,
     "Tokens of the steps since the line before over their time, median over the lines."),
    ("memory_bytes", "step", "most", False, "none", "memory",
     "peak memory, MiB", 4,
     "Largest resident memory of the process."),
    ("tokens", "run", "tokens", False, "none", "tokens",
     "tokens in all", 9,
     "Input positions up to the last logged step."),
))
# fmt: on
KEYS = [figure.key for figure in FIGURES]
LAYERS = [figure for figure in FIGURES if figure.of == "layers"]
VALIDATION = FIGURES[KEYS.index("val_loss")]
# Keys of older versions, which files of runs may have and --json repeats until the next minor version.
OLD_KEYS = {
    "router_norm_std": "router_norm_sd",
    "gate_norm_std": "gate_norm_sd",
    "kappa_row_top1": "kappa_rows_own",
    "kappa_column_top1": "kappa_columns_own",
}
