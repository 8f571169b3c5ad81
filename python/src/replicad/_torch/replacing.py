"""Hyperparameters that a program asks to have in the place of its job's: ``session.resume(replace=("lr",))``.

The job remembers what it was asked for, in the copy of each rank, so that the same file asks once, however often it is started again.
"""

from __future__ import annotations

import bisect
import hashlib
import logging
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from torch.optim import lr_scheduler

from .._core import draws
from ..errors import Invalid
from .hyper import BEGAN, alike, arguments, drives, plain, replaced, text
from .objects import Objects

__all__ = ["Replacing"]

log = logging.getLogger("replicad")

#: What schedulers keep in a group besides the value itself.
FAMILY = {"lr": (BEGAN, "max_lr", "min_lr"), "momentum": ("base_momentum", "max_momentum"), "betas": ("base_momentum", "max_momentum")}
#: And on themselves, by group.
OWN = {"lr": ("max_lrs",), "momentum": ("base_momentums", "max_momentums"), "betas": ("base_momentums", "max_momentums")}
#: Schedulers that find the rate from where a schedule begins and ends, and not from the last one.
FROM_ENDS = (lr_scheduler.OneCycleLR, lr_scheduler.CyclicLR)
#: A note has so many bytes.
NOTE = 256


class Replacing:
    """What this program was written with, what it asks for, and what the job remembers of that."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {"asked": {}, "said": ""}  #: goes into the copy
        self.moved = False  #: since the last load
        self._names: tuple[str, ...] = ()
        self._written: dict[str, tuple[Any, list[dict[str, Any]]]] = {}
        self._ends: dict[int, tuple[Any, dict[str, list[Any]]]] = {}  # of schedulers, as the program made them

    def asks(self, objects: Objects, names: Collection[str]) -> None:
        """Before anything is loaded. :class:`Invalid` for a name that no optimizer has, and for what can't be replaced."""
        if isinstance(names, str) or not all(isinstance(n, str) for n in names):
            raise Invalid(f"replace={names!r:.80}: want names of hyperparameters, as replace=('lr',)")
        now = objects.hyperparameters()
        self._written = {name: of for name, of in self._written.items() if name in objects.optimizers}
        for name, o in objects.optimizers.items():
            if name not in self._written or self._written[name][0] is not o:  # what a rebind has brought is as it was written
                added = len(objects.grown.groups.get(name, []))  # the job has these, and this program does not yet
                self._written[name] = o, now[name][: len(now[name]) - added]
                for s in _schedulers(objects, o):
                    self._ends[id(s)] = s, {k: list(v) for of in OWN.values() for k in of if isinstance(v := vars(s).get(k), list)}
        there = {n for o, groups in self._written.values() for g in groups for n in g if n in arguments(o)}
        there |= {n for name in self._written for g in objects.optimizers[name].param_groups for n in g if n != "params" and n in arguments(objects.optimizers[name])}
        for n in names:
            if n not in there:
                raise Invalid(f"replace: {n!r} is no hyperparameter of {', '.join(self._written) or 'an optimizer, as there is none'}: want one of {', '.join(sorted(there))}")
            self._check(n, objects)
        self._names = tuple(dict.fromkeys(names))

    def _check(self, n: str, objects: Objects) -> None:
        for name, (o, _) in self._written.items():
            for g in o.param_groups:
                if n in g and (not plain(g[n]) or (n == "lr" and (isinstance(g[n], (bool, str)) or g[n] is None or not math.isfinite(g[n])))):
                    raise Invalid(
                        f"replace: {n} of {name} is {g[n]!r:.60}, which is no {'finite number' if n == 'lr' else 'plain value'}: make the optimizer with one, or write it "
                        "yourself (fill_) inside of a step"
                    )
            unknown = [k for k, s in objects.schedulers.items() if drives(s, o) and not _within(s)]
            if unknown and n in FAMILY:
                raise Invalid(f"replace: {n} of {name} is set by {', '.join(unknown)}, which is none of torch's schedulers and keeps rates of its own: set them there")

    def loaded(self, own: Mapping[str, Any], step: int, objects: Objects) -> None:
        """The job's state is in place: what was asked for, and was not before, takes its part in it."""
        self.kept, self.moved = own.get("replaced") or {"asked": {}, "said": ""}, False
        lines: dict[str, None] = {}
        for n in self._names:
            asked = self._digest(n)
            if self.kept["asked"].get(n) != asked:
                if step > 0:
                    lines.update(dict.fromkeys(self._replace(n, objects)))
                self.kept = {"asked": {**self.kept["asked"], n: asked}, "said": self.kept["said"]}
        if lines:
            self.moved = True
            self.kept["said"] = f"step {step}: {', '.join(lines)}".encode()[:NOTE].decode(errors="ignore")

    def notes(self) -> dict[str, object]:
        """What durable checkpoints say of it."""
        return {"replaced": self.kept["said"]} if self.kept["said"] else {}

    def say(self, objects: Objects, scheduled: Callable[[Any], bool], rank: int, first: bool, by_hand: Collection[str]) -> None:
        """What this program has in the place of the job's, once; and, at a process's ``first`` resume, what the job has in the place of this program's: not what the loop
        writes ``by_hand``, as ``optimizer.name``, before each step."""
        if self.moved and rank == 0:
            log.warning("replicad: %s, as replace= asks", self.kept["said"])
        for name, now in objects.hyperparameters().items() if first else ():
            o, written = self._written[name]
            names = frozenset(n for n in arguments(o) if f"{name}.{n}" not in by_hand)
            if found := replaced(written, now, names, scheduled(o)):
                log.warning("replicad: %s: %s (session.resume(replace=(%r,)) has this program's stay)", name, found, found.partition(" ")[0])

    def _digest(self, n: str) -> str:
        of = {name: [[alike(g.get(k)) for k in (n, *FAMILY.get(n, ()))] for g in groups] for name, (_, groups) in self._written.items()}
        return hashlib.sha256(repr(sorted(of.items())).encode()).hexdigest()[:16]

    def _replace(self, n: str, objects: Objects) -> Iterator[str]:
        for name, (o, written) in self._written.items():
            schedulers = list(_schedulers(objects, o))
            roots = [s for s in schedulers if not any(s is x for r in schedulers for x in vars(r).get("_schedulers", ()))]
            before = [dict(g) for g in o.param_groups]
            for i, (g, w) in enumerate(zip(o.param_groups, written, strict=False)):
                if n in w and n in g:
                    yield from self._group(name, n, g, w, bool(schedulers))
                    if n == "lr" and schedulers and BEGAN in g:
                        self._bases(schedulers, i, g[BEGAN])
                        self._rate(roots, g, before[i])
            self._from_ends(n, roots, o)
            for s in schedulers:
                if "_last_lr" in vars(s):
                    vars(s)["_last_lr"] = [g["lr"] for g in o.param_groups]

    @staticmethod
    def _group(name: str, n: str, g: dict[str, Any], w: Mapping[str, Any], scheduled: bool) -> Iterator[str]:
        at = BEGAN if n == "lr" and scheduled and BEGAN in g and BEGAN in w else n
        if alike(g[at]) != alike(w[at]):
            yield f"{name}: {n} {text(g[at])} of the job is replaced by {text(w[at])} of this program"
        g[at] = w[at]
        if scheduled:
            g.update((k, w[k]) for k in FAMILY.get(n, ()) if k in w and k in g)

    @staticmethod
    def _bases(schedulers: list[Any], i: int, base: Any) -> None:
        for s in schedulers:
            if i < len(bases := vars(s).get("base_lrs", ())):
                bases[i] = base

    @staticmethod
    def _rate(roots: list[Any], g: dict[str, Any], before: Mapping[str, Any]) -> None:
        """Where the schedule stands, from another base: as far between its end and the base as it was."""
        end = next((s.eta_min for s in map(_active, roots) if hasattr(s, "eta_min")), 0.0)
        was, now = before[BEGAN] - end, g[BEGAN] - end
        if was != now:
            g["lr"] = end + (g["lr"] - end) * now / was if was else g[BEGAN]

    def _from_ends(self, n: str, roots: list[Any], o: Any) -> None:
        if n not in FAMILY or len(roots) != 1 or not isinstance(s := _active(roots[0]), FROM_ENDS):
            return
        for k, values in self._ends.get(id(s), (s, {}))[1].items():
            if k in OWN[n]:
                setattr(s, k, list(values))
        vars(s)["_get_lr_called_within_step"] = True  # or it warns
        try:
            rates = s.get_lr()
        finally:
            vars(s)["_get_lr_called_within_step"] = False
        for g, rate in zip(o.param_groups, rates, strict=True):
            g["lr"] = rate


def _active(s: Any) -> Any:
    """The scheduler that one of several in a row is at."""
    while isinstance(s, lr_scheduler.SequentialLR):
        of = vars(s)
        s = of["_schedulers"][bisect.bisect_right(of["_milestones"], s.last_epoch)]
    return s


def _within(given: Any) -> list[Any]:
    """The schedulers of torch's that are, or hang on, what was given."""
    return [x for _, x in draws.within(given, "", of_program=False) if isinstance(x, lr_scheduler.LRScheduler)]


def _schedulers(objects: Objects, optimizer: Any) -> Iterator[Any]:
    """Those of an optimizer that are registered, each once, by themselves or in an object that holds them."""
    found = {id(s): s for given in (*objects.schedulers.values(), *objects.extra.values()) for s in _within(given)}
    return (s for s in found.values() if drives(s, optimizer))
