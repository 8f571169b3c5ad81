"""What an optimizer is made of: tensors, which are registered where they lie, and plain values, which go into a capsule.

Both are found in the whole tree of an optimizer's state (dicts, lists, tuples) and of its parameter groups, which have tensors too: a
learning rate that a captured graph reads.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import logging
import math
import sys
import traceback
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, compress, repeat
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from .. import rng
from .._core import capsule
from ..errors import Mismatch, Unsupported
from .device import lies_on
from .tensors import Leaf, leaves
from .trees import differences

__all__ = [
    "Carried",
    "doubts",
    "materialise",
    "optimizer_leaves",
    "optimizer_tensors",
    "optimizer_values",
    "refuse_inner",
    "refuse_sparse",
    "scalars_in_place",
    "set_optimizer_values",
    "unwrapped",
]

log = logging.getLogger("replicad")

#: The types of most tensors, where a look at the type alone is to do.
_TENSORS = frozenset((torch.Tensor, torch.nn.Parameter))
#: Bytes of tensors that an optimizer's attributes may hold for it to be tried out: copies of a model would take its memory twice more.
MOST_COPIED = 64 << 20
#: Bytes of parameters that an optimizer is tried out on at their own size; with gradients and the state of two optimizers it takes some ten times as much, for a moment.
#: In host memory a fourth of all is allowed too. On a device, which may be full, it is not.
MOST_TRIED = 64 << 20
#: Bytes of parameters whose state is made at a time, or one parameter: beside the state itself, copies of them and zero gradients take twice as much.
AT_ONCE = 64 << 20
#: Elements of what stands for a parameter that is too large for that. Optimizers tell small tensors apart (8-bit ones at 4096 elements, factored ones at 128 rows): this is above.
LARGE = 1 << 20
#: The longest dimension of what stands for a parameter of a kind that is tried at its own size elsewhere.
SMALL = 8


#: What is not known of an optimizer, or in no copy, as its session was told when its state was made.
_doubts: weakref.WeakKeyDictionary[torch.optim.Optimizer, list[str]] = weakref.WeakKeyDictionary()


def doubts(optimizer: torch.optim.Optimizer) -> list[str]:
    """Why a restart with this optimizer may be another run."""
    return _doubts.get(part(optimizer), [])


def _doubt(optimizer: torch.optim.Optimizer, text: str) -> None:
    _doubts.setdefault(optimizer, []).append(text)
    log.warning("replicad: %s", text)


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

    Most of torch's have a function for that, and SGD's momentum is easily made. For others it is a step with zero gradients for the parameters that have no
    state yet, whose effect is taken back: parameters, counters and averages are then what a fresh optimizer's first step begins with, to the bit. That is
    known of torch's; of others it is tried out, and :class:`Unsupported` names what would be otherwise. On a device that is full, so much is made at a time
    as the optimizer allows (:data:`AT_ONCE`).
    """
    optimizer, kind = part(optimizer), type(optimizer).__name__
    if isinstance(optimizer, torch.optim.LBFGS):
        raise Unsupported(f"{kind}: its history is a list of tensors that grows from step to step, which can't be registered: use another optimizer")
    if not _of_torch(optimizer):
        _steady(optimizer)
    if not (fresh := _fresh(optimizer)):
        return
    for g in optimizer.param_groups:
        if g.get("dampening") and g.get("momentum"):
            raise Unsupported(f"{kind} with dampening: its first step differs from all others, so its state can't be made beforehand: take a step before the session is made")
    trial, apart = None, True  # torch's leave alone what has no gradient
    if not _of_torch(optimizer):
        trial, apart = _try_out(optimizer, sum(map(_size, fresh)) > AT_ONCE)
    elif _sgds(optimizer, fresh) or _asked(optimizer, fresh):
        return
    counted = _made(optimizer, fresh, AT_ONCE if apart else None)
    if trial is not None and trial.smaller:
        _compare_sizes(optimizer, fresh, trial)
    if counted:
        names = ", ".join(f"self.{k}" for k in counted)
        _doubt(optimizer, f"{kind} keeps a count in {names}, which no copy holds: a restart begins the count anew. Keep it in param_groups or in state")


#: Parameters without state, with their groups.
_Fresh = list[tuple[dict[str, Any], torch.Tensor]]


def _size(of: tuple[dict[str, Any], torch.Tensor]) -> int:
    """Bytes of a parameter on this rank: that of a shard has the size of the whole."""
    t = getattr(of[1], "_local_tensor", of[1])
    return t.numel() * t.element_size()


def _parted(fresh: _Fresh, size: Callable[[tuple[dict[str, Any], torch.Tensor]], int], most: int | None) -> Iterator[_Fresh]:
    """Parameters by parts of at most so many bytes, of one parameter at least."""
    part: _Fresh = []
    room = 0
    for of in fresh:
        room -= size(of)
        if part and most is not None and room < 0:
            yield part
            part = []
        if not part:
            room = (most or 0) - size(of)
        part.append(of)
    if part:
        yield part


def _fresh(optimizer: torch.optim.Optimizer) -> _Fresh:
    """The parameters that a step can make state of, and that have none, with their groups. A parameter without elements gets a gradient and state as any other; what FSDP1 leaves
    on a rank of a tensor that lies elsewhere gets neither."""
    of = ((g, p) for g in optimizer.param_groups for p in g["params"])
    return [(g, p) for g, p in of if p.requires_grad and (p.numel() or not getattr(p, "_fsdp_flattened", False)) and not optimizer.state.get(p)]


def _sgds(optimizer: torch.optim.Optimizer, fresh: _Fresh) -> bool:
    """Makes the state of torch's SGD: the momentum, which is what a step with zero gradients and :func:`_begin` leave of it. Whether it did. That step would need
    copies of all parameters, and as many gradients, to make nothing at all where there is no momentum."""
    if not isinstance(optimizer, torch.optim.SGD):
        return False
    try:
        for g, p in fresh:
            if g["momentum"] != 0:
                optimizer.state[p]["momentum_buffer"] = torch.zeros_like(p).detach().fill_(_BEGINS[torch.optim.SGD]["momentum_buffer"])
    except Exception:  # the step will say it better
        _unmake(optimizer, fresh)
        return False
    return True


def _unmake(optimizer: torch.optim.Optimizer, fresh: _Fresh) -> None:
    """Half made, it would be taken for state at the next attempt."""
    for _, p in fresh:
        optimizer.state.pop(p, None)


def _asked(optimizer: torch.optim.Optimizer, fresh: _Fresh) -> bool:
    """Has one of torch's make the state of ``fresh`` as the beginning of its first step does, without the step: that would touch all gradients and
    parameters, which takes longer than the state itself. Whether it did."""
    begin = getattr(optimizer, "_init_group", None)
    if begin is None:
        return False
    lists = len(inspect.signature(begin).parameters) - 1
    grads = [(p, p.grad) for g in optimizer.param_groups for p in g["params"]]
    try:
        for p, _ in grads:
            p.grad = None
        for some in _parted(fresh, lambda of: 0 if _expands(of[1]) else _size(of), AT_ONCE):
            for _, p in some:
                p.grad = torch.zeros((), dtype=p.dtype, device=p.device).expand(p.shape) if _expands(p) else torch.zeros_like(p)
            with torch.no_grad():
                for g in optimizer.param_groups:
                    begin(g, *([] for _ in range(lists)))
            for _, p in some:
                p.grad = None
    except Exception:  # the step will say it better
        _unmake(optimizer, fresh)
        return False
    finally:
        for p, grad in grads:
            p.grad = grad
    made = all(optimizer.state.get(p) for _, p in fresh)
    if not made:
        _unmake(optimizer, fresh)
    return made


def _expands(p: torch.Tensor) -> bool:
    """Whether one number may stand for the gradient of a parameter where only shape and type count. State of one element would have its strides, of which views can't be taken."""
    return type(p) in _TENSORS and p.layout is torch.strided and p.is_contiguous() and p.numel() > 1


def _made(optimizer: torch.optim.Optimizer, fresh: _Fresh, most: int | None = None) -> list[str]:
    """As :func:`_make`, for parameters of at most so many bytes at a time, with what it refuses. Some optimizers fail at a parameter without elements: in the
    program's own step too if it gets a gradient, so it needs no state."""
    for some in (fresh, [(g, p) for g, p in fresh if p.numel()]):
        try:
            return list(dict.fromkeys(name for part in _parted(some, _size, most) for name in _make(optimizer, part)))
        except Exception as err:
            _unmake(optimizer, fresh)
            traceback.clear_frames(err.__traceback__)  # they hold copies of parameters, where memory may have been short
            first = err
            if all(p.numel() for _, p in some):
                break
    remedy = _instead(optimizer) or "take a step before the session is made"
    raise Unsupported(f"{type(optimizer).__name__}: its state can't be made by a step with zero gradients ({type(first).__name__}: {first}): {remedy}") from first


def _make(optimizer: torch.optim.Optimizer, fresh: _Fresh) -> list[str]:
    """Has the state of ``fresh`` made by a step that is taken back. It returns the names of the optimizer's attributes that had counted."""
    grads = [(p, p.grad) for g in optimizer.param_groups for p in g["params"]]
    # Of what a parameter is made of: quantising again what was quantised is another value.
    kept = [(x.local, x.local.clone()) for _, p in fresh for x in leaves(f"a parameter of {type(optimizer).__name__}", p, "window")]
    groups = [(g, copy.deepcopy(_plain(_hyper(g))), [(t, t.clone()) for _, t in _tensors(_hyper(g), "")]) for g in optimizer.param_groups]
    decays = [(g, g["weight_decay"]) for g in optimizer.param_groups if "weight_decay" in g]
    attributes, draws = _counters(optimizer), [(g, g.get_state()) for g in vars(optimizer).values() if isinstance(g, torch.Generator)]
    called = hasattr(optimizer, "_opt_called")
    layout = torch.sparse_coo if isinstance(optimizer, torch.optim.SparseAdam) else None  # it takes no other gradients
    try:
        for p, _ in grads:
            p.grad = None
        for _, p in fresh:
            p.grad = torch.zeros_like(p, layout=layout) if layout else torch.zeros_like(p)
        for g, _ in decays:
            g["weight_decay"] = 0.0  # it would be a gradient
        with rng.preserved(), _without_hooks(optimizer):
            optimizer.step()
        _begin(optimizer, fresh)
        return [k for k, v in _counters(optimizer).items() if k not in attributes or attributes[k] != v]
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
            for k in _counters(optimizer).keys() - attributes.keys():
                del vars(optimizer)[k]
            vars(optimizer).update(attributes)
            for generator, state in draws:
                generator.set_state(state)
            if not called:
                vars(optimizer).pop("_opt_called", None)  # a scheduler's, which warns where it comes before the first step
        for p, grad in grads:
            p.grad = grad
        with torch.no_grad():
            for t, value in kept:
                t.copy_(value)


def _counters(optimizer: torch.optim.Optimizer) -> dict[str, int | float]:
    """Its attributes that are numbers. A flag that says that its state was made is to stay."""
    return {k: v for k, v in vars(optimizer).items() if type(v) in (int, float)}


@contextmanager
def _without_hooks(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """The program's hooks are for its own steps: an average that is kept in one would begin one step early."""
    everyones = (_global_optimizer_pre_hooks, _global_optimizer_post_hooks)
    hooks: list[tuple[Any, dict[int, Any]]] = [(d, dict(d)) for d in (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks, *everyones)]
    for d, _ in hooks:
        d.clear()
    try:
        yield
    finally:
        for d, had in hooks:
            d.update(had)


#: What torch puts around each optimizer's step.
_HOOKED = torch.optim.Optimizer.profile_hook_step(lambda *_: None).__code__


def _of_torch(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it makes and changes its state as one of torch's optimizers does: one of theirs, or a subclass that has another ``__init__``, say."""
    kind = type(optimizer)
    of_torch = next((c for c in kind.__mro__ if f"{c.__module__}.".startswith("torch.optim.") and c is vars(torch.optim).get(c.__name__)), torch.optim.Optimizer)
    own = vars(optimizer).get("step")  # a scheduler's is around that of the class; accelerate puts that of the class there
    return (
        of_torch is not torch.optim.Optimizer
        and (own is None or hasattr(own, "_wrapped_by_lr_sched") or getattr(own, "__func__", None) is kind.step)
        and _step(kind) is _step(of_torch)
        and getattr(kind, "_init_group", None) is getattr(of_torch, "_init_group", None)
    )


def _step(kind: Any) -> Any:
    """The step of a class, without what torch puts around it."""
    step = kind.step
    while getattr(step, "__code__", None) is _HOOKED:
        step = step.__wrapped__
    return step


#: What a step with zero gradients changes in the state of torch's optimizers, and what it is before the first one; "lr" is the group's.
_BEGINS: dict[type[torch.optim.Optimizer], dict[str, Any]] = {
    torch.optim.SGD: {"momentum_buffer": -0.0},  # its first step takes the gradient as it is: to -0 a zero of either sign is added without a change
    torch.optim.NAdam: {"mu_product": 1.0},
    torch.optim.ASGD: {"mu": 1.0, "eta": "lr", "ax": 0.0},
    torch.optim.Adamax: {"exp_inf": 0.0},
    torch.optim.RMSprop: {"momentum_buffer": 0.0},  # with an eps of zero, or one that is zero in float16, both divide nothing by nothing
    torch.optim.Adadelta: {"acc_delta": 0.0},
}


def _begin(optimizer: torch.optim.Optimizer, fresh: _Fresh) -> None:
    """Sets the state that a step has made to what it was before that step."""
    begins = {"step": 0.0} | {key: first for kind, values in _BEGINS.items() if isinstance(optimizer, kind) for key, first in values.items()}
    for g, p in fresh:
        state = optimizer.state.get(p, {})
        for key in begins.keys() & state.keys():
            v, first = state[key], g["lr"] if begins[key] == "lr" else begins[key]
            if isinstance(v, torch.Tensor):
                v.fill_(first)
            elif isinstance(v, (int, float)):
                state[key] = type(v)(first)


class _Trial:
    """How an optimizer was tried out: one that made its state beforehand, what stood for the parameters, by id, and the parameters that nothing of their size stood for."""

    def __init__(self, made: torch.optim.Optimizer, stand_ins: dict[int, torch.Tensor], smaller: list[torch.Tensor]) -> None:
        self.made, self.stand_ins, self.smaller = made, stand_ins, smaller


@dataclass(frozen=True)
class _Compared:
    """Two of a kind after some steps, of which one had its state made beforehand: what differs between them, and what the other one held before them."""

    trial: _Trial
    unlike: list[str]
    other: torch.optim.Optimizer
    held: list[tuple[str, torch.Tensor, int]]


def _try_out(optimizer: torch.optim.Optimizer, large: bool) -> tuple[_Trial | None, bool]:
    """Refuses an optimizer whose first steps differ where its state was made beforehand, by the names of what differs. Two of its kind tell, over parameters like its own,
    so that neither the optimizer nor what it refers to is touched. Where it is ``large``: also whether its state can be made for some parameters after others."""
    kind = type(optimizer).__name__
    if large:
        with contextlib.suppress(Exception):  # of anybody's code: it may want all gradients at once
            apart = _compared(optimizer, 0)
            if not apart.unlike:
                _say_held(optimizer, apart.other, apart.held)
                return apart.trial, True
    try:
        whole = _compared(optimizer, None)
    except Exception as err:  # of anybody's code
        why = err.__cause__ if isinstance(err, Unsupported) and err.__cause__ else err
        _doubt(
            optimizer,
            f"{kind} is none of torch's, and can't be tried out ({type(why).__name__}: {why}): its state is made by a step with zero gradients that is taken back; if its first "
            "step is unlike the others (averages that begin with the first gradient, counters), take a step before the session is made",
        )
        return None, False
    if whole.unlike:
        raise Unsupported(
            f"{kind}: its first step is unlike the others, so its state can't be made by one with zero gradients: {', '.join(whole.unlike[:8])} would differ; count under the key "
            "'step' or in param_groups, begin averages with zeros, or take a step before the session is made"
        )
    _say_held(optimizer, whole.other, whole.held)
    return whole.trial, False


def _compared(optimizer: torch.optim.Optimizer, most: int | None) -> _Compared:
    """Has two of a kind take steps, of which one has its state made beforehand, for parameters of at most so many bytes at a time."""
    shapes, smaller = _tried(_fresh(optimizer))
    _copyable(optimizer)
    (fresh, _), (made, stand_ins) = _copy(optimizer, shapes), _copy(optimizer, shapes)
    held = [(name, t, t._version) for name, t in _held(fresh)]
    _made(made, _fresh(made), most)
    both = [[p for g in o.param_groups for p in g["params"]] for o in (fresh, made)]
    stepped = [p.numel() > 0 or bool(made.state.get(p)) for p in both[1]]
    for gradient in (1.0, -0.5):
        for o, parameters in zip((fresh, made), both, strict=True):
            for p in compress(parameters, stepped):
                p.grad = torch.full_like(p, gradient)
            with rng.preserved(), _without_hooks(o):
                o.step()
    return _Compared(_Trial(made, stand_ins, smaller), list(differences(_content(fresh), _content(made), "")), fresh, held)


def _tried(fresh: _Fresh) -> tuple[dict[int, tuple[int, ...]], list[torch.Tensor]]:
    """The shapes of the parameters that an optimizer is tried out on, by id, and the parameters that none of the same group, shape and type has its own size for: those that
    are too large. The first of each kind counts; from the smallest on, each is taken at its own size while there is room."""
    kinds: dict[Any, list[torch.Tensor]] = {}
    for g, p in fresh:
        kinds.setdefault((id(g), p.shape, p.dtype, p.device), []).append(p)
    room = MOST_TRIED if any(lies_on(p) for _, p in fresh) else max(MOST_TRIED, sum(map(_size, fresh)) // 4)
    shapes: dict[int, tuple[int, ...]] = {}
    smaller: list[torch.Tensor] = []
    for first, *others in sorted(kinds.values(), key=lambda of: of[0].numel() * of[0].element_size()):
        room -= first.numel() * first.element_size()
        shapes[id(first)] = tuple(first.shape) if room >= 0 else _at_most(tuple(first.shape), LARGE)
        smaller += [first] if shapes[id(first)] != first.shape else []
        shapes |= {id(p): tuple(min(n, SMALL) for n in p.shape) for p in others}
    return shapes, smaller


def _at_most(shape: tuple[int, ...], numel: int) -> tuple[int, ...]:
    """A shape of at most so many elements, by halves of its longest dimension."""
    sizes = list(shape)
    while math.prod(sizes) > numel:
        longest = max(range(len(sizes)), key=sizes.__getitem__)
        sizes[longest] //= 2
    return tuple(sizes)


def _compare_sizes(optimizer: torch.optim.Optimizer, fresh: _Fresh, trial: _Trial) -> None:
    """Says which parameters an optimizer was not tried out on, at their size. :class:`Unsupported` where it tells them apart from what stood for them by its state."""
    kind, first = type(optimizer).__name__, trial.smaller[0]
    for p in trial.smaller:
        real, tried = (_kinds_of(o.state.get(of, {}), of) for o, of in ((optimizer, p), (trial.made, trial.stand_ins[id(p)])))
        if real != tried:
            _unmake(optimizer, fresh)
            raise Unsupported(
                f"{kind}: it treats a parameter of shape {tuple(p.shape)} otherwise than the one of shape {tuple(trial.stand_ins[id(p)].shape)} that it was tried out on "
                f"(its state has {_listed(real)}, and there {_listed(tried)}), so whether its first step is like the others is not known: take a step before the session is made"
            )
    more = f" and {len(trial.smaller) - 1} more" if len(trial.smaller) > 1 else ""
    _doubt(
        optimizer,
        f"{kind} is none of torch's, and was tried out on smaller tensors than it has: {tuple(trial.stand_ins[id(first)].shape)} for a parameter of shape {tuple(first.shape)}"
        f"{more}; whether its first step is like the others was not tried at the full size: take a step before the session is made if it goes by size",
    )


def _kinds_of(state: Any, p: torch.Tensor) -> dict[str, str]:
    """What an optimizer keeps of a parameter, by path: the type, and how it is shaped beside the parameter."""
    return {path.removeprefix("."): f"{str(t.dtype).removeprefix('torch.')}{'' if t.shape == p.shape else f' of {t.dim()} dimensions'}" for path, t in _tensors(state, "")}


def _listed(kinds: dict[str, str]) -> str:
    return ", ".join(f"{path} ({what})" for path, what in kinds.items()) or "no tensors"


#: So many steps of a small one of its kind: what is done at every tenth step is among them.
STEADY = 12
#: So many parameters of a kind are tried.
ALIKE = 2


def _steady(optimizer: torch.optim.Optimizer) -> None:
    """Refuses an optimizer whose own step puts other tensors into its state (preconditioners that are made anew every so many steps): a job would end at that step, hours in."""
    kind = type(optimizer).__name__
    try:
        _copyable(optimizer)
        small, _ = _copy(optimizer, _alike(optimizer))
        for step in range(STEADY):
            for g in small.param_groups:
                for p in g["params"]:
                    p.grad = torch.full_like(p, 0.5 - step % 2)
            before = _placed(small)
            with rng.preserved(), _without_hooks(small):
                small.step()
            now = _placed(small)
            if step and (replaced := sorted({path.rsplit(".", 1)[-1] if path[-1].isalpha() else path.split(".", 1)[-1] for path, t in before.items() if now.get(path) is not t})):
                break
        else:
            return
    except Exception:  # of anybody's code: what is tried out besides says so
        return
    raise Unsupported(
        f"{kind}: its step replaces tensors of its state ({', '.join(replaced[:4])}; seen at step {step + 1} of a small one of its kind), and copies are made from those that were "
        "there when the session was made: have the step change them in place (old.copy_(new)), or use an optimizer that does"
    )


def _alike(optimizer: torch.optim.Optimizer) -> dict[int, tuple[int, ...]]:
    """Small shapes for the first parameters of each kind, by id, whether they have state or not."""
    shapes: dict[int, tuple[int, ...]] = {}
    seen = Counter[Any]()
    for i, g in enumerate(optimizer.param_groups):
        for p in g["params"]:
            small = tuple(min(n, SMALL) for n in p.shape)
            seen[i, small, p.dtype] += 1
            if p.requires_grad and p.numel() and seen[i, small, p.dtype] <= ALIKE:
                shapes[id(p)] = small
    return shapes


def _placed(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """The tensors in the state of its parameters, by path. Single numbers may be made anew: those are put back."""
    states = ((f"{i}", optimizer.state.get(p, {})) for i, p in enumerate(p for g in optimizer.param_groups for p in g["params"]))
    return {path: t for i, state in states for path, t in _tensors(state, i) if t.dim()}


def _copyable(optimizer: torch.optim.Optimizer) -> None:
    """Raises where copies of an optimizer's attributes would do harm."""
    if hasattr(type(optimizer), "__del__"):
        raise TypeError("it has a destructor, which would be called for what its copies share with it")
    nbytes = sum(t.numel() * t.element_size() for _, t in _held(optimizer))
    if nbytes > MOST_COPIED:
        raise MemoryError(f"its attributes hold {nbytes >> 20} MiB of tensors")


def _held(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors that its attributes hold, besides state and groups, at any depth, by the attribute's name."""
    seen: set[int] = set()
    left = [(k, v) for k, v in vars(optimizer).items() if k not in ("state", "param_groups") and not k.startswith("_optimizer_")]
    while left:
        name, v = left.pop()
        if id(v) in seen or isinstance(v, (type, ModuleType, FunctionType)):
            continue
        seen.add(id(v))
        if isinstance(v, torch.Tensor):
            yield name, v
        elif isinstance(v, Mapping):
            left += ((name, x) for x in v.values())
        elif isinstance(v, (list, tuple, set, frozenset)):
            left += ((name, x) for x in v)
        else:
            left += ((name, x) for x in getattr(v, "__dict__", {}).values())


def _say_held(optimizer: torch.optim.Optimizer, tried: torch.optim.Optimizer, held: list[tuple[str, torch.Tensor, int]]) -> None:
    """Says which attributes' tensors the steps of a trial have changed, or put others for. Parameters and state are kept, whoever holds them too."""
    kept = {id(t) for tree in (*tried.param_groups, *tried.state.values()) for _, t in _tensors(tree, "")}
    before = {id(t) for _, t, _ in held}
    changed = {name for name, t, version in held if id(t) not in kept and t._version != version}
    changed |= {name for name, t in _held(tried) if id(t) not in kept | before}
    if changed:
        names = ", ".join(f"self.{name}" for name in sorted(changed))
        _doubt(
            optimizer,
            f"a step of {type(optimizer).__name__} changes tensors in {names}, which no copy holds: a restart begins them anew, which is right for what every step writes before "
            "it reads. Keep others in param_groups or in state",
        )


def _copy(optimizer: torch.optim.Optimizer, shapes: Mapping[int, tuple[int, ...]]) -> tuple[torch.optim.Optimizer, dict[int, torch.Tensor]]:
    """An optimizer of the same kind that has no state yet, and its parameters, of the given shapes, by the id of those that they stand for."""
    stand_ins: dict[int, torch.Tensor] = {}
    for p in (p for g in optimizer.param_groups for p in g["params"] if id(p) in shapes):
        shape = shapes[id(p)]
        stand_ins[id(p)] = torch.nn.Parameter(torch.linspace(-1, 1, math.prod(shape), device=p.device).to(p.dtype).reshape(shape))
    made = object.__new__(type(optimizer))
    memo: dict[int, Any] = {**stand_ins, id(optimizer): made}
    for k, v in vars(optimizer).items():
        if k.startswith("_optimizer_") and isinstance(v, dict):
            vars(made)[k] = type(v)()  # hooks
        elif k not in ("state", "param_groups", "step"):
            vars(made)[k] = copy.deepcopy(v, memo)
    made.state = copy.copy(optimizer.state)
    made.state.clear()
    made.param_groups = [copy.deepcopy(_hyper(g), memo) | {"params": [stand_ins[id(p)] for p in g["params"] if id(p) in stand_ins]} for g in optimizer.param_groups]
    return made, stand_ins


def _content(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What a step changes: what a session would keep, parameters too, and what attributes hold."""
    attributes = {k: v for k, v in vars(optimizer).items() if isinstance(v, (list, tuple, dict)) and k not in ("param_groups", "state", "defaults")}
    held = {k: v for k, v in attributes.items() if _is_plain(_plain(v))}
    values = {"optim": optimizer_values(optimizer, {}), "self": _plain(held)}
    return values | {x.name: x.local for x in optimizer_leaves("optim", optimizer, {})} | dict(_tensors(held, "self"))


def _is_plain(tree: Any) -> bool:
    """Whether a tree has nothing but plain values. Other objects are unlike their copies."""
    try:
        capsule.pack(tree)
    except Unsupported:
        return False
    return True


def scalars_in_place(optimizer: torch.optim.Optimizer) -> Callable[..., None]:
    """What to call after each of its steps: single numbers that an optimizer makes anew in a step (the RMS of transformers' Adafactor) are put into
    the tensors that were registered."""
    optimizer = part(optimizer)
    scalars: list[tuple[dict[str, Any], str, torch.Tensor]] = []
    if not _of_torch(optimizer):
        states = (state for state in optimizer.state.values() if isinstance(state, dict))
        scalars = [(state, key, t) for state in states for key, t in state.items() if type(t) is torch.Tensor and t.dim() == 0]

    def put_back(*_: Any) -> None:
        for state, key, t in scalars:
            now = state.get(key)
            if now is not t and type(now) is torch.Tensor and (now.shape, now.dtype, now.device) == (t.shape, t.dtype, t.device):
                state[key] = t.copy_(now.detach())

    return put_back


def unwrapped(optimizer: Any) -> Any:
    """The optimizer inside of a wrapper (accelerate's) that has its state and groups from it. :class:`Unsupported` for one whose steps nobody can be told of."""
    inner = getattr(optimizer, "optimizer", None)
    if isinstance(inner, torch.optim.Optimizer) and inner.state is optimizer.state and inner.param_groups is optimizer.param_groups:
        return unwrapped(inner)
    if not hasattr(optimizer, "_optimizer_step_pre_hooks"):
        raise Unsupported(
            f"{type(optimizer).__name__}: not made by torch.optim.Optimizer.__init__, so that it takes no hooks: give the torch.optim.Optimizer inside of it (its .optimizer, say)"
        )
    return optimizer


def refuse_inner(optimizers: Mapping[str, torch.optim.Optimizer]) -> None:
    """:class:`Unsupported` for an optimizer that has another one inside (slow weights around moments, say) which is none of these: nobody would keep its state."""
    kept = {id(o.state) for given in optimizers.values() for o in (given, part(given))}
    for name, o in optimizers.items():
        for attribute, value in vars(o).items():
            for inner in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(inner, torch.optim.Optimizer) and id(inner.state) not in kept:
                    both = "give both, this one first (optimizer=[outer, inner])"
                    if not o.state:
                        both = f"{_inner_alone(attribute)}; where the outer one has state of its own that lasts (slow weights), {both}"
                    raise Unsupported(f"{name}: {type(o).__name__} steps the {type(inner).__name__} in its .{attribute}, whose state would be in no copy: {both}")


def _inner_alone(attribute: str) -> str:
    """What to do with an optimizer that steps another one and keeps nothing from step to step."""
    return (
        f"where it keeps nothing from one step to the next (SAM), give the inner one alone (optimizer=outer.{attribute}), and have all that the outer one does inside of "
        "`with session.step()`: the climb, the second forward and backward, the descent"
    )


def _instead(optimizer: torch.optim.Optimizer) -> str:
    """What to do with an optimizer that can't be stepped by itself, if it has another one inside."""
    found = (k for k, v in vars(optimizer).items() if isinstance(v, torch.optim.Optimizer))
    return next((_inner_alone(k) for k in found), "")


def refuse_sparse(optimizers: Mapping[str, torch.optim.Optimizer], models: Mapping[str, torch.nn.Module], names: Mapping[int, str]) -> None:
    """:class:`Unsupported` for Nesterov's momentum over sparse gradients: nothing sparse can be registered, so it is dense, and torch adds nothing dense to a sparse tensor."""
    sparse = {id(x.weight) for model in models.values() for x in model.modules() if getattr(x, "sparse", False) is True and isinstance(getattr(x, "weight", None), torch.Tensor)}
    for name, o in optimizers.items():
        for g in o.param_groups if sparse and isinstance(o, torch.optim.SGD) else ():
            if g["nesterov"] and (of := [names.get(id(p), "a parameter") for p in g["params"] if id(p) in sparse]):
                raise Unsupported(
                    f"{name}: SGD with nesterov=True over {of[0]}, whose gradients are sparse: its momentum is kept dense, which torch can't add to a sparse gradient: give this "
                    "parameter to a group with nesterov=False or to torch.optim.SparseAdam, or make the embedding with sparse=False"
                )


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


def undoing(optimizers: Iterable[torch.optim.Optimizer]) -> Callable[[], None]:
    """What takes away again the state that optimizers get from now on, and puts the parameters of their groups back into their order."""
    states = [(o.state, {p: set(of) if isinstance(of, dict) else set() for p, of in o.state.items()}) for o in map(part, optimizers)]
    groups = [(group["params"], list(group["params"])) for o in optimizers for group in o.param_groups]

    def undo() -> None:
        for state, had in states:
            for p in list(state):
                if p not in had:
                    del state[p]
                elif isinstance(of := state[p], dict):
                    for key in of.keys() - had[p]:
                        del of[key]
        for now, before in groups:
            now[:] = before

    return undo


def optimizer_leaves(name: str, optimizer: torch.optim.Optimizer, names: dict[int, str]) -> Iterator[Leaf]:
    """What :func:`optimizer_tensors` consist of on this rank."""
    for path, t, changes in optimizer_tensors(name, optimizer, names):
        yield from leaves(path, t, changes)


def optimizer_tensors(name: str, optimizer: torch.optim.Optimizer, names: dict[int, str]) -> Iterator[tuple[str, torch.Tensor, str]]:
    """The tensors of an optimizer, and when they change: those of its groups, parameters that no model has, and its state by the names of the parameters
    and the paths in the state of each."""
    for g, group in enumerate(optimizer.param_groups):
        yield from ((path, t, "window") for path, t in _tensors(_hyper(group), f"{name}.groups.{g}"))
    optimizer = part(optimizer)
    for label, p in named(optimizer, names):
        if id(p) not in names:
            yield f"{name}.{label}", p, "window" if p.requires_grad else "never"
        yield from ((path, t, "window") for path, t in _tensors(optimizer.state.get(p, {}), f"{name}.{label}"))
    yield from ((path, t, "window") for path, t in _tensors(_own(optimizer), f"{name}.own"))


def optimizer_values(optimizer: torch.optim.Optimizer, names: dict[int, str], bare: bool = False) -> dict[str, Any]:
    """What of an optimizer is not a tensor: the hyperparameters of its groups, and plain values in its state. ``bare`` says that :func:`bare` holds."""
    groups = [_plain(_hyper(g)) for g in optimizer.param_groups]
    if bare:
        return {"groups": groups, "state": {}, "own": {}}
    optimizer = part(optimizer)
    state = {label: values for label, p in named(optimizer, names) if (values := _plain(optimizer.state.get(p, {})))}
    return {"groups": groups, "state": state, "own": _plain(_own(optimizer))}


def set_optimizer_values(optimizer: torch.optim.Optimizer, names: dict[int, str], values: dict[str, Any]) -> None:
    """The inverse of :func:`optimizer_values`."""
    if len(values["groups"]) != len(optimizer.param_groups):
        raise Mismatch(f"the generation has {len(values['groups'])} parameter groups, this optimizer {len(optimizer.param_groups)}: make it with the same groups in the same order")
    for g, kept in zip(optimizer.param_groups, values["groups"], strict=True):
        _merge(g, kept)
    optimizer = part(optimizer)
    for label, p in named(optimizer, names):
        if kept := values["state"].get(label):  # no entry is made where there was none: an optimizer makes its state where it has none
            _merge(optimizer.state[p], kept)
    _merge(optimizer.state, values["own"])


def _hyper(group: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in group.items() if k != "params"}


def named(optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> Iterator[tuple[str, torch.Tensor]]:
    """The parameters of an optimizer: those of models by the models' names, others by their places in its groups."""
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


def bare(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer's state is of parameters' dicts of tensors alone, as most are."""
    optimizer = part(optimizer)
    state = optimizer.state
    return {dict}.issuperset(map(type, state.values())) and _TENSORS.issuperset(map(type, chain.from_iterable(map(dict.values, state.values())))) and not _own(optimizer)


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
        of = type(tree) if type(tree) in (OrderedDict, Counter) else dict
        return of({k: _plain(v) for k, v in tree.items() if not isinstance(v, torch.Tensor)})
    if type(tree) in (list, tuple):
        return type(tree)(None if isinstance(v, torch.Tensor) else _plain(v) for v in tree)
    return tree


def _merge(live: Any, kept: Any) -> Any:
    """What :func:`_plain` made of a tree, put back into it. Its tensors stay: they were loaded where they lie."""
    if isinstance(live, torch.Tensor):
        return live
    if isinstance(live, dict) and isinstance(kept, dict):
        for k, v in kept.items():  # a Counter's update() would add them
            live[k] = _merge(live.get(k), v)
        return live
    if type(live) in (list, tuple) and isinstance(kept, (list, tuple)):  # of another length where plain values were added
        return type(live)(_merge(a, b) for a, b in zip(chain(live, repeat(None)), kept, strict=False))
    return kept
