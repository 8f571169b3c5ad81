"""Has a program with torch that a test starts anew start and end in half the time: `conftest.quick` puts an import of quick.py into its first line, and
startup/ on the path has each process of a command do it when it imports torch. Most programs fork from a process that has imported torch, and need none of it:
see warmed.py.

Collecting garbage while torch is imported finds none, and taking torch apart at the end is of no use. Each takes half as long as the import. And
when a program makes its first optimizer torch imports its compiler, which takes as long again. An optimizer only asks the compiler to keep functions
out of graphs, and a program that compiles nothing has no graphs. Programs and commands of the documentation run without this file.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Sequence
from typing import Any

COMPILER = "torch._dynamo"


class Standin(types.ModuleType):
    """A module of the compiler that knows what eager programs ask it for. Asked for anything else it makes way for the compiler."""

    def __init__(self, name: str, **known: Any) -> None:
        super().__init__(name)
        self.__dict__.update(known)

    def __getattr__(self, name: str) -> Any:
        if name == "__file__":  # inspect asks every module
            raise AttributeError(name)
        load()
        return getattr(importlib.import_module(self.__name__), name)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads the compiler for whoever imports a module of it."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith(COMPILER + ".") or not isinstance(sys.modules[COMPILER], Standin):
            return None
        load()
        # Python looked before that whether it has this module, and would make it a second time.
        return importlib.machinery.ModuleSpec(fullname, self) if fullname in sys.modules else importlib.util.find_spec(fullname)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return sys.modules[spec.name]

    def exec_module(self, module: types.ModuleType) -> None: ...


def load() -> None:
    """Puts the compiler into the place of what stands for it."""
    if isinstance(sys.modules[COMPILER], Standin):
        del sys.modules[COMPILER]
        importlib.import_module(COMPILER)


def begin() -> None:
    """Imports torch, with a stand-in for its compiler."""
    gc.disable()
    import torch

    gc.enable()
    stand_in(torch)


def stand_in(torch: types.ModuleType) -> None:
    """Puts a stand-in into the place of the compiler of a torch that was just imported, and has Python end without taking modules apart."""
    sys.modules[COMPILER] = torch._dynamo = Standin(
        COMPILER,
        __path__=[],
        disable=lambda fn, *args, **more: fn,
        graph_break=lambda: None,
        trace_rules=Standin(COMPILER + ".trace_rules", clear_lru_cache=lambda: None),  # of init_process_group
        utils=Standin(COMPILER + ".utils", get_optimize_ddp_mode=lambda: "ddp_optimizer"),  # of DDP: the compiler's default
    )
    sys.meta_path.insert(0, Finder())
    # Other atexit handlers run before this one. What C++ libraries then print of leaks is of no interest.
    atexit.register(lambda: (gc.freeze(), os.dup2(os.open(os.devnull, os.O_WRONLY), 2)))


class Later(importlib.abc.MetaPathFinder):
    """Begins when the program imports torch, if it does."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        if fullname != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: types.ModuleType) -> None:
                gc.disable()
                load(module)
                gc.enable()
                stand_in(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
