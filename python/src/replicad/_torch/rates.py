"""Whether the numbers of an optimizer's groups (rates, decays, betas) are still the job's when training is about to go on with them.

A program that writes a rate behind :meth:`replicad.Session.resume`, from its command line perhaps, is right in the first life; after a fault it undoes what a schedule has done
since, and nothing else would show it. Others write one legitimately: before each step, or at the beginning of each epoch. They are told apart by what the job has seen: a number
that only schedulers and the block of a step move, and that is again what a process began with, was not meant to be. What the job has seen goes with each rank's own copy.
"""

from __future__ import annotations

import hashlib
import json
import operator
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch

from .._core import draws
from ..errors import Mismatch
from . import later, loaders
from .hyper import SCHEDULED, alike, arguments, text
from .objects import Objects

__all__ = ["Rates"]

#: Of one optimizer: the values of its groups, one tuple of numbers for each.
_Values = list[tuple[Any, ...]]


class Numbers:
    """Those of one optimizer that it was made with."""

    def __init__(self, name: str, optimizer: Any) -> None:
        self.name, self._groups = name, optimizer.param_groups
        here, *others = self._groups or [{}]
        self.names = sorted(n for n in arguments(optimizer) if n in here and all(n in g for g in others) and all(_number(g[n]) for g in self._groups))
        self._get = operator.itemgetter(*self.names, "params") if self.names else None  # with one that is no number it is a tuple always
        self._tensors = any(isinstance(g[n], torch.Tensor) for g in self._groups for n in self.names)

    def now(self) -> _Values:
        """As they are."""
        if self._get is None:
            return []
        got = [x[:-1] for x in map(self._get, self._groups)]
        return [tuple(x.item() if isinstance(x, torch.Tensor) else x for x in of) for of in got] if self._tensors else got

    def differ(self, a: _Values, b: _Values) -> list[str]:
        """The names of those that differ."""
        if a == b or len(a) != len(b):
            return []
        return [n for i, n in enumerate(self.names) if any(alike(x[i]) != alike(y[i]) for x, y in zip(a, b, strict=True))]

    @staticmethod
    def put(optimizer: Any, name: str, values: list[Any]) -> None:
        """Has each group have a value."""
        for g, value in zip(optimizer.param_groups, values, strict=True):
            if isinstance(g[name], torch.Tensor):
                g[name].fill_(value)
            else:
                g[name] = value

    def of(self, values: _Values, name: str) -> list[Any]:
        """A number's values, by group."""
        at = self.names.index(name)
        return [alike(x[at]) for x in values]


class Rates:
    """Of a session's optimizers. A growth and a rebind bring others."""

    def __init__(self) -> None:
        self._seen = Seen()
        self._objects: Objects | None = None
        self._of: list[Numbers] = []
        self._forget()

    def _forget(self) -> None:
        self._loaded: list[_Values] = []  # when the resume ended, until the first step begins
        self._left: list[_Values] = []  # when a step's block ended, until the next one begins
        self._written: dict[tuple[int, str], list[Any]] = {}  # behind the resume at which the job begins: a later process does that, too
        self._schedulers: list[Any] | None = None

    def keep(self, objects: Objects) -> None:
        """What there is from now on."""
        self._objects = objects
        self._of = [Numbers(name, o) for name, o in objects.optimizers.items()]
        self._forget()

    @property
    def by_hand(self) -> Collection[str]:
        """The numbers, as ``optimizer.name``, that the loop writes between steps."""
        return self._seen.by_hand

    @property
    def text(self) -> str:
        """What the job has seen, for the commit."""
        return self._seen.text()

    def loaded(self, seen: str, at: int, fresh: bool) -> None:
        """The state of a step is in place, with what its copy has; ``fresh``: this epoch begins a job."""
        self._forget()
        self._seen = Seen() if fresh or not at else Seen(seen)
        self._loaded = self._now()
        data = self._objects.data.values() if self._objects else ()
        self._border = any(loaders.numbers(o) and o.used in (0, len(o)) for o in data)  # an epoch may begin

    def stands(self, goes_on: bool) -> list[str]:
        """Behind the hooks with which a trainer begins in each process. In one that ``goes_on`` what they have written is put back. Returns its names."""
        assert self._objects is not None
        back = []
        if goes_on and self._loaded:
            for numbers, o, was in zip(self._of, self._objects.optimizers.values(), self._loaded, strict=True):
                for name in numbers.differ(was, numbers.now()):
                    back.append(f"{numbers.name}.{name}")
                    numbers.put(o, name, numbers.of(was, name))
        self._loaded = self._now()
        return back

    def begins(self, at: int, asked: bool, say: Callable[[str, str], None]) -> None:
        """The step behind ``at`` begins: :class:`Mismatch` where it would begin with a number that a process before this one began with, and the job has another by now. ``asked``:
        the program has looked at the step since the resume."""
        if self._loaded:
            was, self._loaded = self._loaded, []
            self._first(was, at, asked, say)
        elif self._left:
            self._later(say)
            self._left = []

    def ended(self) -> None:
        """The block of a step has ended."""
        self._left = self._now()

    def _now(self) -> list[_Values]:
        return [x.now() for x in self._of]

    # -- the first step behind a resume -------------------------------------------------------------------------------------

    def _first(self, loaded: list[_Values], at: int, asked: bool, say: Callable[[str, str], None]) -> None:
        for i, (numbers, was, now) in enumerate(zip(self._of, loaded, self._now(), strict=True)):
            differ = numbers.differ(was, now)
            for name in numbers.names:
                key, values = f"{numbers.name}.{name}", numbers.of(now, name)
                if name in differ and at and self._seen.first and key not in self._seen.by_hand and not self._scheduled(i, name):
                    self._judge(key, numbers.of(was, name), values, at, say)
                if name in differ and not at and not asked:
                    self._written[i, name] = values
                if name in differ or key not in self._seen.first:
                    self._seen.begins(key, values)

    def _judge(self, key: str, was: list[Any], now: list[Any], at: int, say: Callable[[str, str], None]) -> None:
        optimizer, _, name = key.rpartition(".")
        a, b = next((a, b) for a, b in zip(was, now, strict=True) if a != b)
        what = f"{name} of {optimizer} was {text(a)} in step {at}, which this process has loaded, and is {text(b)} before its first step"
        remedy = f"Put that before the session, or under `if session.at == 0:`; where a new one is meant, ask for it: session.resume(replace=({name!r},))"
        again = self._seen.is_first(key, now)
        if again and not self._border:
            raise Mismatch(f"{what}: the program writes between session.resume() and there what the job began with, and that undoes what was done to it since. {remedy}")
        if not self._seen.is_first(key, was) and (again or self._seen.looked):
            say(f"{key}, after resume", f"{what}, though nothing but the block of a step, or a scheduler, has changed it before. {remedy}")

    # -- later ones ---------------------------------------------------------------------------------------------------------

    def _later(self, say: Callable[[str, str], None]) -> None:
        """What the loop, and no scheduler, has written since the last block is the loop's to write."""
        self._seen.looks()
        now = self._now()
        if now != self._left:
            for i, (numbers, a, b) in enumerate(zip(self._of, self._left, now, strict=True)):
                for name in numbers.differ(a, b):
                    if (key := f"{numbers.name}.{name}") not in self._seen.by_hand and not self._scheduled(i, name):
                        self._seen.hand(key)
                        self._written.pop((i, name), None)
        for (i, name), first in list(self._written.items()):
            numbers = self._of[i]
            if numbers.of(now[i], name) != first:
                del self._written[i, name]
                if self._scheduled(i, name):
                    say(
                        f"{numbers.name}.{name}, after resume",
                        f"{name} of {numbers.name} was written between session.resume() and the first step, and a scheduler has moved it since: a process that takes this one's "
                        "place would write it again, and is refused then. Put that before the session, or under `if session.at == 0:`",
                    )

    def _scheduled(self, i: int, name: str) -> bool:
        """Whether what an optimizer has now is of a scheduler, a registered one or one that was made since: each leaves the rates that it has written."""
        assert self._objects is not None
        if name not in SCHEDULED:
            return False
        if self._schedulers is None:
            given = (*self._objects.schedulers.values(), *self._objects.extra.values())
            self._schedulers = [x for o in given for _, x in draws.within(o, "", of_program=False) if hasattr(x, "_last_lr") and hasattr(x, "optimizer")]
        groups = list(self._objects.optimizers.values())[i].param_groups
        rates = [alike(_item(g.get("lr"))) for g in groups]
        of = (s for s in (*self._schedulers, *later.made()) if getattr(getattr(s, "optimizer", None), "param_groups", None) is groups)
        return any([alike(_item(x)) for x in getattr(s, "_last_lr", ())] == rates for s in of)


class Seen:
    """What the job has seen of its numbers: what processes began with, and which of them the loop writes between steps."""

    def __init__(self, kept: str = "") -> None:
        tree: Mapping[str, Any] = json.loads(kept) if kept else {}
        self.first: dict[str, str] = dict(tree.get("first", {}))
        self.by_hand: set[str] = set(tree.get("by_hand", ()))
        self.looked = bool(tree.get("looked"))  #: whether two steps of one process were compared
        self._text: str | None = kept

    def text(self) -> str:
        if self._text is None:
            self._text = json.dumps({"first": self.first, "by_hand": sorted(self.by_hand), "looked": self.looked})
        return self._text

    def begins(self, key: str, values: list[Any]) -> None:
        self.first[key], self._text = _digest(values), None

    def is_first(self, key: str, values: list[Any]) -> bool:
        return self.first.get(key) == _digest(values)

    def hand(self, key: str) -> None:
        self.by_hand.add(key)
        self._text = None

    def looks(self) -> None:
        if not self.looked:
            self.looked, self._text = True, None


def _digest(values: list[Any]) -> str:
    return hashlib.sha256(repr(values).encode()).hexdigest()[:16]


def _item(v: Any) -> Any:
    return v.item() if isinstance(v, torch.Tensor) and v.numel() == 1 and v.device.type == "cpu" else v


def _number(v: Any) -> bool:
    """Whether a value is a number, or some of them, that can be read at once."""
    if isinstance(v, (tuple, list)):
        return all(map(_number, v))
    return (isinstance(v, (int, float)) and not isinstance(v, bool)) or (isinstance(v, torch.Tensor) and v.numel() == 1 and v.device.type == "cpu")
