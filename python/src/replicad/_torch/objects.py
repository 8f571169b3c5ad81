"""What a session was given to keep: the user's objects by name, the tensors they consist of, and their small values.

Objects are never changed once they are made: a rebind makes others, compares them, and puts them in the place of these when all of
it fits.
"""

from __future__ import annotations

import copy
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from .. import rng
from .._core.capsule import Opaque
from ..errors import Invalid, Mismatch, SessionState, Unsupported
from . import loaders
from .derived import Derived
from .gradients import Gradients
from .grown import Grown
from .hyper import drives
from .implicit import Implicit
from .marked import Moves, Own
from .optimizers import bare, part, refuse_inner, refuse_sparse, unwrapped
from .state import Leaf, clean, materialise, model_leaves, optimizer_leaves, optimizer_values, set_optimizer_values
from .tensors import some
from .wrappers import on_groups, reshard

__all__ = ["Objects", "by_name"]

log = logging.getLogger("replicad")

#: The arguments of a session, and where their objects are found here.
KINDS = {"model": "models", "optimizer": "optimizers", "scheduler": "schedulers", "scaler": "scalers", "data": "data", "extra": "extra"}
#: How the names of objects begin, where that is not the argument's name.
PREFIX = {"optimizer": "optim"}


class Objects:
    """``given`` has a session's arguments by name (:data:`KINDS`): one object, a list or a dict by name, each."""

    models: dict[str, Any]
    optimizers: dict[str, Any]
    schedulers: dict[str, Any]
    scalers: dict[str, Any]
    data: dict[str, Any]
    extra: dict[str, Any]
    names: dict[int, str]  #: of the models' parameters, by id
    leaves: list[Leaf]

    def __init__(self, given: Mapping[str, Any], shared_buffers: Callable[[str], bool], keep_rng: bool, grown: Grown | None = None, derived: Derived | None = None) -> None:
        """``grown`` is what the job has taken up on its way, ``derived`` what is in no copy."""
        self._shared_buffers, self.keep_rng, self.grown, self.derived = shared_buffers, keep_rng, grown or Grown(), derived or Derived()
        self.gradients, self._kept_gradients = Gradients(), b""
        for kind, at in KINDS.items():
            setattr(self, at, by_name(kind, given.get(kind)))
        self._distinct()
        self._settle()
        self._find()
        self.implicit = Implicit(self)  #: what nobody has given

    def replaced(self, given: Mapping[str, Any]) -> Objects:
        """These, with others in the place of some: :class:`Mismatch` unless they have the same names and consist of the same tensors
        (shapes, types, when they change and whose they are)."""
        new = copy.copy(self)
        for kind, objects in given.items():
            named, old = by_name(kind, objects), getattr(self, KINDS[kind])
            if named.keys() != old.keys():
                now, was = (", ".join(names) or "nothing" for names in (named, old))
                raise Mismatch(f"rebind: {kind} is {now}, and the session has {was}: give all that it was made with, by the same names")
            setattr(new, KINDS[kind], named)
        new._settle()
        if other := list(self.tensors.keys() ^ new.tensors.keys()):
            raise Mismatch(f"rebind: {some(sorted(other))}: give replicad.own(...) for what was given by it, and for that alone: its room was made with the session")
        for name, scheduler in new.schedulers.items():
            if _drives(self.schedulers[name], self.optimizers) and not _drives(scheduler, new.optimizers):
                raise Mismatch(f"rebind: {name} drives an optimizer that is no longer the session's: give the scheduler of the new one, too")
        if {"model", "optimizer"} & given.keys():
            new._find()
            if new._strangers() > self._strangers():
                raise Mismatch("rebind: the optimizer's parameters are of no model of the session: give the model and its optimizer together")
            if found := list(_unlike(self.leaves, new.leaves)):
                more = [f"and {len(found) - 8} more"] if len(found) > 8 else []
                raise Mismatch(f"rebind: {'; '.join([*found[:8], *more])}: rebind takes the model and optimizer that the session was made with, made anew in the same way")
        new.implicit = Implicit(new, self.implicit)
        return new

    def others(self, given: Mapping[str, Any], grown: Grown) -> Objects:
        """Other objects, which need not be like these, kept as these are."""
        new = Objects(given, self._shared_buffers, self.keep_rng, grown, self.derived)
        new.implicit = Implicit(new, self.implicit)
        return new

    def grew(self, grown: Grown) -> Objects:
        """The same, with more to keep."""
        new = copy.copy(self)
        new.grown = grown
        new._find()
        new.implicit = Implicit(new, self.implicit)
        return new

    def _distinct(self) -> None:
        """Refuses a name that two objects have: one's state would be kept in the place of the other's, and messages would not tell them apart."""
        of: dict[str, str] = {}
        for kind, at in KINDS.items():
            for name in getattr(self, at):
                if (other := of.setdefault(name, kind)) != kind:
                    raise Invalid(f"{name} is the name of two objects, of {other}= and of {kind}=: give one of them another name ({kind}={{'name': object}})")

    def _strangers(self) -> int:
        """How many parameters the optimizers have that are of no model."""
        return sum(id(p) not in self.names for o in self.optimizers.values() for g in o.param_groups for p in g["params"])

    def _settle(self) -> None:
        for name, model in self.models.items():
            if not isinstance(model, torch.nn.Module):
                raise Invalid(f"{name}: want a torch.nn.Module, or a list or dict of them, not {_kind(model)}")
            if isinstance(model, torch.jit.RecursiveScriptModule):  # type: ignore[attr-defined]
                raise Unsupported(f"{name}: a module of torch.jit.script takes no hooks: register an eager module that has it inside (nn.Sequential(it), say), and call that")
        for name, o in self.optimizers.items():
            if not (hasattr(o, "param_groups") and hasattr(o, "state")):
                raise Invalid(f"{name}: want a torch.optim.Optimizer, or a list or dict of them, not {_kind(o)}")
        self.optimizers = {name: unwrapped(o) for name, o in self.optimizers.items()}
        refuse_inner(self.optimizers)
        for what in (self.schedulers, self.scalers, self.data, self.extra):
            for name, obj in what.items():
                if isinstance(obj, Moves) and what is not self.extra:
                    raise Invalid(f"{name}: replicad.{type(obj).__name__.lower()}(...) is for objects of extra=: give the object itself here")
                remedy = "use replicad.data.Loader, or torchdata's StatefulDataLoader" if what is self.data else "give it both, or leave it out"
                if not (callable(getattr(obj, "state_dict", None)) and callable(getattr(obj, "load_state_dict", None))):
                    raise SessionState(f"{name}: {type(obj).__name__} has no state_dict and load_state_dict: {remedy}")
        # A plateau scheduler sees a metric that may be the rank's own.
        own = {k: s for k, s in self.schedulers.items() if isinstance(s, torch.optim.lr_scheduler.ReduceLROnPlateau)}
        self._common = {k: s for k, s in (self.schedulers | self.scalers).items() if k not in own}
        self.tensors = {k: o for k, o in self.extra.items() if isinstance(o, Own)}  #: what has tensors of changing size
        self._own = own | {k: o for k, o in self.extra.items() if k not in self.tensors}

    def _find(self) -> None:
        reshard(self.models.values())
        self.names = {id(p): f"{m}.{clean(model, k)}" for m, model in self.models.items() for k, p in model.named_parameters()}
        self._modules = [m for model in self.models.values() for m in model.modules()]
        self._extra_state = dict(extra_state(self.models))
        self.grown.take({f"{m}.{clean(model, k)}": p for m, model in self.models.items() for k, p in model.named_parameters()}, self.optimizers)
        refuse_sparse(self.optimizers, self.models, self.names)
        for name, o in self.optimizers.items():
            _in_order(name, o, self.names)
            materialise(o)
        self.grown.take_state(self.names, self.optimizers)
        self.follow = [x.name for x in self._all() if self.derived.has(x.name)]  #: the tensors that are in no copy, as they are made from others
        self.derived.check(self.follow, (x.name for x in self._all()))
        self.leaves = list(self.live())
        if twice := [name for name, n in Counter(x.name for x in self.leaves).items() if n > 1]:
            raise Invalid(f"{some(twice)} is the name of two tensors, of objects that were given by name: give the objects names without dots, or others")
        self.look()

    def live(self) -> Iterator[Leaf]:
        """The tensors that models and optimizers consist of now, but for those that follow from others."""
        return (x for x in self._all() if not self.derived.has(x.name)) if self.derived else self._all()

    def _all(self) -> Iterator[Leaf]:
        """All of them."""
        window = set(self.grown.window)
        for name, m in self.models.items():
            yield from model_leaves(name, m, self._shared_buffers, window)
        for name, o in self.optimizers.items():
            yield from optimizer_leaves(name, o, self.names)

    def on_groups(self) -> Iterator[tuple[str, Any]]:
        """Models and optimizers that hang on process groups, by the names that messages give them."""
        yield from ((name, m) for name, m in self.models.items() if isinstance(m, torch.nn.Module) and on_groups(m))
        yield from ((name, o) for name, o in self.optimizers.items() if getattr(o, "process_group", None) is not None)

    def modules(self) -> Iterator[torch.nn.Module]:
        """The modules whose forward begins the next step."""
        for model in self.models.values():
            if isinstance(model, torch.nn.Module):
                yield model
                if hasattr(model, "get_base_model"):  # peft's, whose generate() calls that one
                    base: Any = model.get_base_model
                    yield base()

    def drop_gradients(self) -> None:
        """A step that was broken off leaves gradients behind, which the next backward would add to. There are none then but zeros where the loop keeps gradients."""
        for model in self.models.values():
            for p in model.parameters():
                p.grad = None
        for o in self.optimizers.values():
            for group in o.param_groups:
                for p in group["params"]:
                    p.grad = None
        self.gradients.set(self._kept_gradients, self.optimizers.values())

    def modes(self) -> list[bool]:
        """Which modules train, rather than evaluate."""
        return [m.training for m in self._modules]

    def set_modes(self, modes: list[bool]) -> None:
        """The inverse of :meth:`modes`."""
        for m, training in zip(self._modules, modes, strict=True):
            m.training = training

    # -- small values -------------------------------------------------------------------------------------------------------

    def common(self) -> dict[str, Any]:
        """What all ranks of a replica group have in common at the end of a step."""
        values = {k: optimizer_values(o, self.names, k in self._bare) for k, o in self.optimizers.items()}
        return values | {k: o.state_dict() for k, o in self._common.items()}

    def hyperparameters(self) -> dict[str, list[dict[str, Any]]]:
        """The groups of the optimizers, without their tensors and parameters."""
        return {k: optimizer_values(o, self.names, bare=True)["groups"] for k, o in self.optimizers.items()}

    def look(self) -> None:
        """Finds out which optimizers have plain values in their state; holds until something else hangs there."""
        self._bare = {k for k, o in self.optimizers.items() if bare(o)}

    def set_common(self, values: Mapping[str, Any]) -> None:
        """The inverse of :meth:`common`."""
        for k, o in self.optimizers.items():
            set_optimizer_values(o, self.names, values[k])
        for k, o in self._common.items():
            o.load_state_dict(values[k])
            if isinstance(o, torch.amp.grad_scaler.GradScaler):  # "unscaled already", of a step that was broken off, is no part of its state
                o._per_optimizer_states.clear()

    def own(self) -> dict[str, Any]:
        """What is a rank's own."""
        modules = {k: x.get_extra_state() for k, x in self._extra_state.items()}  # of forward and backward: scales, calibrations
        data = {k: loaders.state(o) for k, o in self.data.items()}
        grads = self.gradients.value(self.optimizers.values())
        return {"data": data, "rng": self.generators(), "modules": modules, "objects": self.objects(), "grads": grads, "attributes": self.implicit.own()}

    def set_own(self, values: Mapping[str, Any]) -> None:
        """The inverse of :meth:`own`."""
        self.set_objects(values["objects"])
        for k, o in self.data.items():
            loaders.set_state(o, values["data"][k])
        self._kept_gradients = values["grads"]
        for k, x in self._extra_state.items():
            x.set_extra_state(values["modules"][k])
        self.implicit.set(values.get("attributes", {}))
        self.set_generators(values["rng"])

    def objects(self) -> dict[str, Any]:
        """What the user's own objects, and schedulers that see a rank's own metric, have."""
        return {k: o.state_dict() for k, o in self._own.items()}

    def steady(self) -> dict[str, Any]:
        """Those of them that are to change only where a copy has it."""
        return {k: o.state_dict() for k, o in self._own.items() if not isinstance(o, Moves)}

    def set_objects(self, values: Mapping[str, Any]) -> None:
        """The inverse of :meth:`objects`."""
        for k, o in self._own.items():
            o.load_state_dict(values[k])

    def go_on(self, generators: bytes | None, first: bool = True) -> None:
        """A loop begins an iteration, its first one perhaps: what the process has drawn and made on its way there is no part of the run."""
        if first:
            self.implicit.again()
        self.set_generators(generators)

    def generators(self) -> Opaque | None:
        """The random number generators, in the form in which they are kept."""
        return rng.get() if self.keep_rng else None

    def set_generators(self, state: bytes | None) -> None:
        """The inverse of :meth:`generators`."""
        if self.keep_rng and state is not None:
            rng.set(state)


def _in_order(name: str, optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> None:
    """Puts the parameters of each group into the order in which the models have them. A group that was made of a set has another order in each process."""
    place = {p: i for i, p in enumerate(names)}
    for i, group in enumerate(optimizer.param_groups if part(optimizer) is optimizer else ()):
        at = [place.get(id(p), -1) for p in group["params"]]
        if min(at, default=0) >= 0 and at != sorted(at):
            log.info("replicad: the parameters of group %d of %s are put into the order of the model", i, name)
            group["params"].sort(key=lambda p: place[id(p)])


def extra_state(models: Mapping[str, torch.nn.Module]) -> Iterator[tuple[str, torch.nn.Module]]:
    """The modules that have state besides tensors, by name."""
    for m, model in models.items():
        for k, x in model.named_modules():
            if type(x).get_extra_state is not torch.nn.Module.get_extra_state:
                yield f"{m}.{clean(model, k)}" if k else m, x


def _drives(scheduler: Any, optimizers: Mapping[str, Any]) -> bool:
    return any(drives(scheduler, o) for o in optimizers.values())


def by_name(kind: str, given: Any) -> dict[str, Any]:
    """What was given as one argument of a session, by the names that messages have."""
    if kind == "extra":
        if not isinstance(given, Mapping | None):
            raise Invalid(f"extra: want a dict of objects by name, not {_kind(given)}: extra={{'name': object}}")
        return dict(given or {})
    prefix = PREFIX.get(kind, kind)
    if isinstance(given, Mapping):
        named = {f"{prefix}.{k}": v for k, v in given.items()}
        if len(named) < len(given):
            raise Invalid(f"{kind}: two of the names {list(given)!r} are written alike: give each object a text of its own as its name")
        return named
    if isinstance(given, (list, tuple)):
        return {f"{prefix}.{i}": v for i, v in enumerate(given)} if len(given) != 1 else {prefix: given[0]}
    return {} if given is None else {prefix: given}


def _kind(o: Any) -> str:
    return f"{type(o).__module__}.{type(o).__qualname__}".removeprefix("builtins.")


def _unlike(old: list[Leaf], new: list[Leaf]) -> Iterator[str]:
    """How tensors differ from those whose place they are to take, a line a name."""
    have, now = ({x.name: x for x in leaves} for leaves in (old, new))
    yield from (f"{name} is missing" for name in have if name not in now)
    yield from (f"{name} is new" for name in now if name not in have)
    was_tied, tied = _tied(old), _tied(new)
    for name, a in have.items():
        if (b := now.get(name)) is not None and (before := _like(a) + was_tied[name]) != (after := _like(b) + tied[name]):
            yield f"{name} is {after}, was {before}"


def _tied(leaves: list[Leaf]) -> dict[str, str]:
    """What to say of each tensor that lies where one before it does (weights that two models share), by name."""
    first: dict[Any, str] = {}
    at = {x.name: (x.local.device, x.local.data_ptr() or x.name) for x in leaves}
    return {name: "" if (other := first.setdefault(place, name)) == name else f", the same as {other}" for name, place in at.items()}


def _like(leaf: Leaf) -> str:
    when = {"window": "trained", "never": "frozen", "any": "a buffer"}[leaf.changes]
    return f"{str(leaf.local.dtype).removeprefix('torch.')} {tuple(leaf.local.shape)}, {when}{', the rank' + chr(39) + 's own' if leaf.private else ''}"
