"""The tables of docs/verdicts.md.

    python tests/certify/verdicts.py                  # implementations rebuilt in wild/ from their public description
    python tests/certify/verdicts.py --transformers   # load_balancing_loss_func of each family of Transformers

A module of wild/ has SOURCE, the KIND that it is meant to be, and `loss`."""

import collections
import importlib
import pathlib
import sys

from couplet import certify

WILD = pathlib.Path(__file__).parent / "wild"
MIXTRAL, SWITCH = "load-balancing-mixtral", "load-balancing-switch"


def rebuilt():
    """Yields (module, its source, kind, verdict) of the implementations in wild/."""
    sys.path.insert(0, str(WILD))
    for path in sorted(WILD.glob("*.py")):
        module = importlib.import_module(path.stem)
        yield path.stem, module.SOURCE, module.KIND, judged(module.loss, module.KIND)


def of_transformers():
    """Yields (family, verdict) of each modeling file that has the function."""
    import transformers

    models = pathlib.Path(transformers.__file__).parent / "models"
    for path in sorted(models.glob("*/modeling_*.py")):
        if "def load_balancing_loss_func(" in path.read_text():
            name = f"transformers.models.{path.parent.name}.{path.stem}"
            function = importlib.import_module(name).load_balancing_loss_func
            yield path.stem.removeprefix("modeling_"), judged(function)


def of_switch():
    """Yields (function, how it is called, kind, verdict) of the functions that take probabilities or batches."""
    from transformers.models.switch_transformers import modeling_switch_transformers as switch

    balance = lambda logits: switch.load_balancing_loss_func(logits.softmax(-1)[None], logits.argmax(-1)[None])
    yield (
        "`load_balancing_loss_func` of switch_transformers",
        "with probabilities and the largest one's index",
        SWITCH,
        judged(balance, SWITCH, fixed={"top_k": 1}),
    )
    z = lambda logits: switch.router_z_loss_func(logits[None])
    yield "`router_z_loss_func` of switch_transformers", "with one group of tokens", "z-loss", judged(z, "z-loss")


def judged(function, kind=MIXTRAL, **settings):
    try:
        return certify.certify(function, kind, **settings)
    except certify.CannotJudge as error:
        return error


def said(verdict):
    words = f"not judged: {verdict}" if isinstance(verdict, certify.CannotJudge) else certify.sentence(verdict)
    return words.partition("\n")[0].replace("|", "or")


def table_of_rebuilt():
    lines = ["| implementation | rebuilt in | judged as | verdict |", "|---|---|---|---|"]
    lines += [f"| {source} | `{name}.py` | `{kind}` | {said(verdict)} |" for name, source, kind, verdict in rebuilt()]
    return "\n".join(lines) + "\n"


def table_of_transformers():
    families = collections.defaultdict(list)
    for family, verdict in of_transformers():
        families[said(verdict)].append(family)
    lines = ["| verdict | families |", "|---|---|"]
    lines += [f"| {sentence} | {', '.join(names)} |" for sentence, names in families.items()]
    lines += ["", "| function | called | judged as | verdict |", "|---|---|---|---|"]
    lines += [f"| {name} | {how} | `{kind}` | {said(verdict)} |" for name, how, kind, verdict in of_switch()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table_of_transformers() if "--transformers" in sys.argv else table_of_rebuilt(), end="")
