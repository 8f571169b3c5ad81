"""What an optimizer is made of: tensors, which are registered where they lie, and plain values, which go into a capsule.

Both are found in the whole tree of an optimizer's state (dicts, lists, tuples) and of its parameter groups, which have tensors too: a
learning rate that a captured graph reads.
"""

from __future__ import annotations

import copy
import logging
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, repeat
from typing import Any

import torch

from . import rng
from .errors import Mismatch, Unsupported
from .tensors import Leaf, leaves

__all__ = ["Carried", "materialise", "optimizer_leaves", "optimizer_values", "set_optimizer_values"]

log = logging.getLogger("replicad")

#: The types of most tensors, where a look at the type alone is to do.
_TENSORS = frozenset((torch.Tensor, torch.nn.Parameter))


class Carried:
    """The gradients that a step without an update has left. Who adds to them in the next one counts on what no copy has."""

    def __init__(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        grads = [(p, p.grad) for o in optimizers for g in o.param_groups for p in g["params"]]
        self._left = [(p, weakref.ref(grad), grad._version) for p, grad in grads if grad is not None]

    def look(self, say: Callable[[str, str], None], step: int) -> None:
        """Before the next step: names them if they were added to."""
        now = [(p.grad, grad(), version) for p, grad, version in self._left]
        if any(left is not None and grad is left and left._version != version for grad, left, version in now):
            say(
                "gradients",
                f"gradients that step {step - 1} left (updated=False) were changed before step {step}: a restart from step {step - 1} would not have them; add micro-batches up "
                "before one `with session.step()`, and call zero_grad() after a step without an update (set_to_none=False is taken for a change)",
            )


def materialise(optimizer: torch.optim.Optimizer) -> None:
    """Has the optimizer make its state now rather than in its first step, so that it can be registered.

    It is a step with zero gradients for the parameters that have no state yet, whose effect is taken back: parameters,
    counters and averages are then what a fresh optimizer's first step begins with, to the bit.
    """
    optimizer, kind = part(optimizer), type(optimizer).__name__
    if isinstance(optimizer, torch.optim.LBFGS):
        raise Unsupported(f"{kind}: its history is a list of tensors that grows from step to step, which can't be registered: use another optimizer")
    # A parameter without elements (FSDP1 leaves such on a rank) never gets a gradient, and so no state.
    fresh = [(g, p) for g in optimizer.param_groups for p in g["params"] if p.requires_grad and p.numel() and not optimizer.state.get(p)]
    if not fresh:
        return
    for g in optimizer.param_groups:
        if g.get("dampening") and g.get("momentum"):
            raise Unsupported(f"{kind} with dampening: its first step differs from all others, so its state can't be made beforehand: take a step before the session is made")
    grads = [(p, p.grad) for g in optimizer.param_groups for p in g["params"]]
    # Of what a parameter is made of: quantising again what was quantised is another value.
    kept = [(x.local, x.local.clone()) for _, p in fresh for x in leaves(f"a parameter of {kind}", p, "window")]
    groups = [(g, copy.deepcopy(_plain(_hyper(g))), [(t, t.clone()) for _, t in _tensors(_hyper(g), "")]) for g in optimizer.param_groups]
    decays = [(g, g["weight_decay"]) for g in optimizer.param_groups if "weight_decay" in g]
    try:
        for p, _ in grads:
            p.grad = None
        for _, p in fresh:
            p.grad = torch.zeros_like(p)
        for g, _ in decays:
            g["weight_decay"] = 0.0  # it would be a gradient
        with rng.preserved(), _without_hooks(optimizer):
            optimizer.step()
        _begin(optimizer, fresh)
        if not _of_torch(optimizer):
            log.warning(
                "replicad: %s is none of torch's: its state was made by a step with zero gradients that was taken back; if its first step is unlike the others (averages that "
                "begin with the first gradient), take a step before the session is made",
                kind,
            )
    except Exception as err:
        raise Unsupported(f"{kind}: its state can't be made by a step with zero gradients ({type(err).__name__}: {err}): take a step before the session is made") from err
    finally:
        for g, decay in decays:
            g["weight_decay"] = decay
        with torch.no_grad():
            for g, values, tensors in groups:  # counters may be there (apex's FusedAdam, ScheduleFree)
                for k in [k for k in _hyper(g) if k not in values and not isinstance(g[k], torch.Tensor)]:
                    del g[k]
                _merge(g, values)
                for t, value in tensors:
                    t.copy_(value)
        for p, grad in grads:
            p.grad = grad
        with torch.no_grad():
            for t, value in kept:
                t.copy_(value)


@contextmanager
def _without_hooks(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """The program's hooks are for its own steps: an average that is kept in one would begin one step early."""
    hooks: list[tuple[Any, dict[int, Any]]] = [(d, dict(d)) for d in (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)]
    for d, _ in hooks:
        d.clear()
    try:
        yield
    finally:
        for d, had in hooks:
            d.update(had)


def _of_torch(optimizer: torch.optim.Optimizer) -> bool:
    return any(f"{c.__module__}.".startswith("torch.optim.") and c is not torch.optim.Optimizer for c in type(optimizer).__mro__)


def _begin(optimizer: torch.optim.Optimizer, fresh: list[tuple[dict[str, Any], torch.Tensor]]) -> None:
    """Sets the state that a step has made to what it was before that step."""
    of_torch = _of_torch(optimizer)
    for g, p in fresh:
        state = optimizer.state.get(p, {})
        for key, v in state.items():
            if v is None or not (of_torch or key == "step"):
                continue
            first = _first(optimizer, g, key)
            if key == "step_size" and isinstance(v, torch.Tensor) and v.is_complex():
                first = complex(first, first)  # Rprop's real and imaginary parts have steps of their own
            if isinstance(v, torch.Tensor):
                v.fill_(first)
            elif isinstance(v, (int, float)):
                state[key] = type(v)(first)


def _first(optimizer: torch.optim.Optimizer, group: dict[str, Any], key: str) -> Any:
    """What a value of the state of one of torch's optimizers is before the first step."""
    if key in ("mu_product", "mu"):  # NAdam, ASGD
        return 1.0
    if key in ("eta", "step_size"):  # ASGD, Rprop
        return group["lr"]
    if key == "sum":  # Adagrad
        return group["initial_accumulator_value"]
    # SGD's first step takes the gradient as it is: -0 is what a gradient of either zero is added to without a change.
    return -0.0 if isinstance(optimizer, torch.optim.SGD) else 0.0


def part(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The optimizer that holds what lies on this rank: inside of a ZeroRedundancyOptimizer the one of the rank's own parameters."""
    for attribute in ("param_groups", "state"):
        if not hasattr(optimizer, attribute):
            raise Unsupported(f"{type(optimizer).__name__}: no {attribute}: give the torch.optim.Optimizer objects that it is made of, as a list or dict")
    zero = getattr(sys.modules.get("torch.distributed.optim.zero_redundancy_optimizer"), "ZeroRedundancyOptimizer", None)
    if zero is None or not isinstance(optimizer, zero):
        return optimizer
    if optimizer._overlap_with_ddp:
        raise Unsupported("ZeroRedundancyOptimizer with overlap_with_ddp=True: it updates parameters in backward, outside of session.step(): leave the option out")
    return optimizer.optim  # type: ignore[no-any-return]


def optimizer_leaves(name: str, optimizer: torch.optim.Optimizer, names: dict[int, str]) -> Iterator[Leaf]:
    """The tensors of an optimizer: those of its groups, parameters that no model has, and its state by the names of the parameters
    and the paths in the state of each."""
    for g, group in enumerate(optimizer.param_groups):
        for path, t in _tensors(_hyper(group), f"{name}.groups.{g}"):
            yield from leaves(path, t, "window")
    optimizer = part(optimizer)
    for label, p in _named(optimizer, names):
        if id(p) not in names:
            yield from leaves(f"{name}.{label}", p, "window" if p.requires_grad else "never")
        for path, t in _tensors(optimizer.state.get(p, {}), f"{name}.{label}"):
            yield from leaves(path, t, "window")
    for path, t in _tensors(_own(optimizer), f"{name}.own"):
        yield from leaves(path, t, "window")


def optimizer_values(optimizer: torch.optim.Optimizer, names: dict[int, str]) -> dict[str, Any]:
    """What of an optimizer is not a tensor: the hyperparameters of its groups, and plain values in its state."""
    groups = [_plain(_hyper(g)) for g in optimizer.param_groups]
    optimizer = part(optimizer)
    state = {}
    if not _bare(optimizer.state):  # most optimizers have nothing but tensors there, and this is asked at every step
        state = {label: values for label, p in _named(optimizer, names) if (values := _plain(optimizer.state.get(p, {})))}
    return {"groups": groups, "state": state, "own": _plain(_own(optimizer))}


def set_optimizer_values(optimizer: torch.optim.Optimizer, names: dict[int, str], values: dict[str, Any]) -> None:
    """The inverse of :func:`optimizer_values`."""
    if len(values["groups"]) != len(optimizer.param_groups):
        raise Mismatch(f"the generation has {len(values['groups'])} parameter groups, this optimizer {len(optimizer.param_groups)}")
    for g, kept in zip(optimizer.param_groups, values["groups"], strict=True):
        _merge(g, kept)
    optimizer = part(optimizer)
    for label, p in _named(optimizer, names):
        if kept := values["state"].get(label):  # no entry is made where there was none: an optimizer makes its state where it has none
            _merge(optimizer.state[p], kept)
    _merge(optimizer.state, values["own"])


def _hyper(group: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in group.items() if k != "params"}


def _named(optimizer: torch.optim.Optimizer, names: dict[int, str]) -> Iterator[tuple[str, torch.Tensor]]:
    for g, group in enumerate(optimizer.param_groups):
        for i, p in enumerate(group["params"]):
            yield names.get(id(p), f"param.{g}.{i}"), p


def _own(optimizer: torch.optim.Optimizer) -> dict[Any, Any]:
    """What the optimizer keeps in its state under keys of its own, which are no parameters."""
    own = {} if _TENSORS.issuperset(map(type, optimizer.state)) else {k: v for k, v in optimizer.state.items() if not isinstance(k, torch.Tensor)}
    if len(own) < len(optimizer.state):
        known = set(map(id, chain.from_iterable(group["params"] for group in optimizer.param_groups)))
        if known.issuperset(map(id, optimizer.state)):
            return own
        orphan = next((k for k in optimizer.state if isinstance(k, torch.Tensor) and id(k) not in known), None)
        if orphan is not None:
            raise Unsupported(f"{type(optimizer).__name__}: has state of a tensor of shape {tuple(orphan.shape)} that is in none of its parameter groups: delete it")
    return own


def _bare(state: dict[Any, Any]) -> bool:
    """Whether an optimizer's state is of parameters' dicts of tensors alone, as far as that is seen at a glance."""
    return {dict}.issuperset(map(type, state.values())) and _TENSORS.issuperset(map(type, chain.from_iterable(map(dict.values, state.values()))))


def _tensors(tree: Any, path: str) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a tree, by path."""
    if isinstance(tree, torch.Tensor):
        yield path, tree
    elif isinstance(tree, dict):
        for k in sorted(tree, key=str):
            yield from _tensors(tree[k], f"{path}.{k}")
    elif isinstance(tree, (list, tuple)):
        for i, v in enumerate(tree):
            yield from _tensors(v, f"{path}.{i}")


def _plain(tree: Any) -> Any:
    """A tree without its tensors: dicts lack them, in lists None stands for them."""
    if isinstance(tree, dict):
        return {k: _plain(v) for k, v in tree.items() if not isinstance(v, torch.Tensor)}
    if type(tree) in (list, tuple):
        return type(tree)(None if isinstance(v, torch.Tensor) else _plain(v) for v in tree)
    return tree


def _merge(live: Any, kept: Any) -> Any:
    """What :func:`_plain` made of a tree, put back into it. Its tensors stay: they were loaded where they lie."""
    if isinstance(live, torch.Tensor):
        return live
    if isinstance(live, dict) and isinstance(kept, dict):
        live.update({k: _merge(live.get(k), v) for k, v in kept.items()})
        return live
    if type(live) in (list, tuple) and isinstance(kept, (list, tuple)):  # of another length where plain values were added
        return type(live)(_merge(a, b) for a, b in zip(chain(live, repeat(None)), kept, strict=False))
    return kept
