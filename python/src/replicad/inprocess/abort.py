"""What has to be taken down so that a blocked training thread comes back, and so that nothing of the old epoch goes on."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from typing import Any

from .parts import Part, live

__all__ = ["AbortDataLoaders", "AbortProcessGroups", "AsyncSavers", "Part", "TransformerEngineAbort", "default_abort", "iterators"]


class AbortDataLoaders:
    """Ends the worker processes of every live ``DataLoader`` iterator."""

    def __call__(self) -> None:
        """Does it, or nothing where there is nothing to do."""
        ended = iterators()
        self._end(ended)
        for iterator in ended:
            iterator._shutdown_workers()
        loader = sys.modules.get("torch.utils.data.dataloader")
        for source in live(loader.DataLoader) if loader is not None and ended else ():
            if any(source._iterator is iterator for iterator in ended):
                source._iterator = None  # persistent_workers: the next epoch would go on with it

    def begin(self) -> None:
        """Ends the workers, and waits for none: nothing that they fetched is wanted any more, and the kernel takes some 15 ms for each."""
        self._end(iterators())

    @staticmethod
    def _end(these: Iterable[Any]) -> None:
        for iterator in these:
            if hasattr(iterator, "_pin_memory_thread"):  # it would wait for ever for the rest of what a worker was sending
                iterator._shutdown_workers()
                continue
            from torch.utils.data._utils import signal_handling

            if iterator._worker_pids_set:  # else their end would be an error of the training thread's
                signal_handling._remove_worker_pids(id(iterator))  # type: ignore[attr-defined]
                iterator._worker_pids_set = False
            for worker in iterator._workers:
                worker.terminate()


def iterators() -> list[Any]:
    """Every live iterator of a ``DataLoader`` with worker processes."""
    loader = sys.modules.get("torch.utils.data.dataloader")
    return [] if loader is None else list(live(loader._MultiProcessingDataLoaderIter))


class AbortProcessGroups:
    """Ends every process group of torch.distributed.

    NCCL groups are aborted, which frees a thread that is blocked in a collective, and then destroyed. A Gloo group does not let
    go of a blocked thread by itself: the connections that were noted when it was made are cut
    (:func:`replicad.store.connections`), then it is destroyed. Each group has ``timeout`` seconds.
    """

    def __init__(self, timeout: float = 30.0) -> None:
        self.timeout = timeout

    def __call__(self) -> None:
        """Does it, or nothing where there is nothing to do."""
        if self.free():
            from ..store import destroy_process_group

            destroy_process_group()
        elif store := sys.modules.get("replicad.store"):
            store.forget()  # a restart is raised at any point of making a group too

    def free(self) -> bool:
        """Frees the threads that are blocked in collectives, and leaves the groups to the program; whether there are any."""
        torch = sys.modules.get("torch")
        if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
            return False
        dist = torch.distributed
        c10d = dist.distributed_c10d
        groups = [(g, c10d._world.pg_map.get(g, ("",))[0]) for g in list(c10d._world.pg_map)]
        threads = [threading.Thread(target=self._abort, args=(g,), daemon=True) for g, backend in groups if "nccl" in str(backend)]
        if store := sys.modules.get("replicad.store"):
            store.cut()
        for t in threads:
            t.start()
        for t in threads:
            t.join(self.timeout)
        if any(t.is_alive() for t in threads):
            raise TimeoutError(f"NCCL did not abort a process group within {self.timeout} s: give a longer timeout")
        return True

    @staticmethod
    def _abort(group: Any) -> None:
        import torch

        backend = group._get_backend(torch.device("cuda"))
        for attempt in ("abort", "_abort"):
            if hasattr(backend, attempt):
                getattr(backend, attempt)()
                return


class AsyncSavers:
    """Ends asynchronous checkpoint writers of torch.distributed.checkpoint and Megatron that are under way: what they write is
    of an epoch that is over, and a partial checkpoint is never marked complete."""

    def __call__(self) -> None:
        """Does it, or nothing where there is nothing to do."""
        executor: Any = sys.modules.get("torch.distributed.checkpoint._async_process_executor")
        if process := getattr(executor, "_CHECKPOINT_PROCESS", None):
            executor._CHECKPOINT_PROCESS = None
            process.process.kill()
        calls: Any = sys.modules.get("megatron.training.async_utils")
        if queue := getattr(calls, "_async_calls_queue", None):
            self._end(queue)

    @staticmethod
    def _end(queue: Any) -> None:
        """Kills what writes and forgets what is under way: ``close`` would add up over ranks that are gone, and ask for a rank that there may be none of."""
        callers = [call.async_caller for call in queue.async_calls]
        if persistent := getattr(queue, "persistent_caller", None):
            callers.append(persistent)
            queue.persistent_caller = None  # its queues hold requests of the old epoch
        queue.async_calls.clear()
        for caller in callers:
            if process := getattr(caller, "process", None):
                caller.process = None
                process.kill()


class TransformerEngineAbort:
    """Destroys TransformerEngine's user buffers and resets its FP8 state, where it is loaded."""

    def __call__(self) -> None:
        """Does it, or nothing where there is nothing to do."""
        te: Any = sys.modules.get("transformer_engine.pytorch")
        if te is not None and hasattr(te, "module") and hasattr(te.module.base, "destroy_ub"):
            te.module.base.destroy_ub()
        for home in ("quantization", "fp8"):  # where it is since its pull request 2256, and before
            if manager := getattr(sys.modules.get(f"transformer_engine.pytorch.{home}"), "FP8GlobalStateManager", None):
                manager.reset()
                return


def default_abort() -> list[Part]:
    """Data loaders, asynchronous savers, process groups, TransformerEngine."""
    return [AbortDataLoaders(), AsyncSavers(), AbortProcessGroups(), TransformerEngineAbort()]
