"""Values that hang on a program's objects, as trees that a capsule takes, and back: numbers, tensors, arrays, lists, dicts, deques, sets, generators.

A tree stands for its value alone: what was one object twice is two afterwards. A list, dict, deque or set is filled where it lies, so that who else holds it has it too.
"""

from __future__ import annotations

import random
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import torch

from .. import rng
from .._core import draws, rngcodec
from .._core.capsule import TENSORS, Opaque

__all__ = ["LIMIT", "Beside", "Large", "Unkept", "kept", "plain", "printed", "put", "size", "tree"]

#: So many bytes may one value have.
LIMIT = 64 << 10
#: So many items of a container tell whether it has changed in place; of a longer one these at each end.
ITEMS = 512
_PLAIN = frozenset((bool, int, float, str, type(None)))
_DICTS: dict[type, str] = {dict: "dict", OrderedDict: "OrderedDict", defaultdict: "defaultdict", Counter: "Counter"}
_LISTS: dict[type, str] = {list: "list", tuple: "tuple", set: "set", frozenset: "frozenset", deque: "deque"}
_KEYS = (*_PLAIN, tuple)


class Unkept(Exception):
    """A value that no copy can have."""


class Large(Unkept):
    """It has too many bytes."""


class Beside(Unkept):
    """It is of something else, that keeps it or that the program makes anew: a view of a parameter, a module, a tensor without memory."""


def plain(v: Any) -> bool:
    """Whether it is a number, a text or nothing."""
    return type(v) in _PLAIN


def kept(v: Any) -> bool:
    """Whether it is of a kind that can be kept. Nothing of it is called."""
    of = type(v)
    return of in _PLAIN or of in _DICTS or of in _LISTS or of in (torch.Tensor, torch.nn.Parameter) or _array(v) or shared(v) or draws.found(v)


def shared(v: Any) -> bool:
    """Whether it is a number that processes share (multiprocessing.Value)."""
    return type(v).__module__ == "multiprocessing.sharedctypes" and type(v).__name__ == "Synchronized"


def _array(v: Any) -> bool:
    np = sys.modules.get("numpy")
    return np is not None and isinstance(v, (np.ndarray, np.generic)) and v.dtype.kind in "biufc"


def size(v: Any) -> int:
    """About how many bytes it has; of a tensor or array exactly."""
    return int(v.nbytes) if isinstance(v, torch.Tensor) or _array(v) else 64 * len(v) if hasattr(v, "__len__") else 64


def tree(v: Any, beside: Callable[[torch.Tensor], bool]) -> tuple[Any, int, int]:
    """Its tree, how many bytes it has, and how much room a capsule takes around them. ``beside`` says whether a tensor's memory is of what is kept otherwise. :class:`Unkept`
    where no copy can have it."""
    packer = _Packer(beside)
    return packer.value(v, 0), packer.n, packer.more


class _Packer:
    def __init__(self, beside: Callable[[torch.Tensor], bool]) -> None:
        self.beside, self.n, self.more = beside, 0, 0
        self._open: set[int] = set()

    def _takes(self, n: int, more: int = 32) -> None:
        """So many bytes, and so many of what a capsule writes around them."""
        self.n += n
        self.more += more
        if self.n > LIMIT:
            raise Large

    def value(self, v: Any, depth: int) -> Any:
        of = type(v)
        if of in _PLAIN:
            self._takes(len(v) if of is str else 8, 5 * len(v) if of is str else 32)
            return v
        if of in (torch.Tensor, torch.nn.Parameter):
            return "tensor", self._tensor(v), v.device.type, bool(v.is_leaf and v.requires_grad)
        if of in _LISTS:
            if len(v) > LIMIT:
                raise Large
            return (_LISTS[of], self._items(v, depth), v.maxlen if of is deque else None)
        if of in _DICTS:
            return _DICTS[of], self._inside(v, lambda: [[self._key(k), self.value(x, depth + 1)] for k, x in v.items()], depth)
        if _array(v):
            self._takes(int(v.nbytes), 320)
            return "array", v.copy()
        if shared(v):
            return "shared", self.value(v.value, depth)
        if draws.found(v):
            self._takes(5120, 512)
            layout, state = rng.state_of(v)
            return "generator", type(v).__module__, type(v).__name__, layout, Opaque(state)
        raise Beside

    def _inside(self, v: Any, read: Callable[[], Any], depth: int) -> Any:
        if id(v) in self._open or depth > 16:
            raise Unkept("it holds itself")
        if len(v) > LIMIT:
            raise Large
        self._open.add(id(v))
        try:
            self._takes(0, 64 + 32 * len(v))
            return read()
        finally:
            self._open.discard(id(v))

    def _items(self, v: Any, depth: int) -> Any:
        """Numbers of one kind in a row, and tensors that are alike, are one tensor: loops append a loss each step."""
        kinds = set(map(type, v))
        if len(v) > 8 and type(v) in (list, tuple, deque):
            if kinds == {float}:
                self._takes(8 * len(v), 320)
                return "floats", torch.tensor(list(v), dtype=torch.float64)
            if kinds == {int} and all(-(2**63) <= x < 2**63 for x in v):
                self._takes(8 * len(v), 320)
                return "ints", torch.tensor(list(v), dtype=torch.int64)
            if (
                kinds == {torch.Tensor}
                and all(x.layout == torch.strided for x in v)
                and len({(x.dtype, x.shape, x.device, x.layout, x.is_leaf and x.requires_grad) for x in v}) == 1
                and v[0].numel()
            ):
                if any(map(self.beside, v)):
                    raise Beside
                self._takes(v[0].nbytes * len(v), 320)
                return "stack", self._plain(torch.stack([x.detach() for x in v])), v[0].device.type, bool(v[0].is_leaf and v[0].requires_grad)
        values: Any = sorted(v, key=repr) if type(v) in (set, frozenset) else v
        return self._inside(v, lambda: [self.value(x, depth + 1) for x in values], depth)

    def _key(self, k: Any) -> Any:
        if type(k) not in _KEYS or (type(k) is tuple and not all(type(x) in _PLAIN for x in k)):
            raise Beside
        self._takes(len(k) if type(k) is str else 8, 5 * len(k) if type(k) is str else 64)
        return k

    def _tensor(self, t: torch.Tensor) -> torch.Tensor:
        if t.device.type == "meta" or self.beside(t):
            raise Beside
        self._takes(t.nbytes if t.layout == torch.strided else 0, 320)
        return self._plain(t.detach())

    @staticmethod
    def _plain(t: torch.Tensor) -> torch.Tensor:
        if t.layout != torch.strided or t.is_quantized or str(t.dtype).removeprefix("torch.") not in TENSORS:
            raise Unkept("a tensor of a kind that can't be kept")
        return t.clone() if t.device.type == "cpu" else t.cpu()


# -- back ---------------------------------------------------------------------------------------------------------------


def put(made: Any, there: Any, same: bool) -> Any:
    """The value that a tree stands for. ``there`` is what has its place now: containers are filled in place, and so is a tensor if it is to be the ``same``."""
    if type(made) is not tuple:
        return made
    kind = made[0]
    if kind == "tensor":
        return _tensor(made, there, same)
    if kind in _LISTS.values():
        return _list(made, there)
    if kind in _DICTS.values():
        was = there if type(there) in _DICTS else {}
        pairs = [(k, _inner(x, was.get(k))) for k, x in made[1]]
        if type(there) in _DICTS and _DICTS[type(there)] == kind:
            there.clear()
            there.update(pairs)
            return there
        return Counter(dict(pairs)) if kind == "Counter" else OrderedDict(pairs) if kind == "OrderedDict" else dict(pairs)
    if kind == "array":
        if same and _array(there) and there.ndim and there.shape == made[1].shape and there.dtype == made[1].dtype and there.flags.writeable:
            there[...] = made[1]
            return there
        return made[1]
    if kind == "shared":
        if shared(there):
            there.value = made[1]
            return there
        return made[1]
    return _generator(made, there)


def _tensor(made: Any, there: Any, same: bool) -> Any:
    _, t, device, asks = made
    if same and type(there) in (torch.Tensor, torch.nn.Parameter) and there.shape == t.shape and there.dtype == t.dtype and not there.is_inference():
        with torch.no_grad():
            there.copy_(t)
        return there
    new = t.clone() if device == "cpu" else t.to(device)
    return new.requires_grad_() if asks else new


def _list(made: Any, there: Any) -> Any:
    kind, items, most = made
    if type(items) is tuple:
        how, t, *more = items
        if how == "stack":
            values: list[Any] = [_tensor(("tensor", x, *more), None, False) for x in t.unbind()]
        else:
            values = t.tolist()
    else:
        was = list(there) if type(there) in (list, tuple, deque) else []
        values = [_inner(x, was[i] if i < len(was) else None) for i, x in enumerate(items)]
    if _LISTS.get(type(there)) == kind and (kind in ("list", "set") or (kind == "deque" and there.maxlen == most)):
        there.clear()
        (there.update if kind == "set" else there.extend)(values)
        return there
    if kind == "deque":
        return deque(values, most)
    return next(of for of, name in _LISTS.items() if name == kind)(values)


def _inner(made: Any, there: Any) -> Any:
    """One of a container's. A generator stays who it is, as others may draw from it too."""
    return put(made, there if type(made) is tuple and made[0] == "generator" else None, False)


def _generator(made: Any, there: Any) -> Any:
    _, module, name, layout, state = made
    if there is None or type(there).__module__ != module or type(there).__name__ != name:
        there = _made(module, name, layout)
    rng.put_state(there, layout, bytes(state))
    return there


def _made(module: str, name: str, layout: int) -> Any:
    """A generator of a kind, with a state that is about to be another one."""
    if name == "Random":
        return random.Random()
    if name == "RandomState":
        return sys.modules["numpy"].random.RandomState()
    if module.startswith("torch"):
        return torch.Generator()
    import numpy as np

    bits = getattr(np.random, rngcodec.LAYOUTS[layout][0])()
    return np.random.Generator(bits) if name == "Generator" else bits


# -- whether it has changed in place ------------------------------------------------------------------------------------


def printed(v: Any, depth: int = 0) -> Any:
    """What tells that a value has changed, where it is the same object; nothing of the program is called, and no tensor is read."""
    of = type(v)
    if of in _PLAIN:
        return of, v
    if of in (torch.Tensor, torch.nn.Parameter):
        return id(v), (0 if v.is_inference() else v._version)
    if of in _LISTS or of in _DICTS:
        if depth > 8:
            return len(v)
        items = list(v.items()) if of in _DICTS else list(v)
        if len(items) > 2 * ITEMS:
            items = items[:ITEMS] + items[-ITEMS:]
        return len(v), [printed(x, depth + 1) for x in items]
    if _array(v):
        raw = v.tobytes() if v.nbytes <= LIMIT else v.reshape(-1)[:: max(1, v.size // 4096)].tobytes()
        return id(v), hash(raw)
    if shared(v):
        return id(v), v.value
    if draws.found(v):
        return id(v), hash(rng.state_of(v)[1])
    return id(v)
