"""Hyperparameters that a program was written with, and those of the job that it goes on with: a load replaces the former, and says so."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

__all__ = ["BEGAN", "alike", "arguments", "drives", "plain", "replaced", "text"]

#: What schedulers change in a group; they keep the rate that they began with under another name.
SCHEDULED = frozenset(("lr", "momentum", "betas", "beta1"))
BEGAN = "initial_lr"


def arguments(optimizer: Any) -> frozenset[str]:
    """The names that an optimizer is made with. What else is in its groups (counters, averages) changes as it steps."""
    return frozenset(name for kind in type(optimizer).__mro__ if kind is not object for name in inspect.signature(vars(kind).get("__init__", object.__init__)).parameters)


def replaced(program: Sequence[Mapping[str, Any]], job: Sequence[Mapping[str, Any]], names: frozenset[str], scheduled: bool) -> str:
    """What the groups of the job have in the place of the program's, one after the other, or nothing. ``scheduled``: a scheduler that is kept changes them."""
    found: dict[str, None] = {}
    for ours, theirs in zip(program, job, strict=False):
        found.update(dict.fromkeys(_group(ours, theirs, names, scheduled)))
    return ", ".join(found)


def _group(ours: Mapping[str, Any], theirs: Mapping[str, Any], names: frozenset[str], scheduled: bool) -> Iterator[str]:
    for key in sorted(ours, key=lambda k: k not in ("lr", BEGAN)):
        if key not in theirs or not (key in names or (scheduled and key == BEGAN)) or (scheduled and key in SCHEDULED):
            continue
        a, b = ours[key], theirs[key]
        if plain(a) and plain(b) and alike(a) != alike(b):
            yield f"{'lr' if key == BEGAN else key} {text(a)} of this program is replaced by {text(b)} of the job"


def drives(scheduler: Any, optimizer: Any) -> bool:
    """Whether a scheduler is of an optimizer, or of what a framework has put around it, which has its groups."""
    of = getattr(scheduler, "optimizer", None)
    return of is optimizer or (of is not None and getattr(of, "param_groups", None) is optimizer.param_groups)


def plain(v: Any) -> bool:
    """Whether a value is one that is compared, and no tensor or object."""
    return v is None or isinstance(v, (int, float, str)) or (isinstance(v, (list, tuple)) and all(map(plain, v)))


def alike(v: Any) -> Any:
    """A list is what a tuple is."""
    return tuple(map(alike, v)) if isinstance(v, (list, tuple)) else v


def text(v: Any) -> str:
    """A value for people."""
    return str(v) if not isinstance(v, (list, tuple)) else f"({', '.join(map(text, v))})"
