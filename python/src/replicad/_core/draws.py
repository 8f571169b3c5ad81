"""The random number generators that a program's objects hold: found by a bounded walk, seeded for a batch, and put back.

A dataset draws from generators of its own, wherever they hang: on it, on what it wraps, on a transform, in a list of those, in what a function refers to.
"""

from __future__ import annotations

import functools
import random
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from itertools import islice
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

__all__ = ["aside", "found", "generators", "seed", "within"]

#: The walk goes so many references deep (each attribute and each list is one), looks at so many items of a container, and at so many objects in all.
DEPTH, ITEMS, OBJECTS = 16, 1024, 1 << 14
_CONTAINERS = frozenset((dict, OrderedDict, list, tuple, set))
#: Their classes' functions refer to modules and to what everybody has, never to a generator of the program.
LIBRARIES = frozenset((*sys.stdlib_module_names, "torch", "numpy", "replicad"))


@functools.cache
def _barren(torch: Any) -> tuple[frozenset[type], tuple[type, ...]]:
    """What holds no generator: types, which most of what a dataset has is of, and classes whose instances may be of others."""
    tensors = () if torch is None else (torch.Tensor, torch.nn.Parameter, torch.dtype, torch.device, torch.Size)
    plain = frozenset((int, float, bool, str, bytes, bytearray, complex, type(None), range, *tensors))
    return plain, (type, ModuleType, CodeType, BuiltinFunctionType, *tensors[:1])


def within(root: Any, name: str, of_program: bool = True) -> Iterator[tuple[str, Any]]:
    """The objects that hang on ``root``, nearest first, each once, with the way there; with ``of_program`` by way of its classes and of globals that functions name, too.
    Nothing of the program is called."""
    plain, opaque = _barren(sys.modules.get("torch"))
    seen, left, looked = {id(root)}, deque([(name, root, 0)]), 0
    while left and looked < OBJECTS:
        path, o, depth = left.popleft()
        looked += 1
        yield path, o
        if depth == DEPTH or found(o):
            continue
        for step, x in _inside(o, of_program):
            of = type(x)
            if of in plain or (of in _CONTAINERS and not x):  # most of what a module has
                continue
            if id(x) not in seen and not isinstance(x, opaque):
                seen.add(id(x))
                left.append((path + step, x, depth + 1))


def generators(root: Any, name: str, of_program: bool = True) -> dict[str, Any]:
    """The generators that hang on ``root``, by the way there: python's, numpy's and torch's of the CPU, but for those that the whole process shares."""
    shared = [random.seed.__self__]  # type: ignore[attr-defined]
    if torch := sys.modules.get("torch"):
        shared.append(torch.default_generator)
    if np := sys.modules.get("numpy.random"):
        shared.append(np.mtrand._rand)
    kept: dict[int, tuple[str, Any]] = {}
    for path, o in within(root, name, of_program):
        if found(o) and not any(o is g for g in shared):
            kept.setdefault(id(_bits(o) if np else o), (path, o))  # two of numpy's may draw from one
    return dict(kept.values())


def found(o: Any) -> bool:
    """Whether it is a generator that can be seeded and put back."""
    if _torchs(o):
        return bool(o.device.type == "cpu")  # one of a device can't be seeded in a worker that was forked
    if isinstance(o, random.Random):
        return type(o).getstate is random.Random.getstate
    np = sys.modules.get("numpy.random")
    if np is None:
        return False
    if type(o) is np.RandomState:
        return o.get_state(legacy=False)["bit_generator"] == "MT19937"  # type: ignore[no-any-return]
    return type(_bits(o)) in (np.PCG64, np.PCG64DXSM, np.Philox, np.SFC64, np.MT19937)


def _torchs(o: Any) -> bool:
    return (torch := sys.modules.get("torch")) is not None and type(o) is torch.Generator


def _bits(g: Any) -> Any:
    """What one of numpy's generators draws from; anything else as it is."""
    return g.bit_generator if isinstance(g, sys.modules["numpy.random"].Generator) else g


def seed(g: Any, n: int) -> None:
    """Has a generator begin as one that was made with this seed; numpy's spawns from it, too."""
    if _torchs(g):
        g.manual_seed(n)
    elif isinstance(g, random.Random):
        g.seed(n)
    elif type(g) is sys.modules["numpy.random"].RandomState:
        g.seed(n % 2**32)
    else:
        bits = _bits(g)
        fresh = type(bits)(n)
        _set(bits, fresh.state, fresh.seed_seq)


def mark(g: Any) -> tuple[Any, Any]:
    """What says where a generator is: the seed that it was last given, where it says so, and its state."""
    if _torchs(g):
        return g.initial_seed(), g.get_state().numpy().tobytes()
    if isinstance(g, random.Random):
        return None, g.getstate()
    if type(g) is sys.modules["numpy.random"].RandomState:
        return None, repr(g.get_state(legacy=False))
    return None, repr(_bits(g).state)


def aside(g: Any) -> Callable[[], object]:
    """Puts a generator's state aside. What it returns puts it back."""
    if _torchs(g):
        return functools.partial(g.set_state, g.get_state())
    if isinstance(g, random.Random):
        return functools.partial(g.setstate, g.getstate())
    if type(g) is sys.modules["numpy.random"].RandomState:
        return functools.partial(g.set_state, g.get_state(legacy=False))
    bits = _bits(g)
    return functools.partial(_set, bits, bits.state, bits.seed_seq)


def _set(bits: Any, state: Any, sequence: Any) -> None:
    if isinstance(bits.__reduce__()[2], tuple):  # numpy 2, where it takes the seed sequence that it spawns from
        bits.__setstate__((state, sequence))
    else:
        bits.state = state


def _inside(o: Any, of_program: bool) -> Iterator[tuple[str, Any]]:
    """What an object refers to, with how to write that."""
    if isinstance(o, dict):  # by its own class: one of the program's may do something else
        yield from ((f"[{k!r}]", v) for k, v in list(islice(dict.items(o), ITEMS)))
    elif isinstance(o, (list, tuple, deque)):
        of: Any = next(c for c in (list, tuple, deque) if isinstance(o, c))
        yield from ((f"[{i}]", x) for i, x in enumerate(list(islice(of.__iter__(o), ITEMS))))
    elif isinstance(o, FunctionType):
        yield from _of_function(o, of_program)
    elif isinstance(o, MethodType):
        yield from ((".__self__", o.__self__), (".__func__", o.__func__))
    elif isinstance(o, functools.partial):
        yield from ((".func", o.func), (".args", o.args), (".keywords", o.keywords))
    if type(o) not in (dict, list, tuple, deque, FunctionType, MethodType):
        yield from _of_object(o, of_program)


def _of_function(f: Any, of_program: bool) -> Iterator[tuple[str, Any]]:
    """What it closes over, and those globals of its module that it names and that draw or may call what draws."""
    for name, cell in zip(f.__code__.co_freevars, f.__closure__ or (), strict=False):
        try:
            yield f".{name}", cell.cell_contents
        except ValueError:  # not set yet
            continue
    for name in f.__code__.co_names if of_program else ():
        value = f.__globals__.get(name)
        if value is not None and (found(value) or callable(value) or isinstance(value, (dict, list, tuple))):
            yield f".{name}", value


def _of_object(o: Any, of_program: bool) -> Iterator[tuple[str, Any]]:
    """Its attributes, and those of its class that a program wrote: generators among them, and functions."""
    held = getattr(o, "__dict__", None)
    if isinstance(held, dict):
        yield from ((f".{k}", v) for k, v in list(held.items()))
    for kind in type(o).__mro__:
        if str(kind.__module__).partition(".")[0] in LIBRARIES:
            continue
        slots = vars(kind).get("__slots__", ())
        for k in (slots,) if isinstance(slots, str) else slots:
            if (v := getattr(o, k, None)) is not None:
                yield f".{k}", v
        for k, v in list(vars(kind).items()) if of_program else ():
            v = v.__func__ if isinstance(v, (staticmethod, classmethod)) else v
            if found(v) or isinstance(v, (FunctionType, dict, list, tuple)):
                yield f".{k}", v
