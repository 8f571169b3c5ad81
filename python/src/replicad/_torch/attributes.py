"""Which attributes of a class are state: numbers that its own code reads before it writes them.

A temperature that a loop anneals is read by the next forward. A counter that is only counted up, and a loss that a forward leaves for a logger, are read by
nothing that trains. The byte code of the class tells them apart; nothing is called.
"""

from __future__ import annotations

import dis
import functools
from collections.abc import Iterable, Iterator
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch

__all__ = ["codes", "programs", "set_anew", "state"]

#: Functions that make an object, print it, or put its state back.
_BESIDE = frozenset(
    (
        *("__init__", "__repr__", "__str__", "extra_repr", "reset_parameters", "_reset_parameters"),
        *("__setstate__", "__getstate__", "__deepcopy__", "get_extra_state", "set_extra_state", "state_dict", "load_state_dict"),
    )
)


@functools.lru_cache(maxsize=4096)
def state(kind: type) -> frozenset[str]:
    """The attributes that code of a class reads as they were left, by name."""
    return frozenset(name for code in codes(kind) for name in _carried(code))


def codes(kind: type) -> Iterator[CodeType]:
    """The code of a class's functions, but for those beside training."""
    for c in kind.__mro__:
        if c in (torch.nn.Module, object):
            continue
        for name, f in vars(c).items():
            f = getattr(f, "fget", None) or getattr(f, "__func__", f)
            if isinstance(f, FunctionType) and name not in _BESIDE:
                yield from _nested(f.__code__)


def programs(frame: FrameType | None, libraries: frozenset[str]) -> Iterator[CodeType]:
    """The code of the program that is running: of the functions that called, and of those beside them in their modules."""
    seen: set[int] = set()
    while frame is not None:
        scope = frame.f_globals
        if str(scope.get("__name__")).partition(".")[0] not in libraries:
            yield from _nested(frame.f_code)
            if id(scope) not in seen:
                seen.add(id(scope))
                for v in list(scope.values()):
                    if isinstance(v, FunctionType):
                        yield from _nested(v.__code__)
                    elif isinstance(v, type) and v.__module__ == scope.get("__name__"):
                        yield from codes(v)
        frame = frame.f_back


def set_anew(name: str, of: Iterable[CodeType]) -> bool:
    """Whether any of this code sets an attribute of that name without a look at what it was: from the step's number, say."""
    for code in of:
        if name in code.co_names:
            ops = [(op, line) for op, n, line in _accesses(code) if n == name]
            read = {line for op, line in ops if op == "load"}
            if any(op == "store" and line not in read for op, line in ops):
                return True
    return False


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for c in code.co_consts:
        if isinstance(c, CodeType):
            yield from _nested(c)


def _accesses(code: CodeType) -> Iterator[tuple[str, str, int]]:
    """Loads and stores of attributes, in the order in which they are written, with their lines."""
    line = code.co_firstlineno
    for i in dis.get_instructions(code):
        at: Any = getattr(i, "line_number", None) or i.starts_line  # a flag from 3.13 on
        line = at if type(at) is int else line
        if i.opname in ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR"):
            yield "store" if i.opname == "STORE_ATTR" else "load", str(i.argval), line


def _carried(code: CodeType) -> Iterator[str]:
    by_name: dict[str, list[tuple[str, int]]] = {}
    for op, name, line in _accesses(code):
        by_name.setdefault(name, []).append((op, line))
    for name, ops in by_name.items():
        stores = {line for op, line in ops if op == "store"}
        first = next((i for i, (op, _) in enumerate(ops) if op == "store"), len(ops))
        if first and any(op == "load" and line not in stores for op, line in ops):  # not written first, and read by what does more than count it up
            yield name
