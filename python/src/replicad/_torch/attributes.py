"""What the code of a class says of its attributes: which it reads as they were left, and which it writes before it reads them.

A temperature that a loop anneals is read by the next forward, and so is a hidden state. A counter that is only counted up, and a loss that a forward leaves for a logger, are
read by nothing that trains. The byte code of the class tells them apart; nothing is called.
"""

from __future__ import annotations

import dis
import functools
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch

from .._core import draws, preloading

__all__ = ["Uses", "loaded", "of_program", "programs", "sets", "state", "uses", "written"]

#: Functions that make an object, print it, or put its state back.
_BESIDE = frozenset(
    (
        *("__init__", "__repr__", "__str__", "extra_repr", "reset_parameters", "_reset_parameters"),
        *("__setstate__", "__getstate__", "__deepcopy__", "get_extra_state", "set_extra_state", "state_dict", "load_state_dict"),
    )
)
#: Methods that give what they are called on another value, whatever it had.
_OVERWRITE = frozenset(("copy_", "zero_", "fill_", "normal_", "uniform_", "bernoulli_", "clear"))
#: Frameworks whose classes the user's are made of: what their own code keeps in attributes is the adapters' matter.
_FRAMES = ("lightning.", "pytorch_lightning.", "transformers.trainer", "transformers.integrations", "trl.", "accelerate.")


@dataclass(frozen=True)
class Uses:
    """What the code of a class does with attributes, by name."""

    state: frozenset[str]  #: read as they were left
    counted: frozenset[str]  #: only counted up from what they were
    written: frozenset[str]  #: written before they are read, by a function at least
    renewed: frozenset[str]  #: read as they were left and written then, by one function
    stored: frozenset[str]  #: written anywhere, by what makes the object, too
    framed: frozenset[str]  #: written by code of a framework
    groups: tuple[frozenset[str], ...]  #: what one function writes together
    tables: tuple[frozenset[str], ...]  #: of those, what comes with buffers that no copy has, as far as the code tells


def written(path: str) -> str:
    """A way to something as programs write it: ``model[0].rng`` for ``model._modules['0'].rng`` and ``model.0.rng``."""
    path = re.sub(r"\._modules\['(\w+)'\]", r".\1", path)
    return re.sub(r"\.(\d+)(?=\.|\[|$)", r"[\1]", path)


def state(kind: type) -> frozenset[str]:
    """The attributes that code of a class reads as they were left, by name."""
    return uses(kind).state


@functools.lru_cache(maxsize=4096)
def uses(kind: type) -> Uses:
    """Of a class, with what it inherits."""
    found = [_of(code) for code in codes(kind)]
    made = [_of(code) for code in _functions(kind, lambda name: name in _BESIDE)]
    framed = [_of(code) for code in _functions(kind, lambda name: True, framework=True)]
    stored = [frozenset(f.stored) for f in found]
    return Uses(
        frozenset(n for f in found for n in f.carried),
        frozenset(n for f in found for n in f.counted),
        frozenset(n for f in found for n in f.written),
        frozenset(n for f in found for n in f.carried & f.stored),
        frozenset(n for f in (*found, *made) for n in f.stored),
        frozenset(n for f in framed for n in f.stored),
        tuple(s for s in stored if len(s) > 1),
        tuple(s | f.texts for s, f in zip(stored, found, strict=True) if f.texts),
    )


def codes(kind: type) -> Iterator[CodeType]:
    """The code of a class's functions, but for those beside training; of these what they define."""
    yield from _functions(kind, lambda name: name not in _BESIDE)
    for code in _functions(kind, lambda name: name in _BESIDE):
        if code.co_name not in _BESIDE:
            yield code


def _functions(kind: type, which: Any, framework: bool = False) -> Iterator[CodeType]:
    for c in kind.__mro__:
        if c in (torch.nn.Module, object) or _framed(c) != framework:
            continue
        for name, f in vars(c).items():
            f = getattr(f, "fget", None) or getattr(f, "__func__", f)
            if isinstance(f, FunctionType) and which(name):
                yield from _nested(f.__code__)


def _framed(kind: type) -> bool:
    return str(kind.__module__).startswith(_FRAMES)


@functools.cache
def of_program(module: str) -> bool:
    """Whether a module is of the program, rather than of a package that it has installed."""
    if module.partition(".")[0] in draws.LIBRARIES:
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is None or not os.path.abspath(file).startswith(preloading.folders())


def programs(frame: FrameType | None) -> Iterator[CodeType]:
    """The code of the program that is running: of the functions that called, and of those beside them in their modules."""
    seen: set[int] = set()
    while frame is not None:
        scope = frame.f_globals
        if of_program(str(scope.get("__name__"))):
            yield from _nested(frame.f_code)
            if id(scope) not in seen:
                seen.add(id(scope))
                for v in list(scope.values()):
                    if isinstance(v, FunctionType):
                        yield from _nested(v.__code__)
                    elif isinstance(v, type) and v.__module__ == scope.get("__name__"):
                        yield from codes(v)
        frame = frame.f_back


def loaded(code: CodeType) -> frozenset[str]:
    """The attributes that code reads, of whatever object."""
    return _of(code).loaded


def sets(code: CodeType) -> list[str]:
    """The globals that code sets."""
    return sorted({str(i.argval) for i in dis.get_instructions(code) if i.opname == "STORE_GLOBAL"})


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for c in code.co_consts:
        if isinstance(c, CodeType):
            yield from _nested(c)


@dataclass(frozen=True)
class _Function:
    loaded: frozenset[str]
    stored: frozenset[str]
    carried: frozenset[str]
    counted: frozenset[str]
    written: frozenset[str]
    texts: frozenset[str]  #: that it has as constants, if it registers buffers


@functools.lru_cache(maxsize=1 << 14)
def _of(code: CodeType) -> _Function:
    by_name: dict[str, list[str]] = {}
    for op, name in _accesses(code):
        by_name.setdefault(name, []).append(op)
    carried, counted, written = set[str](), set[str](), set[str]()
    for name, ops in by_name.items():
        first = next((i for i, op in enumerate(ops) if op == "store"), len(ops))
        if not first:
            written.add(name)
        elif "load" in ops:
            carried.add(name)
        else:
            counted.add(name)
    texts = frozenset(c for c in code.co_consts if isinstance(c, str)) if "register_buffer" in code.co_names else frozenset[str]()
    loads = frozenset(n for n, ops in by_name.items() if ops[0] != "store")
    return _Function(loads, frozenset(n for n, ops in by_name.items() if "store" in ops), frozenset(carried), frozenset(counted), frozenset(written), texts)


def _accesses(code: CodeType) -> Iterator[tuple[str, str]]:
    """Loads and stores of attributes, in the order in which they are written. "count" is a load whose value goes into a store of the same attribute and nowhere else."""
    line, calls = code.co_firstlineno, 0
    ops: list[list[Any]] = []  # operation, name, line, calls before it
    before: Any = None
    for i in dis.get_instructions(code):
        at: Any = getattr(i, "line_number", None) or i.starts_line  # a flag from 3.13 on
        line = at if type(at) is int else line
        if i.opname in ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR"):
            if before is not None and i.argval in _OVERWRITE and i.opname != "STORE_ATTR":
                before[0] = "store"
            ops.append(["store" if i.opname == "STORE_ATTR" else "load", str(i.argval), line, calls])
            before = ops[-1] if ops[-1][0] == "load" else None
            continue
        before = None
        if i.opname.startswith("CALL"):
            calls += 1
    for k, (op, name, line, called) in enumerate(ops):
        then = next(((o, at, c) for o, n, at, c in ops[k + 1 :] if n == name and o == "store"), None) if op == "load" else None
        yield ("count" if then is not None and then[1] == line and then[2] == called else op), name
