"""What a rank says of its job: notes, metrics, versions, and the epoch of its data. Durable checkpoints carry it."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from ..errors import Invalid
from . import native as n
from .rank import Rank

__all__ = ["Remarks"]

log = logging.getLogger("replicad")

#: So many remarks of one kind, names of so many bytes, and texts of so many.
MOST, NAME, TEXT = 64, 64, 256


def _checked(kind: str, name: str, there: int) -> bytes:
    raw = name.encode(errors="replace").replace(b"\0", b" ")
    if not 0 < len(raw) <= NAME:
        raise Invalid(f"{kind} {name!r:.80}: the name has {len(raw)} bytes, and 1 to {NAME} fit: give it a shorter one")
    if there >= MOST:
        raise Invalid(f"{kind} {name!r}: there are {there} already, and {MOST} fit: say several in one, or leave some out")
    return raw


def text(kind: str, name: str, value: object) -> bytes:
    """A value as it is said. :class:`Invalid` where it is too long."""
    raw = str(value).encode(errors="replace").replace(b"\0", b" ")
    if len(raw) > TEXT:
        raise Invalid(f"{kind} {name!r}: the text {str(value)[:40]!r}... has {len(raw)} bytes, and {TEXT} fit: note what names it, a file's digest for example")
    return raw


def number(value: Any) -> float:
    """A metric's value; NaN where it is no finite number."""
    try:
        is_ = float(value)
    except (TypeError, ValueError):
        return math.nan
    return is_ if math.isfinite(is_) else math.nan


class Remarks:
    """All that one rank says. What is said again takes the place of what was said."""

    def __init__(self) -> None:
        self._of: dict[int, dict[bytes, n.Remark]] = {kind: {} for kind in (n.NOTE, n.METRIC, n.VERSION, n.LOADER_EPOCH)}
        self._new = False
        self._marked = ""  # of what copies lack
        self._warned: set[str] = set()  # metrics that were no number once

    def note(self, kind: str, values: Mapping[str, object]) -> None:
        """Takes texts: "note" or "version"."""
        self._take(n.NOTE if kind == "note" else n.VERSION, kind, values, lambda name, value: {"text": text(kind, name, value)})

    def metric(self, step: int, values: Mapping[str, Any]) -> None:
        """Takes numbers that belong to a step. What is no finite number takes the former value's place all the same, as no value: a checkpoint must not
        have that of an earlier step in its place, and training must not end for it."""
        numbers = {name: number(value) for name, value in values.items()}
        self._take(n.METRIC, "metric", numbers, lambda _, is_: {"value": is_, "step": step})
        for name in (name for name, is_ in numbers.items() if math.isnan(is_) and name not in self._warned):
            self._warned.add(name)
            log.warning(
                "replicad: step %d: the metric %s is %.80r, which is no finite number: durable checkpoints of this step have no such metric, nor do later ones until it is one. "
                "This is said once for each metric",
                step,
                name,
                values[name],
            )

    def epochs(self, step: int, values: Mapping[str, int]) -> None:
        """Takes the epochs that loaders are in behind a step, where they are other ones than before. More of them than fit are not said."""
        were = self._of[n.LOADER_EPOCH]
        news = {name: e for name, e in values.items() if (was := were.get(name.encode())) is None or was.value != e}
        if len(values) <= MOST and all(0 < len(name.encode()) <= NAME for name in news):
            self._take(n.LOADER_EPOCH, "epoch", news, lambda name, value: {"value": float(value), "step": step})

    def _take(self, kind: int, what: str, values: Mapping[str, Any], made: Any) -> None:
        taken = dict(self._of[kind])
        for name, value in values.items():
            fields = made(name, value)
            raw = _checked(what, name, len(taken) if name.encode(errors="replace").replace(b"\0", b" ") not in taken else 0)
            taken[raw] = n.Remark(kind=kind, name=raw, **fields)
        self._new = self._new or bool(values)
        self._of[kind] = taken

    def back(self, step: int) -> None:
        """The job goes on from a step: numbers of later ones are of a future that is gone."""
        for kind in (n.METRIC, n.LOADER_EPOCH):
            self._of[kind] = {name: r for name, r in self._of[kind].items() if r.step <= step}

    def lacks(self, rank: Rank, names: str) -> None:
        """Says what copies lack from now on, where that is another."""
        if names != self._marked:
            rank.lacks(names)
            self._marked = names

    def tell(self, rank: Rank, *, again: bool = False) -> None:
        """Says what is new, once the rank is attached; ``again``: all of it, for example to the daemon of another process."""
        if rank.attached and (self._new or again):
            rank.say([r for of in self._of.values() for r in of.values()])
            self._new = False
