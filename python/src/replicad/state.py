"""What a PyTorch training state is made of: tensors that stay where they are, and small values in capsules.

Tensors are registered by address and name, never copied by Python and never pickled. What is not a tensor of fixed address
(hyperparameters, schedulers, scalers, samplers, generators, user objects) is packed into capsules: one of what all ranks of a
replica group have in common, one of what is a rank's own and settled before the optimizer runs, one of what is a rank's own
and may change in the optimizer window.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from . import capsule
from .errors import Mismatch, Unsupported
from .region import Region

__all__ = ["Capsule", "Leaf", "materialise", "model_leaves", "optimizer_leaves", "optimizer_values", "regions"]

#: A capsule's room, as a multiple of what it holds first, and at least this many bytes.
SLACK, LEAST = 4, 16 << 10


@dataclass(frozen=True)
class Leaf:
    """A tensor of the training state. ``changes`` and ``private`` are as in :class:`replicad.region.Region`."""

    name: str
    tensor: torch.Tensor
    changes: str
    private: bool = False

    @property
    def local(self) -> torch.Tensor:
        """What of it lies on this rank: the shard of a DTensor, else the tensor."""
        t = self.tensor.detach()
        local = getattr(t, "_local_tensor", None)
        return t if local is None else local


def clean(name: str) -> str:
    """A parameter's name without what wrappers put into it (DDP, torch.compile, activation checkpointing, FSDP)."""
    drop = ("module", "_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")
    return ".".join(p for p in name.split(".") if p not in drop)


def model_leaves(name: str, model: torch.nn.Module, shared_buffers: Callable[[str], bool]) -> Iterator[Leaf]:
    """Parameters (frozen where they ask for no gradient) and persistent buffers. A buffer is a rank's own unless
    ``shared_buffers`` says that it is equal on every rank of the group: BatchNorm's statistics are not."""
    for key, p in model.named_parameters():
        yield Leaf(f"{name}.{clean(key)}", p, "window" if p.requires_grad else "never")
    for prefix, module in model.named_modules():
        for key, b in module.named_buffers(recurse=False):
            if b is None or key in module._non_persistent_buffers_set:
                continue
            full = clean(f"{prefix}.{key}" if prefix else key)
            shared = shared_buffers(full) or isinstance(module, torch.nn.SyncBatchNorm)
            yield Leaf(f"{name}.{full}", b, "any", private=not shared)


def materialise(optimizer: torch.optim.Optimizer) -> None:
    """Has the optimizer make its state now rather than in its first step, so that it can be registered.

    It is a step with zero gradients for the parameters that have no state yet, whose effect is taken back: parameters,
    counters and averages are then what a fresh optimizer's first step begins with, to the bit.
    """
    kind = type(optimizer).__name__
    if isinstance(optimizer, torch.optim.LBFGS):
        raise Unsupported(f"{kind}: its history is a list of tensors that grows from step to step, which can't be registered: use another optimizer")
    fresh = [(g, p) for g in optimizer.param_groups for p in g["params"] if p.requires_grad and not optimizer.state.get(p)]
    if not fresh:
        return
    for g in optimizer.param_groups:
        if g.get("dampening") and g.get("momentum"):
            raise Unsupported(f"{kind} with dampening: its first step differs from all others, so its state can't be made beforehand: take a step before the session is made")
    grads = [(p, p.grad) for g in optimizer.param_groups for p in g["params"]]
    kept = [(p, p.detach().clone()) for _, p in fresh]
    decay = [(g, g["weight_decay"]) for g in optimizer.param_groups if "weight_decay" in g]
    try:
        for p, _ in grads:
            p.grad = None
        for _, p in fresh:
            p.grad = torch.zeros_like(p)
        for g, _ in decay:
            g["weight_decay"] = 0.0  # it would be a gradient
        optimizer.step()
    except Exception as err:
        raise Unsupported(f"{kind}: its state can't be made by a step with zero gradients ({type(err).__name__}: {err}): take a step before the session is made") from err
    finally:
        for g, value in decay:
            g["weight_decay"] = value
        for p, grad in grads:
            p.grad = grad
        with torch.no_grad():
            for p, value in kept:
                p.copy_(value)
    of_torch = any(c.__module__.startswith("torch.optim.") and c is not torch.optim.Optimizer for c in type(optimizer).__mro__)
    for g, p in fresh:
        state = optimizer.state.get(p, {})
        for key, v in state.items():
            if v is None or not (of_torch or key == "step"):
                continue
            first = _first(optimizer, g, key)
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


def optimizer_leaves(name: str, optimizer: torch.optim.Optimizer, names: dict[int, str]) -> Iterator[Leaf]:
    """The tensors of an optimizer's state, by the names of their parameters; and parameters that no model has."""
    for label, p in _named(optimizer, names):
        if id(p) not in names:
            yield Leaf(f"{name}.{label}", p, "window" if p.requires_grad else "never")
        for key, v in sorted(optimizer.state.get(p, {}).items()):
            if isinstance(v, torch.Tensor):
                yield Leaf(f"{name}.{label}.{key}", v, "window")


def _named(optimizer: torch.optim.Optimizer, names: dict[int, str]) -> Iterator[tuple[str, torch.Tensor]]:
    for g, group in enumerate(optimizer.param_groups):
        for i, p in enumerate(group["params"]):
            yield names.get(id(p), f"param.{g}.{i}"), p


def optimizer_values(optimizer: torch.optim.Optimizer, names: dict[int, str]) -> dict[str, Any]:
    """What of an optimizer is not a tensor: the hyperparameters of its groups, and plain values in its state."""
    groups = [{k: v for k, v in g.items() if k != "params" and not isinstance(v, torch.Tensor)} for g in optimizer.param_groups]
    state = {label: values for label, p in _named(optimizer, names) if (values := _plain(optimizer.state.get(p, {})))}
    return {"groups": groups, "state": state}


def _plain(state: dict[Any, Any]) -> dict[str, Any]:
    return {k: v for k, v in state.items() if not isinstance(v, torch.Tensor)}


def set_optimizer_values(optimizer: torch.optim.Optimizer, names: dict[int, str], values: dict[str, Any]) -> None:
    """The inverse of :func:`optimizer_values`."""
    if len(values["groups"]) != len(optimizer.param_groups):
        raise Mismatch(f"the generation has {len(values['groups'])} parameter groups, this optimizer {len(optimizer.param_groups)}")
    for g, kept in zip(optimizer.param_groups, values["groups"], strict=True):
        for k, v in kept.items():
            if isinstance(g.get(k), tuple) and isinstance(v, list):
                v = tuple(v)
            g[k] = v
    for label, p in _named(optimizer, names):
        optimizer.state[p].update(values["state"].get(label, {}))


def regions(leaves: Iterable[Leaf]) -> list[Region]:
    """Regions of CPU tensors by address. A tensor that shares another's memory (tied weights) is registered once."""
    out: list[Region] = []
    spans: list[tuple[int, int, str]] = []
    for leaf in leaves:
        t = leaf.local
        if t.layout != torch.strided or t.is_quantized:
            raise Unsupported(f"{leaf.name}: layout {t.layout}: register the dense tensors that it is made of")
        nbytes = t.numel() * t.element_size()
        if nbytes == 0:
            continue
        if not dense(t):
            raise Unsupported(f"{leaf.name}: shape {tuple(t.shape)} with strides {t.stride()} has gaps or overlaps itself: make it contiguous")
        start, end = t.data_ptr(), t.data_ptr() + nbytes
        if any(a <= start and end <= b for a, b, _ in spans):
            continue
        if clash := next((n for a, b, n in spans if start < b and a < end), None):
            raise Unsupported(f"{leaf.name}: shares a part of its memory with {clash}: register the whole that both are views of")
        spans.append((start, end, leaf.name))
        dtype = str(t.dtype).removeprefix("torch.")
        if dtype == "complex64":
            dtype, shape = "float32", (*t.shape, 2)
        elif dtype == "complex128":
            dtype, shape = "float64", (*t.shape, 2)
        else:
            shape = tuple(t.shape)
        out.append(Region(name=_short(leaf.name), address=start, nbytes=nbytes, dtype=dtype, shape=shape, private=leaf.private, changes=leaf.changes, keep=t))
    return out


def dense(t: torch.Tensor) -> bool:
    """Whether a tensor fills its span of memory without gaps and overlaps, in whatever order of dimensions."""
    if t.is_contiguous():
        return True
    want = 1
    for stride, size in sorted((s, n) for s, n in zip(t.stride(), t.shape, strict=True) if n != 1):
        if stride != want:
            return False
        want *= size
    return True


def _short(name: str) -> str:
    """Names beyond 127 bytes keep their end, which tells more, and a digest of the whole."""
    raw = name.encode()
    if len(raw) <= 127:
        return name
    import hashlib

    return f"{hashlib.sha256(raw).hexdigest()[:16]}~{raw[-110:].decode(errors='ignore')}"


class Capsule:
    """A region that holds a tree of small values. Its room is fixed when the session is made."""

    def __init__(self, name: str, private: bool, changes: str, read: Callable[[], Any]) -> None:
        self.name, self.read = name, read
        first = capsule.pack(read(), name)
        self.room = max(LEAST, SLACK * (len(first) + 8))
        self.buffer = (ctypes.c_uint8 * self.room)()
        self.region = Region(name=name, address=ctypes.addressof(self.buffer), nbytes=self.room, shape=(self.room,), private=private, changes=changes, keep=self.buffer)
        self.used = 0
        self._put(first)

    def write(self) -> Any:
        """Packs what is true now, and returns it."""
        now = self.read()
        self._put(capsule.pack(now, self.name))
        return now

    def changed(self) -> Any | None:
        """What is true now, if that is not what was written last, in the form in which :meth:`value` gives that."""
        now = capsule.pack(self.read(), self.name)
        return None if now == memoryview(self.buffer).cast("B")[8 : self.used] else capsule.unpack(now)

    def _put(self, b: bytes) -> None:
        if len(b) + 8 > self.room:
            raise Unsupported(f"{self.name}: {len(b)} bytes no longer fit the {self.room} that the session made room for: it must not grow by more than {SLACK} times")
        ctypes.memmove(self.buffer, len(b).to_bytes(8, "little") + b, len(b) + 8)
        if self.used > len(b) + 8:  # equal states must have equal bytes
            ctypes.memset(ctypes.addressof(self.buffer) + len(b) + 8, 0, self.used - len(b) - 8)
        self.used = len(b) + 8

    def value(self) -> Any:
        """Unpacks what was written or loaded."""
        raw = memoryview(self.buffer).cast("B")
        n = min(int.from_bytes(raw[:8], "little"), self.room - 8)
        self.used = n + 8
        return capsule.unpack(raw[8 : 8 + n])
