"""What a launcher tells a program in torchrun's variables, and how the program's own ``init_process_group`` comes to the daemons' store: of
``env://``, when torch.distributed is imported. This module imports no torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any
from urllib.parse import parse_qsl, urlparse

from .waiting import wait_rank

__all__ = ["addressed", "install"]

#: What TORCHELASTIC_RUN_ID begins with where the variables are those of ``replicad run``.
RUN_ID = "replicad:"
#: The process of the rank: children and subprocesses inherit its environment, and are not the rank.
OWNER = "REPLICAD_PROCESS"
#: Where torch keeps what is behind ``env://``.
RENDEZVOUS = "torch.distributed.rendezvous"


def install() -> None:
    """In a process that a launcher started: puts the daemons' store behind ``env://`` once torch.distributed is there, now or later."""
    if "REPLICAD_RANK" not in os.environ and "REPLICAD_WAIT_FD" not in os.environ:
        return
    os.environ.setdefault(OWNER, str(os.getpid()))
    if os.environ[OWNER] != str(os.getpid()):
        return
    if (module := sys.modules.get(RENDEZVOUS)) is not None:
        _serve(module)
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder:
    """Has torch's rendezvous found as ever, and changed when it has been imported."""

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The spec of the one module, with a loader that goes on to :func:`_serve`."""
        if name != RENDEZVOUS:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                self._then_serve(spec.loader)
                return spec
        return None

    def _then_serve(self, loader: Any) -> None:
        execute = loader.exec_module

        def both(module: ModuleType) -> None:
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            _serve(module)

        loader.exec_module = both


def _serve(module: ModuleType) -> None:
    """Puts the daemons' store behind ``env://``, before what torch has there: that serves whoever is not this rank."""
    handlers: dict[str, Callable[..., Iterator[Any]]] = vars(module)["_rendezvous_handlers"]
    theirs = handlers["env"]

    def env(url: str, **options: Any) -> Iterator[Any]:
        wait_rank()
        if not addressed(url):
            return theirs(url, **options)
        from ..store import rendezvous

        return rendezvous(**options)

    handlers["env"] = env


def addressed(url: str) -> bool:
    """Whether the one who asks ``env://`` is the rank that the launcher started this process for. A child is not, nor who is given another
    rank or world by the program, or by another launcher that runs below this one (torchrun in each rank, say)."""
    env, said = os.environ, dict(parse_qsl(urlparse(url).query))
    if env.get(OWNER) != str(os.getpid()) or not env.get("TORCHELASTIC_RUN_ID", RUN_ID).startswith(RUN_ID):
        return False
    asked = (said.get("rank", env.get("RANK")), said.get("world_size", env.get("WORLD_SIZE")))
    return asked == (env.get("REPLICAD_RANK"), env.get("REPLICAD_WORLD")) and None not in asked
