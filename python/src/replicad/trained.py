"""What is trained, as it was when the session was made; and noticing that it is something else now.

Whether a parameter asks for a gradient decides how it is kept: at every step, or once. Tensors are registered by address, parameters
and optimizer state by name. All of that holds while the job runs, so what no longer fits it is refused before a step begins: its
changes would be in no copy. What may change (a parameter that was trained is frozen for a while, another adapter is active) is state like
any other: it is kept, and a load brings it back.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from .errors import Mismatch
from .objects import Objects
from .optimizers import part
from .tensors import Leaf
from .wrappers import clean

__all__ = ["Trained"]

#: So many names are in a message.
MOST = 4


class Trained:
    """The parameters of a session's models and optimizers. ``fixed`` are the leaves that are registered where they lie."""

    def __init__(self, objects: Objects, fixed: Iterable[Leaf]) -> None:
        models, optimizers = objects.models, objects.optimizers
        self._models, self._optimizers, self._names = models, optimizers, objects.names
        self.kept: dict[str, Any] | None = None  # what value() gave for the copy of the last step
        of_models = {f"{m}.{clean(k)}": p for m, model in models.items() for k, p in model.named_parameters()}
        known = {id(p) for p in of_models.values()}
        others = {f"{o}.{label}": p for o, optimizer in optimizers.items() for label, p in self._labelled(optimizer) if id(p) not in known}
        self._window = [(n, p) for n, p in (of_models | others).items() if p.requires_grad]
        self._frozen = [(n, p) for n, p in (of_models | others).items() if not p.requires_grad]
        self.most = sum(len(json.dumps(n)) + 1 for n, _ in self._window)  #: bytes that value() takes more, if all are frozen
        self._of_models = of_models
        self._groups = {o: [id(p) for p in _parameters(optimizer)] for o, optimizer in optimizers.items()}
        self._states = [(o, own, own.state) for o, optimizer in optimizers.items() for own in (part(optimizer),)]
        self._state = [
            (f"{o}.{label}.{'.'.join(map(str, path))}", state[p], path, v)
            for o, own, state in self._states
            for label, p in self._labelled(own)
            for path, v in _tensors(state.get(p, {}), ())
        ]
        self._count = {id(p): len(state.get(p, ())) for _, own, state in self._states for p in _parameters(own)}
        self._hyper = [
            (o, optimizer, i, k, v)
            for o, optimizer in optimizers.items()
            for i, group in enumerate(optimizer.param_groups)
            for k, v in group.items()
            if isinstance(v, torch.Tensor)
        ]
        self._buffers = [
            (clean(f"{m}.{prefix}.{key}" if prefix else f"{m}.{key}"), module, key, b)
            for m, model in models.items()
            for prefix, module in model.named_modules()
            for key, b in module._buffers.items()
            if b is not None and key not in module._non_persistent_buffers_set
        ]
        self._inner = [x for n, t in (*self._window, *((n, v) for n, _, _, v in self._state)) for x in _made_of(n, t)]
        of_state = {id(v) for _, _, _, v in self._state}
        self._fixed = [(x.name, x.tensor, x.local.data_ptr()) for x in fixed if id(x.tensor) not in of_state]
        self._layers = [(f"{m}.{clean(k)}", x) for m, model in models.items() for k, x in model.named_modules() if hasattr(x, "merged_adapters")]

    def _labelled(self, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, torch.Tensor]]:
        for i, p in enumerate(_parameters(optimizer)):
            yield self._names.get(id(p), f"param.{i}"), p

    # -- what must stay as it is ------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Refuses what a step would change without its being kept, by name. It compares flags, identities and addresses: no bytes."""
        if now := [n for n, p in self._frozen if p.requires_grad]:
            raise Mismatch(
                f"{_list(now)} asked for no gradient when the session was made and is kept once, not at every step: what it learns would be lost. "
                "Let everything that is ever to be trained ask for a gradient when the session is made; it may be frozen afterwards"
            )
        for o, optimizer in self._optimizers.items():
            if [id(p) for p in _parameters(optimizer)] != self._groups[o]:
                added = [label for label, p in self._labelled(optimizer) if id(p) not in self._groups[o]]
                what = f"got {_list(added)}" if added else "lost or reordered parameters"
                raise Mismatch(f"{o} {what} after the session was made: give it all that it is ever to train before, and freeze what is to wait")
        now = [f"{o}.state" for o, optimizer, state in self._states if optimizer.state is not state]
        if came := list(self._came()):
            raise Mismatch(
                f"{_list(came)} was not there when the session was made (momentum that is switched on later?) and would be in no copy: have the optimizer make it before"
            )
        now = now or [f"{o}.groups[{i}].{k}" for o, optimizer, i, k, v in self._hyper if optimizer.param_groups[i].get(k) is not v]
        now = now or [n for n, state, path, v in self._state if _at(state, path) is not v]
        if now := now or [n for n, outer, key, v in self._inner if (inner := getattr(outer, key)) is not v and inner.data_ptr() != v.data_ptr()]:
            raise Mismatch(f"{_list(now)} was replaced by another tensor (load_state_dict does that) after the session was made: load it before, or copy_ into what is there")
        if now := [n for n, module, key, b in self._buffers if module._buffers.get(key) is not b]:
            raise Mismatch(f"{_list(now)} was replaced by another tensor after the session was made: change buffers in place (copy_, fill_)")
        if now := [n for n, t, address in self._fixed if getattr(t, "_local_tensor", t).data_ptr() != address]:
            raise Mismatch(
                f"{_list(now)} has moved to other memory (`.data =`, .to()) after the session was made: move it before, copy_ into it, or make the session with staging=True"
            )
        if merged := list(self.merged()):
            raise Mismatch(f"{_list(merged)} is merged with its adapters: they get no gradient so, and base weights that are no longer those that are kept: unmerge first")

    def _came(self) -> Iterator[str]:
        """Tensors of the optimizers' state that came later. Counting finds them: what is there by its name is looked at elsewhere."""
        for o, own, state in self._states:
            for label, p in self._labelled(own):
                if len(now := state.get(p, {})) > self._count[id(p)]:
                    known = {path[0] for _, of, path, _ in self._state if of is now}
                    yield from (f"{o}.{label}.{key}" for key, v in now.items() if isinstance(v, torch.Tensor) and key not in known)

    def merged(self) -> Iterator[str]:
        """The layers that peft has merged with their adapters. Unmerging subtracts what was added, which leaves rounding behind."""
        return (n for n, x in self._layers if x.merged_adapters)

    # -- what may change --------------------------------------------------------------------------------------------------

    def value(self) -> dict[str, Any]:
        """Which of the trained parameters are frozen now, and which adapters of each peft model are active."""
        return {"resting": [n for n, p in self._window if not p.requires_grad], "adapters": {m: list(model.active_adapters) for m, model in self._peft()}}

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
    return (p for g in optimizer.param_groups for p in g["params"])


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


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    """What lies at the end of that way now, or None."""
    try:
        for key in path:
            value = value[key]
    except (KeyError, IndexError, TypeError):
        return None
    return value


def _list(names: list[str]) -> str:
    return ", ".join(names[:MOST]) + (f" and {len(names) - MOST} more" if len(names) > MOST else "")
