"""What is trained, as it was when the session was made; and noticing that it is something else now.

Whether a parameter asks for a gradient decides how it is kept: at every step, or once. Tensors are registered by address, parameters
and optimizer state by name. All of that holds while the job runs, so what no longer fits it is refused when a step ends: its
changes would be in no copy. What may change (a parameter that was trained is frozen for a while, another adapter is active) is state like
any other: it is kept, and a load brings it back.
"""

from __future__ import annotations

import json
import operator
import sys
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import torch

from ..errors import Mismatch
from .grown import Grown, Grows
from .memory import Memory, by_accelerate
from .objects import Objects, extra_state
from .optimizers import part
from .places import Places, identical, persistent
from .tensors import some
from .wrappers import clean, sharded_by_fsdp, whole

__all__ = ["Trained"]

#: What is said of an optimizer's tensor.
REPLACED = (
    "was replaced by another tensor after the session was made. Where load_state_dict did it: load it before, or copy_ into what is there. Where the optimizer's own step "
    "does, in each step: have that step change it in place, or use an optimizer that does"
)

NORMS = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d, torch.nn.SyncBatchNorm)

#: Whether a parameter asks for a gradient.
_ASKS: Callable[[torch.Tensor], bool] = operator.attrgetter("requires_grad")


class Trained:
    """The parameters of a session's models and optimizers. ``memory`` says where their copies are made from."""

    def __init__(self, objects: Objects, memory: Memory) -> None:
        models, optimizers = objects.models, objects.optimizers
        self._models, self._optimizers, self._names = models, optimizers, objects.names
        self.kept: dict[str, Any] | None = None  # what value() gave for the copy of the last step
        of_models = {f"{m}.{clean(model, k)}": p for m, model in models.items() for k, p in model.named_parameters()}
        known = {id(p) for p in of_models.values()}
        others = {f"{o}.{label}": p for o, optimizer in optimizers.items() for label, p in self._labelled(optimizer) if id(p) not in known}
        grown = set(objects.grown.window)
        self._window = [(n, p) for n, p in (of_models | others).items() if p.requires_grad or n in grown]
        self._frozen = [(n, p) for n, p in (of_models | others).items() if not p.requires_grad and n not in grown]
        self._window_tensors, self._frozen_tensors = [p for _, p in self._window], [p for _, p in self._frozen]
        self.most = sum(len(json.dumps(n)) + 1 for n, _ in self._window)  #: bytes that value() takes more, if all are frozen
        self._of_models = of_models
        self._groups = {o: list(_parameters(optimizer)) for o, optimizer in optimizers.items()}
        self._states = [(o, own, own.state) for o, optimizer in optimizers.items() for own in (part(optimizer),)]
        self._fsdp = tuple(f"{m}." for m, model in models.items() if sharded_by_fsdp(model))
        self._of_the_models = {n: t for n, t in self._model_tensors() if t is not None}
        self._of_the_optimizers = dict(self._optimizer_tensors())
        #: the weights of embeddings that a forward brings back to a norm
        self.renormalised = {
            f"{m}.{clean(model, k)}.weight" for m, model in models.items() for k, x in model.named_modules() if getattr(x, "max_norm", None) is not None and hasattr(x, "weight")
        }
        #: what keeps statistics of its batches and counts them
        self.norms: dict[str, Any] = {f"{m}.{clean(model, k)}": x for m, model in models.items() for k, x in model.named_modules() if isinstance(x, NORMS)}
        self.groups = tuple(f"{o}.groups." for o in optimizers)  #: how the names of tensors in groups begin, rates that programs write before their steps
        self._extra_state = [x for _, x in extra_state(models)]
        self._places = self._look()
        self._inner = [x for n, t in (*self._window, *self._of_the_optimizers.items()) for x in _made_of(n, t)]
        self._memory = memory
        self._layers = [(f"{m}.{clean(model, k)}", x) for m, model in models.items() for k, x in model.named_modules() if hasattr(x, "merged_adapters")]

    def _labelled(self, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, torch.Tensor]]:
        for i, p in enumerate(_parameters(optimizer)):
            yield self._names.get(id(p), f"param.{i}"), p

    def tensors(self, trained: bool) -> Iterator[tuple[str, torch.Tensor]]:
        """The parameters that change at every step, or those that are kept once, as the program has them."""
        yield from self._window if trained else self._frozen

    def moments(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors that optimizers have besides."""
        yield from self._of_the_optimizers.items()

    # -- what must stay as it is ------------------------------------------------------------------------------------------

    def check(self) -> bool:
        """Refuses what a step would change without its being kept, by name. It compares flags, identities and addresses: no bytes. False: what may
        come and go has, other values in an optimizer's state."""
        if any(map(_ASKS, self._frozen_tensors)):
            now = [n for n, p in self._frozen if p.requires_grad]
            raise (Grows if all(n in self._of_models for n in now) else Mismatch)(
                f"{some(now)} asked for no gradient when the session was made and is kept once, not at every step: what it learns would be lost. "
                "Let everything that is ever to be trained ask for a gradient when the session is made; it may be frozen afterwards"
            )
        same = self.check_places()
        if merged := list(self.merged()):
            raise Mismatch(f"{some(merged)} is merged with its adapters: the adapters get no gradient, and the base weights are no longer those that are kept. Unmerge first")
        return same

    def check_places(self) -> bool:
        """Refuses tensors that are not those which copies are made of, by name. It compares identities, addresses, and how they are laid out."""
        same = self._places.same()
        if not same:
            self._check_groups()
        if now := [f"{o}.state" for o, optimizer, state in self._states if optimizer.state is not state]:
            raise Mismatch(f"{some(now)} {REPLACED}{by_accelerate()}")
        if not same:
            self._compare()
            self._places = self._look()
        if now := [n for n, outer, key, v in self._inner if (inner := getattr(outer, key)) is not v and inner.data_ptr() != v.data_ptr()]:
            raise Mismatch(f"{some(now)} {REPLACED}{by_accelerate()}")
        self._memory.check()
        return same

    def _check_groups(self) -> None:
        """Names the parameters that an optimizer got."""
        for o, optimizer in self._optimizers.items():
            if not identical(list(_parameters(optimizer)), self._groups[o]):
                known = set(map(id, self._groups[o]))
                added = [label for label, p in self._labelled(optimizer) if id(p) not in known]
                what = f"got {some(added)}" if added else "lost or reordered parameters"
                kind = Grows if added and self._new_groups(o) else Mismatch
                raise kind(f"{o} {what} after the session was made: give the optimizer every parameter before the session is made, and freeze those that train later")

    def _by_key(self) -> set[str]:
        """The tensors that an optimizer has of a model's parameter under a key, which a later process can be told to make. Others, in lists, say, it can't."""
        by_key: set[str] = set()
        for o, own, state in self._states:
            for label, p in self._labelled(own):
                if id(p) in self._names:
                    by_key |= {f"{o}.{label}.{key}" for key, t in state.get(p, {}).items() if isinstance(t, torch.Tensor)}
        return by_key

    def _new_groups(self, o: str) -> list[list[str]]:
        """The groups that an optimizer got, by the models' names of their parameters; none where those of before are not what they were, or a model has none of that name."""
        groups, at = [], 0
        for group in self._optimizers[o].param_groups:
            if not group["params"]:
                continue  # without decay, say, where all of it is frozen
            if at < len(self._groups[o]):
                if not identical(group["params"], self._groups[o][at : at + len(group["params"])]):
                    return []
            elif not all(id(p) in self._names for p in group["params"]):
                return []
            else:
                groups.append([self._names[id(p)] for p in group["params"]])
            at += len(group["params"])
        return groups

    def movable(self, names: list[str]) -> list[str]:
        """Those of some frozen parameters that the job can copy at every step: those of models."""
        return [n for n in names if n in self._of_models] if names else names

    @property
    def merges(self) -> bool:
        """Whether there are layers that peft merges with their adapters, which changes base weights for a while."""
        return bool(self._layers)

    def grown(self, before: Grown, moving: list[str]) -> Grown:
        """What is to be kept from now on, beyond what was. ``moving`` ask for no gradient, and change."""
        known = set(before.window)
        window = [n for n, p in self._frozen if (p.requires_grad or n in moving) and n not in known and n in self._of_models]
        now = Grown(before.window + window, [], {k: list(v) for k, v in before.groups.items()}, {k: dict(v) for k, v in before.state.items()}, dict(before.rooms), before.fits)
        now.asks = [n for n in now.window if self._of_models[n].requires_grad]
        for o in self._optimizers:
            if new := self._new_groups(o):
                now.groups[o] = now.groups.get(o, []) + new
        added = {n for groups in now.groups.values() for names in groups for n in names}
        for o, own, state in self._states:
            of = now.state.setdefault(o, {})
            for label, p in self._labelled(own):
                for key, t in state.get(p, {}).items():
                    if isinstance(t, torch.Tensor) and f"{o}.{label}.{key}" not in self._of_the_optimizers and label not in added and label not in now.window:
                        of[label] = of.get(label, {}) | {str(key): (str(t.dtype).removeprefix("torch."), list(t.shape))}
            if not of:
                del now.state[o]
        return now

    def _look(self) -> Places:
        return Places(self._models.values(), self._optimizers.values(), [state for _, _, state in self._states])

    def _compare(self) -> None:
        """Names what is not what it was. The same tensors may be put together in other ways."""
        was, now = self._of_the_models, dict(self._model_tensors())
        known = {id(t) for t in was.values()}
        replaced = [n for n, t in was.items() if n in now and now[n] is not t and not (n.startswith(self._fsdp) and whole(now[n], t))]
        if replaced:
            raise Mismatch(
                f"{some(replaced)} was replaced by another tensor after the session was made, and would be in no copy: copy_ or fill_ what is there, replace it before the "
                f"session is made, or give a model that was made anew to session.rebind(){by_accelerate()}"
            )
        came = [n for n, t in now.items() if n not in was and t is not None and id(t) not in known]
        if came := came + [f"{n} (get_extra_state)" for n, x in extra_state(self._models) if not any(x is y for y in self._extra_state)]:
            raise Mismatch(
                f"{some(came)} was not there when the session was made and would be in no copy: make it before (a forward makes what is made lazily); "
                "a buffer that is made from nothing but the program's settings can be registered with persistent=False"
            )
        was, now = self._of_the_optimizers, dict(self._optimizer_tensors())
        if came := [n for n in now if n not in was]:
            raise (Grows if set(came) <= self._by_key() else Mismatch)(
                f"{some(came)} was not there when the session was made (momentum that is switched on later, a history that grows?) and would be in no copy: have the optimizer "
                "make it before, at its full size, and change it in place"
            )
        if replaced := [n for n, t in was.items() if now.get(n) is not t]:
            raise Mismatch(f"{some(replaced)} {REPLACED}{by_accelerate()}")

    def _model_tensors(self) -> Iterator[tuple[str, torch.Tensor | None]]:
        """Parameters and persistent buffers under every name that they have, and None where there could be one."""
        for m, model in self._models.items():
            for prefix, x in model.named_modules():
                for key, t in (x._parameters | persistent(x)).items():
                    yield f"{m}.{clean(model, f'{prefix}.{key}' if prefix else key)}", t

    def _optimizer_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors of the optimizers' state, at any depth, and of their groups."""
        trees: list[tuple[str, Any]] = []
        for o, own, state in self._states:
            trees += [(f"{o}.{label}", state.get(p, {})) for label, p in self._labelled(own)]
            trees.append((f"{o}.own", {k: v for k, v in state.items() if not isinstance(k, torch.Tensor)}))
        for o, optimizer in self._optimizers.items():
            trees += [(f"{o}.groups[{i}]", {k: v for k, v in group.items() if k != "params"}) for i, group in enumerate(optimizer.param_groups)]
        return ((f"{name}.{'.'.join(map(str, path))}", t) for name, tree in trees for path, t in _tensors(tree, ()))

    def merged(self) -> Iterator[str]:
        """The layers that peft has merged with their adapters. Unmerging subtracts what was added, which leaves rounding behind."""
        return (n for n, x in self._layers if x.merged_adapters)

    # -- what may change --------------------------------------------------------------------------------------------------

    def value(self) -> dict[str, Any]:
        """Which of the trained parameters are frozen now, and which adapters of each peft model are active."""
        resting = [] if all(map(_ASKS, self._window_tensors)) else [n for n, p in self._window if not p.requires_grad]
        return {"resting": resting, "adapters": {m: list(model.active_adapters) for m, model in self._peft()}}

    def changed(self) -> bool:
        """Whether it is no longer what the copy of the last step has."""
        return self.kept is not None and self.value() != self.kept

    def set(self, value: dict[str, Any]) -> None:
        """The inverse of :meth:`value`."""
        for m, model in self._peft():
            active = value["adapters"][m]
            if list(model.active_adapters) != active:
                model.set_adapter(active[0]) if len(active) == 1 else model.base_model.set_adapter(active)
        for n, p in self._window:
            p.requires_grad_(n not in value["resting"])
        self.kept = self.value()

    def refreeze(self) -> None:
        """The process has gone back to before a step that thawed something."""
        for p in filter(_ASKS, self._frozen_tensors):
            p.requires_grad_(False)

    def _peft(self) -> Iterator[tuple[str, Any]]:
        if peft := sys.modules.get("peft"):
            yield from ((m, model) for m, model in self._models.items() if isinstance(model, peft.PeftModel))

    # -- by name, for the user --------------------------------------------------------------------------------------------

    def parameters(self, trained: bool) -> dict[str, torch.Tensor]:
        """The models' parameters that are copied at every step, or once."""
        chosen = {id(p) for _, p in (self._window if trained else self._frozen)}
        prefix = next(iter(self._models)) + "." if len(self._models) == 1 else ""
        return {n.removeprefix(prefix): p for n, p in self._of_models.items() if id(p) in chosen}


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    return chain.from_iterable(g["params"] for g in optimizer.param_groups)


def _tensors(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], torch.Tensor]]:
    """The tensors in a tree of dicts and lists, with the way to each."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, (dict, list, tuple)):
        for key, v in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _tensors(v, (*path, key))


def _made_of(name: str, t: torch.Tensor) -> Iterator[tuple[str, torch.Tensor, str, torch.Tensor]]:
    """The inner tensors of a wrapper subclass, with whose attributes they are. (A DTensor's shard is looked at by its address.)"""
    if getattr(t, "_local_tensor", None) is None and hasattr(type(t), "__tensor_flatten__"):
        for key in t.__tensor_flatten__()[0]:  # type: ignore[attr-defined]
            inner = getattr(t, key)
            yield f"{name}.{key}", t, key, inner
            yield from _made_of(f"{name}.{key}", inner)
