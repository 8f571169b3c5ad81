"""What a restart would not have, as far as the objects of the program tell: when a session resumes, and over its whole life.

Nothing here draws, iterates, or changes what it looks at. One who looks over the whole life spreads it over steps.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from itertools import chain
from types import FrameType
from typing import Any

import torch
from torch.optim.swa_utils import AveragedModel

from .._core import capsule, draws, preloading
from . import loaders, workers
from .cadence import Cadence
from .hyper import drives
from .later import Later
from .objects import Objects, extra_state
from .optimizers import part
from .places import persistent
from .tensors import some
from .wrappers import flat_parameters

__all__ = ["Lacking", "Verdict", "alive", "missing"]

#: Each look comes once in so many steps.
ROUND = 16


@dataclass(frozen=True)
class Verdict:
    """Whether something is as it should be. ``ok`` is None where it can't be known from here."""

    what: str
    ok: bool | None
    reason: str
    remedy: str = ""


def kind(o: Any) -> str:
    """The class of an object, as messages name it."""
    return f"{type(o).__module__}.{type(o).__qualname__}"


def alive() -> dict[str, list[Any]]:
    """Objects of the program that matter here, wherever it holds them."""
    kinds: dict[str, type] = {
        "ddp": torch.nn.parallel.DistributedDataParallel,
        "loader": torch.utils.data.DataLoader,
        "scaler": torch.amp.grad_scaler.GradScaler,
        "average": AveragedModel,
        "module": torch.nn.Module,
    }
    if (ours := getattr(sys.modules.get("replicad.data"), "Loader", None)) is not None:
        kinds["ours"] = ours
    objects = preloading.objects()
    known = {of: names for of in set(map(type, objects)) if (names := [k for k, c in kinds.items() if issubclass(of, c)])}  # few of the types of 300,000 objects
    found: dict[str, list[Any]] = {k: [] for k in (*kinds, "ours")}
    for o in [o for o in objects if type(o) in known]:
        for k in known[type(o)]:
            found[k].append(o)
    return found


def missing(objects: Objects, live: Mapping[str, list[Any]]) -> Iterator[Verdict]:
    """What a restart would not have."""
    yield from _unregistered(objects, live)
    for name, o in objects.data.items():
        if n := loaders.buffered(o):
            yield Verdict(
                name,
                False,
                f"its shuffle buffer of {n} samples is not in its state: a restart leaves out the samples that lie there",
                "shuffle(buffer_size=1), which shuffles the shards alone; or a map-style dataset in a replicad.data.Loader",
            )
    if not objects.data:
        yield Verdict(
            "data",
            False,
            "nothing says which samples come next: they would begin anew, unless the loop draws them from a generator that is kept",
            "pass data= with state_dict: replicad.data.Loader, or a stateful loader",
        )
    yield from _workers(objects, live)
    if not objects.keep_rng:
        yield Verdict("generators", False, "keep_rng=False: random numbers begin anew", "leave keep_rng out")


def _unregistered(objects: Objects, live: Mapping[str, list[Any]]) -> Iterator[Verdict]:
    """Objects that are there and that the session was not given."""
    models, optimizers = objects.models, objects.optimizers
    if not optimizers and any(p.requires_grad for model in models.values() for p in model.parameters()):
        yield Verdict("optimizer", False, "no optimizer is registered: its state would begin anew", "pass optimizer=")
    if any(not any(a is o for o in (*models.values(), *objects.extra.values())) for a in live["average"]):
        yield Verdict("average", False, "an AveragedModel that is not registered: it would begin anew", "pass it with the model: model={'model': model, 'average': average}")
    for name, o in optimizers.items():
        if hasattr(o.step, "_wrapped_by_lr_sched") and not _scheduled(objects, o):
            yield Verdict(name, False, "a learning-rate scheduler hangs on it that is not registered: its count would begin anew", "pass scheduler=")
    if any(s.is_enabled() and not any(s is x for x in objects.scalers.values()) for s in live["scaler"]):
        yield Verdict("scaler", False, "a GradScaler is in use that is not registered: its scale would begin anew", "pass scaler=")
    yield from _modules(objects, live["module"])


def _scheduled(objects: Objects, optimizer: Any) -> bool:
    """Whether a scheduler of it is registered, by itself or in an object that holds it."""
    given = (*objects.schedulers.values(), *objects.extra.values())
    inner = (x for o in given for _, x in draws.within(o, "", of_program=False) if isinstance(x, torch.optim.lr_scheduler.LRScheduler))
    return any(drives(s, optimizer) for s in chain(objects.schedulers.values(), inner))


def _workers(objects: Objects, live: Mapping[str, list[Any]]) -> Iterator[Verdict]:
    for obj in objects.data.values():
        for loader in live["loader"]:
            inner = (loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None))
            if loader.num_workers and any(obj is x for x in inner):
                yield Verdict(
                    "data",
                    False,
                    f"{kind(obj)} feeds a DataLoader with {loader.num_workers} workers: its state is ahead of the batches that were used by those that they fetched",
                    "use replicad.data.Loader, or register a loader that counts what was used (torchdata's StatefulDataLoader)",
                )


def _modules(objects: Objects, modules: list[torch.nn.Module]) -> Iterator[Verdict]:
    """Modules that an optimizer trains and that are not registered: their parameters are kept by their place in it, and nothing else of them."""
    if not objects.models or any(True for model in objects.models.values() for _ in flat_parameters(model)):
        return
    for name, o in objects.optimizers.items():
        strangers = {id(p) for g in o.param_groups for p in g["params"]} - objects.names.keys()
        for m in _trained(modules, strangers, objects.names.keys()) if strangers else ():
            if kept := [f"{k}.{b}".removeprefix(".") for k, x in m.named_modules() for b in persistent(x)] + [k for k, _ in extra_state({"": m})]:
                n = sum(id(p) in strangers for p in m.parameters())
                yield Verdict(
                    name,
                    False,
                    f"{n} of its parameters {'is' if n == 1 else 'are'} of a {type(m).__qualname__} that is no registered module: {some(kept)} of it is in no copy",
                    'give it as a model, too: model={"model": model, "loss": it}',
                )


def _trained(modules: list[torch.nn.Module], strangers: Set[int], registered: Set[int]) -> Iterator[torch.nn.Module]:
    """The outermost modules that have such a parameter and none that is registered."""
    inner = {id(c) for m in modules for c in m._modules.values()}
    left, seen = [m for m in modules if id(m) not in inner], set[int]()
    while left:
        if id(m := left.pop()) in seen:
            continue
        seen.add(id(m))
        has = {id(p) for p in m.parameters()}
        if has & strangers and not has & registered:
            yield m
        elif has & strangers:
            left += [c for c in m._modules.values() if c is not None]


# -- generators ---------------------------------------------------------------------------------------------------------


def seeded_by_loaders(live: Mapping[str, list[Any]]) -> list[Any]:
    """The generators that this package's loaders seed, and those of DataLoaders that they make."""
    inner = [loader.generator for loader in live["loader"] if type(loader.dataset).__module__ == "replicad.data"]
    return [*inner, *(g for lo in live["ours"] for g in lo.generators().values())]


# -- the whole life -----------------------------------------------------------------------------------------------------


class Lacking:
    """Looks at a session's objects when it resumes, and at its steps. A rebind makes another one."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._turn = 0
        self._idle = Idle(objects)
        self._resting = Resting(objects)
        self.cadence = Cadence(objects.optimizers, objects.data)
        self._later = Later(objects)
        self._unkept: set[int] = set()

    def at_resume(self) -> list[str]:
        """What a restart would lack, a phrase each. It says nothing of what was asked for (``keep_rng=False``), or of samples where the program has no loader."""
        live = alive()
        found = list(_unregistered(self._objects, live))
        if not self._objects.data and (loose := [*live["ours"], *(x for x in live["loader"] if type(x.dataset).__module__ != "replicad.data")]):
            found.append(Verdict("data", False, f"there is a {kind(loose[0])}, and nothing says which samples come next", "pass data=: replicad.data.Loader, or a stateful loader"))
        found += _workers(self._objects, live)
        return [f"{v.what}: {v.reason} ({v.remedy})" for v in found]

    def scheduled(self, optimizer: Any) -> bool:
        """Whether a scheduler of an optimizer is kept."""
        return _scheduled(self._objects, optimizer)

    def stepped(self, optimizer: Any) -> None:
        """An optimizer's step begins."""
        self._idle.stepped(optimizer)
        self.cadence.stepped(optimizer)

    def step(self, at: int) -> list[tuple[str, str]]:
        """A step has ended. What the program's objects tell, by name, with what to do about it."""
        return [*self._later.look(), *self._in_turn(at)]

    def _in_turn(self, at: int) -> list[tuple[str, str]]:
        """Each look has its turn once in :data:`ROUND` steps."""
        self._turn = (self._turn + 1) % ROUND
        found = [*self._objects.implicit.look(), *workers.told(self._objects), *self.cadence.found()]
        if self._turn == 6:
            return [*found, *self._idle.look()]
        return [*found, *self._resting.look(at)] if self._turn == 11 else found

    def doubtful(self, states: dict[str, Any]) -> dict[str, Any]:
        """Of the states of what says which samples come next, those that may not count what is used. A loader that does may rest where there are several."""
        data = self._objects.data
        return states if len(data) == 1 else {k: s for k, s in states.items() if not loaders.counts(data[k])}

    def iterated(self, loader: Any) -> tuple[str, str] | None:
        """A loader of this package is about to hand out batches; what to say if a training loop gets them, and nobody keeps its place."""
        kept = any(loader is o for o in self._objects.data.values()) or loader.asked
        if kept or id(loader) in self._unkept or not torch.is_grad_enabled() or not any(m.training for m in self._objects.models.values()):
            return None
        self._unkept.add(id(loader))
        frame = inspect.currentframe()
        name = _name(loader, frame)
        found = [(k.removeprefix("data.") if "." in k else "", _name(o, frame)) for k, o in self._objects.data.items()]
        both = ", ".join(f'"{given or at or "first"}": {at or "..."}' for given, at in (*found, ("", name or "next")))
        who = name or repr(loader)
        return (
            who,
            f"{who} gives batches to this training, and is not in the session's data=: a restart would begin it anew; give all that take turns: data={{{both}}}",
        )


def _name(o: Any, frame: FrameType | None) -> str:
    """The variable in which a function that is running has an object, or the attribute of one."""
    while frame is not None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in draws.LIBRARIES:
            for k, v in frame.f_locals.items():
                if v is o:
                    return k
                if inner := next((f"{k}.{at}" for at, x in getattr(v, "__dict__", {}).items() if x is o), "") if k == "self" else "":
                    return inner
        frame = frame.f_back
    return ""


class Idle:
    """Registered optimizers that are never stepped while their parameters change."""

    def __init__(self, objects: Objects) -> None:
        self._optimizers = {name: part(o) for name, o in objects.optimizers.items()}
        self._stepped: set[int] = set()
        self._was: dict[str, list[tuple[int, int]]] = {}

    def stepped(self, optimizer: Any) -> None:
        self._stepped.add(id(optimizer))

    def look(self) -> list[tuple[str, str]]:
        idle = {name: o for name, o in self._optimizers.items() if id(o) not in self._stepped}
        if not idle:
            return []
        moved = {id(p) for o in self._optimizers.values() if id(o) in self._stepped for g in o.param_groups for p in g["params"]}
        out = []
        for name, o in idle.items():
            now = [(id(p), p._version) for g in o.param_groups for p in g["params"] if p.requires_grad and not p.is_inference() and id(p) not in moved]
            if (was := self._was.get(name)) and was != now:
                self._stepped.add(id(o))  # said
                out.append(
                    (
                        name,
                        f"{name}: {type(o).__name__}.step() was never called, though its parameters change: what changes them keeps its own state, which is in no copy. Give the "
                        "optimizer that is stepped (of one that steps another, as SAM does, that other one)",
                    )
                )
            self._was[name] = now
        return out


class Resting:
    """Whether anything says that samples are used. Where there are several sources, one may rest."""

    def __init__(self, objects: Objects) -> None:
        self._data = objects.data
        self._was: dict[str, bytes] = {}
        self._moved_at = -1  #: the step of the look that last found one moved
        self._longest = 0

    def look(self, at: int) -> list[tuple[str, str]]:
        now = {k: capsule.pack(loaders.state(o), k) for k, o in self._data.items()}
        was, self._was = self._was, now
        if not was or was != now:
            if self._moved_at >= 0:
                self._longest = max(self._longest, at - self._moved_at)
            self._moved_at = at if was else self._moved_at
            return []
        rests = at - self._moved_at
        if not now or self._moved_at < 0 or rests <= 2 * max(self._longest, ROUND):
            return []  # one that never moved is named at the first steps
        names = some(sorted(now))
        self._moved_at = -1
        return [
            (
                f"{names}, at rest",
                f"{names} rests since step {at - rests} while steps go on: where samples come from another loader now, give that to the session, too: "
                'data={"first": ..., "second": ...}',
            )
        ]
