"""What a launcher tells a program in torchrun's variables, and how the program's own ``init_process_group`` comes to the daemons' store: of
``env://``, when torch.distributed is imported. This module imports no torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlparse

if TYPE_CHECKING:
    from .rank import Rank

__all__ = ["NAMES", "addressed", "connected", "install", "opened"]

#: Torchrun's variables that ``replicad run`` sets, or tells a process that waits for a rank.
NAMES = frozenset((
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
    "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_USE_AGENT_STORE",
))  # fmt: skip
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
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                _then(spec.loader, _serve)
                return spec
        return None


def _then(loader: Any, call: Callable[[ModuleType], None]) -> None:
    execute = loader.exec_module

    def both(module: ModuleType) -> None:
        execute(module)
        call(module)

    loader.exec_module = both


def _serve(module: ModuleType) -> None:
    """Puts the daemons' store behind ``env://``, before what torch has there: that serves whoever is not this rank."""
    handlers: dict[str, Callable[..., Iterator[Any]]] = vars(module)["_rendezvous_handlers"]
    theirs = handlers["env"]

    def env(url: str, **options: Any) -> Iterator[Any]:
        from .waiting import wait_rank

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


_opened: Rank | None = None


def opened() -> Rank | None:
    """The connection that groups were made over before there was a session, for the session to go on with."""
    return None if _opened is None or _opened.closed else _opened


def connected() -> Rank:
    """That connection, made now if there is none."""
    global _opened
    if (rank := opened()) is None:
        from .rank import Rank

        rank = _opened = Rank.open()
    return rank
