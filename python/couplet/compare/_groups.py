"""Groups and names of runs.

Runs whose settings differ only in seeds and bookkeeping are a group. If a setting is named, a group has equal values of
the setting, training data, held-out text and precision. If the setting belongs to a loss, runs in which that loss is
off are the group "off"."""

from __future__ import annotations

import math
import os
import re
from typing import NamedTuple, Optional

from ._runs import Run
from ._settings import Settings

GROUND = ("data.train", "data.validation", "compute.dtype")  # equal in a group, whatever setting --group-by names


class Group(NamedTuple):
    name: str
    members: "list[int]"  # in the order of the runs
    place: float  # value of the setting by which runs are grouped if all values are numbers; else NaN
    is_off: bool = False


class NoSetting(Exception):
    """No run has the setting by which runs are to be grouped."""


def names_of(runs: "list[Run]") -> "list[str]":
    """Returns a name for each run: the folder's base name, or the path as given if several folders have that base
    name."""
    own = [run.name for run in runs]
    return [run.folder if own.count(run.name) > 1 else run.name for run in runs]


def _alike(settings: Settings, a: int, b: int, by: Optional[str]) -> bool:
    if by is not None:
        ground = [settings.all[name] for name in GROUND if name in settings.all]
        return _value(settings, a, by) == _value(settings, b, by) and all(settings.same(s, a, b) for s in ground)
    return all(settings.same(s, a, b) for s in settings.differing if s.role == "matters")


def _value(settings: Settings, run: int, by: str) -> str:
    """Returns the meaning of the setting by which runs are grouped, or "off" if it belongs to a loss that is off in the
    run."""
    section, _, name = by.partition(".")
    return "off" if name != "weight" and settings.is_off(section, run) else settings.all[by].meanings[run]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _common_name(names: "list[str]") -> str:
    """Returns the common start of all names, without the part that names a seed: "vanilla" for vanilla-s0,
    vanilla-s1."""
    return re.sub(r"(?:(?<=[-_. ])(?:seed|s))?$", "", os.path.commonprefix(names).rstrip("0123456789")).rstrip("-_. ")


def _nearest(word: str, names: "list[str]") -> Optional[str]:
    """Returns the first name with the fewest edits to the word, if their number is small."""
    length = len(word)
    limit = length // 3 + 1 if length > 8 else 3 if length > 3 else 2 if length > 1 else 0
    best = None
    for name in names:
        row = list(range(length + 1))
        for i, letter in enumerate(name, 1):
            left, row[0] = row[0], i
            for k in range(1, length + 1):
                left, row[k] = row[k], min(row[k] + 1, row[k - 1] + 1, left + (letter != word[k - 1]))
        if row[length] < limit:
            best, limit = name, row[length]
    return best


def groups_of(settings: Settings, names: "list[str]", by: Optional[str]) -> "list[Group]":
    """Returns the groups in the order of their first runs, or with `by` in the order of its values. Raises
    NoSetting."""
    if by is not None and by not in settings.all:
        near = _nearest(by, list(settings.all))
        hint = f"did you mean {near}?" if near else "give a name of config.yaml with its section, such as erc.alpha"
        raise NoSetting(f"no run has a setting {by}; {hint}")
    members: list[list[int]] = []
    for run in range(len(names)):
        for group in members:
            if all(_alike(settings, run, other, by) for other in group):
                group.append(run)
                break
        else:
            members.append([run])
    places = [math.nan] * len(members)
    if by is not None:
        texts, found = settings.all[by].texts, {run: _value(settings, run, by) for (run, *_) in members}
        off = [group for group in members if found[group[0]] == "off"]
        others = [group for group in members if found[group[0]] != "off"]
        values = {group[0]: _number(found[group[0]]) for group in others}
        if any(map(math.isnan, values.values())):
            members = off + sorted(others, key=lambda group: texts[group[0]])
        else:
            members = off + sorted(others, key=lambda group: values[group[0]])
            places = [values.get(group[0], math.nan) for group in members]
    groups: list[Group] = []
    for group, place in zip(members, places):
        name = stem = _group_name(settings, names, group, by)
        first = next((other.members[0] for other in groups if other.name == name), None)
        dtype = settings.all.get("compute.dtype")
        if by is not None and first is not None and dtype and not settings.same(dtype, first, group[0]):
            name = stem = f"{stem}, {dtype.texts[group[0]]}"
        k = 2
        while any(other.name == name for other in groups):
            name, k = f"{stem} [{k}]", k + 1
        groups.append(Group(name, group, place, by is not None and _value(settings, group[0], by) == "off"))
    return groups


def _group_name(settings: Settings, names: "list[str]", group: "list[int]", by: Optional[str]) -> str:
    if by is not None:
        off = _value(settings, group[0], by) == "off"
        return "off" if off else f"{by} {settings.all[by].texts[group[0]]}"
    if len(group) == 1:
        return names[group[0]]
    if common := _common_name([names[run] for run in group]):
        return common
    differing = (f"{s.name} {s.texts[group[0]]}" for s in settings.differing if s.role == "matters")
    return (", ".join(differing) or "all runs")[:120]
