"""Processes with a Gloo group, for tests of what lies on a rank: functions are called on all of them at once. They fork from one that has imported torch, which
all tests of a process have in common."""

from __future__ import annotations

import os
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


class Ranks:
    """A context of ``world`` processes. Calling it with a function of a test module and its arguments returns what the function
    returned on each rank; an exception on any of them fails the test with the ranks' traces, and the next call has other processes."""

    def __init__(self, world: int) -> None:
        self.world = world

    def __enter__(self) -> Ranks:
        self._dir = tempfile.TemporaryDirectory()
        context = mp.get_context("forkserver")
        context.set_forkserver_preload(["torch", "torch.distributed.fsdp", "torch.distributed.checkpoint", "replicad.session"])
        pairs = [context.Pipe() for _ in range(self.world)]
        self._ends = [a for a, _ in pairs]
        self._processes = [context.Process(target=_serve, args=(r, self.world, self._dir.name, pairs[r][1], dict(os.environ)), daemon=True) for r in range(self.world)]
        for p, (_, theirs) in zip(self._processes, pairs, strict=True):
            p.start()
            theirs.close()  # so that a process that dies is the end of what comes from it
        return self

    def __call__(self, fn: Callable[..., Any], *args: Any) -> list[Any]:
        for end in self._ends:
            end.send((fn, args))
        answers = [end.recv() for end in self._ends]
        if failed := [f"rank {r}: {text}" for r, (text, _) in enumerate(answers) if text]:
            self._stop()
            self.__enter__()
            raise AssertionError("\n".join(failed))
        return [value for _, value in answers]

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._stop()

    def _stop(self) -> None:
        for end in self._ends:
            end.close()
        for p in self._processes:
            p.join()
        self._dir.cleanup()


def _serve(rank: int, world: int, folder: str, end: Connection, environ: dict[str, str]) -> None:
    os.environ.clear()  # of the process that it forks from
    os.environ |= environ
    torch.set_num_threads(1)
    os.environ |= {"LOCAL_RANK": str(rank), "RANK": str(rank), "WORLD_SIZE": str(world)}
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    while True:
        try:
            fn, args = end.recv()
        except EOFError:
            break
        torch.manual_seed(0)
        try:
            end.send(("", fn(rank, *args)))
        except BaseException:
            end.send((traceback.format_exc(), None))
            raise
    dist.destroy_process_group()
    os._exit(0)  # an interpreter with torch takes a second to end, and now and then torch's threads abort it
