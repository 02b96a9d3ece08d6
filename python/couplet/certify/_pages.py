"""The tables of docs/losses.md, from the list of kinds: `python -m couplet.certify --list`."""

from __future__ import annotations

from typing import Iterator, List

from ._kind import Fault, Kind
from ._scale import ACCUMULATED, ANY, ROUTED
from .kinds import KINDS


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _head(*cells: str) -> List[str]:
    return [_row(*cells), "|" + "---|" * len(cells)]


def _faults(faults: List[Fault]) -> Iterator[str]:
    yield from _head("key", "fault", "remedy", "seen in")
    for one in faults:
        yield _row(f"`{one.key}`", one.sentence, one.remedy, one.seen)


ERC = (
    "`erc`",
    '"Coupling Experts and Routers", equation 3: [certify.md](certify.md)',
    "0 where M_ij and M_ji are at most alpha M_ii",
    "2 (1 - alpha) m (n - 1) / n of M_ij all m",
    "0 and more",
    "grows with |R| |W_g|",
    "src/model/erc/reference.c",
)  # its faults have a page of their own


def _kind(kind: Kind, known: List[str]) -> Iterator[str]:
    own = [one for one in kind.faults if one.key not in known]
    keys = [one.key for one in kind.faults]
    without = [f"`{key}`" for key in known if key not in keys]
    yield f"### {kind.name}\n"
    yield f"{kind.formula}\n"
    if known:
        yield f"The faults of load balancing, without {', '.join(without)}.\n"
    if own:
        yield from _faults(own)
        yield ""


def page() -> str:
    """Markdown: a table of all kinds, the faults that several share, and each kind's own."""
    lines = [
        *_head("kind", "source", "when all experts get the same", "when K experts get all", "range", "scale", "code")
    ]
    lines += [_row(*ERC)]
    lines += [
        _row(f"`{kind.name}`", kind.source, kind.balance, kind.collapse, kind.range, kind.scale, kind.code)
        for kind in KINDS.values()
    ]
    lines += [
        "",
        "## Faults of any loss",
        "",
        *_faults(list(ANY)),
        "",
        "Under gradient accumulation or over several ranks:",
        "",
        *_faults(list(ACCUMULATED)),
        "",
        "Of load balancing; `times_tokens` of the z-loss too:",
        "",
        *_faults(list(ROUTED)),
        "",
        "## Faults of load balancing",
        "",
    ]
    balancing = [kind for kind in KINDS.values() if "balancing" in kind.name]
    shared = {
        fault.key: fault
        for kind in balancing
        for fault in kind.faults
        if sum(fault in other.faults for other in balancing) > 1
    }
    lines += [*_faults(list(shared.values())), "", "## Kind by kind", ""]
    for kind in KINDS.values():
        lines += _kind(kind, list(shared) if kind in balancing else [])
    return "\n".join(lines).rstrip() + "\n"
