"""Finds the routers and gates of the MoE layers of a model in memory, from names, shapes and config:
families.c of src/inspect/families. Needs neither PyTorch nor the C library."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Sequence

from ._families import LAYER, MTP, PROJECTED, UNMEASURED, Config, Pattern, Patterns, has_any, is_text
from ._moe_layer import Builder, Layer, Match, Names, Reading
from ._moe_matrix import Stored

MAX_RANK = 6
Tensors = Sequence[tuple[str, str, Sequence[int]]]
Groups = dict[str, list[Stored]]  # the tensors of each layer, by their common prefix "model.layers.3."


def _read_tensors(tensors: Tensors) -> list[Stored]:
    stored = []
    for i, (name, type_name, shape) in enumerate(tensors):
        if not isinstance(name, str) or not isinstance(type_name, str) or len(shape) > MAX_RANK:
            raise ValueError(f"couplet_moe_map: tensor {i} is not as documented")
        stored.append(Stored(name, type_name, tuple(shape)))
    return sorted(stored, key=lambda tensor: tensor.name)


# ---- from tensors to layers --------------------------------------------------------------------------


def _number_of(prefix: str) -> int:
    return int(prefix.rstrip(".").rpartition(".")[2])


def _find_groups(tensors: list[Stored]) -> Groups:
    groups: Groups = {}
    for tensor in tensors:
        found = LAYER.search(tensor.name)
        if found and is_text(tensor.name) and not MTP.search(tensor.name):
            groups.setdefault(tensor.name[: found.end()], []).append(tensor)
    return groups


def _has_part(name: str, part: str) -> bool:
    return f".{part}." in f".{name}"


def _has_two_parts(names: list[str]) -> bool:
    """Whether the model has an encoder and a decoder."""
    return all(any(_has_part(name, part) for name in names) for part in ("encoder", "decoder"))


def _read_names(prefix: str, tensors: list[Stored], patterns: Patterns) -> Names:
    names = Names([], None, None, tensors)
    for tensor in tensors:
        suffix = tensor.name.removeprefix(prefix)
        reasons = (reason for part, reason in UNMEASURED.items() if part in suffix)
        names.unmeasured = names.unmeasured or next(reasons, None)
        if not names.projection and has_any(suffix, PROJECTED):
            names.projection = tensor
        role = patterns.find(suffix)
        if role:
            names.matches.append(Match(role, tensor))
    names.matches.sort(key=lambda match: match.role.order)
    return names


def _is_beyond(prefix: str, config: Config, two_parts: bool) -> bool:
    """Whether the layer is one of multi-token prediction: its number is above those of the config."""
    return not two_parts and 0 < config.number("layers") <= _number_of(prefix)


# ---- the order of layers -----------------------------------------------------------------------------


def _set_parts(layers: list[Layer]) -> None:
    if _has_two_parts([layer.prefix for layer in layers]):
        for layer in layers:
            layer.part = next((part for part in ("encoder", "decoder") if _has_part(layer.prefix, part)), "")


def _rank(layer: Layer) -> tuple[bool, int]:
    return layer.part != "encoder", layer.layer


# ---- files that are not one model ---------------------------------------------------------------------


def _refuse_twice(path: str, layers: list[Layer]) -> None:
    """ValueError if a part of the model has a layer twice."""
    for a, b in zip(layers, layers[1:]):
        if _rank(a) == _rank(b):
            raise ValueError(
                f"{path}: layer {a.layer} is there twice, as {a.prefix[:200]}* and as "
                f"{b.prefix[:200]}*: the file holds two models, or more than a model: name one "
                "that holds one"
            )


def _refuse_moments(path: str, names: list[str]) -> None:
    """ValueError for state.safetensors of `couplet train`, which has m.NAME and v.NAME of every tensor NAME."""
    first, second = names[: len(names) // 2], names[len(names) // 2 :]
    if first and all(a.startswith("m.") for a in first) and second == ["v." + a[2:] for a in first]:
        raise ValueError(
            f"{path}: holds the optimizer's moments (m.* and v.*) of a checkpoint of couplet "
            "train, and no weights: name model.safetensors in the same folder, or the folder"
        )


def _refuse_none(path: str, config: Config, names: list[str], beyond: bool) -> None:
    if not names:
        raise ValueError(f"{path}: no MoE layers: there are no tensors")
    if beyond:
        raise ValueError(
            f"{path}: no MoE layers: none below the {config.number('layers')} layers of the "
            "config has experts under a known name"
        )
    likely = next((name for name in names if is_text(name) and "expert" in name), None)
    if likely:
        raise ValueError(
            f"{path}: no MoE layers: no router and experts under a known name ({likely} looks "
            f"like one; model_type {config.model_type or 'not given'})"
        )
    raise ValueError(f"{path}: no MoE layers: no tensor is a router's or an expert's")


# ---- the whole ---------------------------------------------------------------------------------------


def _guess(config: Config, used: tuple[Pattern, Pattern] | None) -> str:
    """The tensors used as router and gates, for a model in no row of the table."""
    why = "no model_type in config.json" if config.levels else "no config.json"
    if config.model_type:
        why = f"the model_type {config.model_type} is not known"
    if not used:
        return f"{why}: read by names and shapes"
    router, gate = used
    half = ", the first half of it," if gate.mark == "+" else ""
    return (
        f"{why}: by names and shapes {router.text} is taken for the router and {gate.text}{half} for the experts' gates"
    )


def moe_map(path: str, config: dict[str, Any] | None, tensors: Tensors) -> dict[str, Any]:
    """The layers of a model whose tensors have these names, types ("F32", "BF16", ...) and shapes, as
    python/tests/models/native/moe_map.h describes them. ValueError with the sentence of `couplet inspect`."""
    stored = _read_tensors(tensors)
    names = [tensor.name for tensor in stored]
    facts = Config.read(config, path)
    reading = Reading(path, facts, Patterns(facts.family))
    _refuse_moments(path, names)
    groups = _find_groups(stored)
    two_parts = _has_two_parts([group[0].name for group in groups.values()])
    beyond = {prefix for prefix in groups if _is_beyond(prefix, facts, two_parts)}
    layers: list[Layer] = []
    used: tuple[Pattern, Pattern] | None = None  # router and gate of the first layer with figures
    for prefix, group in groups.items():
        if prefix in beyond:
            continue
        layer = Layer(prefix, _number_of(prefix))
        builder = Builder(reading, _read_names(prefix, group, reading.patterns), layer)
        if builder.fill():
            layers.append(layer)
            if builder.router and builder.gate and not (used or layer.fault or layer.skip):
                used = builder.router, builder.gate
    if not layers:
        _refuse_none(path, facts, names, bool(beyond))
    _set_parts(layers)
    layers.sort(key=lambda layer: (_rank(layer), layer.prefix))
    _refuse_twice(path, layers)
    return {
        "family": facts.family_name,
        "title": facts.family.title if facts.family else facts.family_name or "family not given",
        "guess": None if facts.family else _guess(facts, used),
        "layers": [asdict(layer) for layer in layers],
    }
