"""What has to be taken down so that a blocked training thread comes back, and so that nothing of the old epoch goes on."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable
from typing import Any

from .parts import Part, captured, live

__all__ = ["AbortDataLoaders", "AbortProcessGroups", "AsyncSavers", "Part", "ResetGraphs", "TransformerEngineAbort", "default_abort", "iterators"]


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


class ResetGraphs:
    """Resets the CUDA graphs that were captured in the block, and what ``torch.compile`` has recorded of its own (``mode="reduce-overhead"``), which is compiled
    and recorded anew at the next call.

    A graph with collectives of an aborted group must never be replayed, and NCCL's abort ends only once no such graph is left. So this comes before
    :class:`AbortProcessGroups`, and begins its aborts itself: a replay that waits for a lost peer ends by them. Graphs from before the block stay: they hold
    no group of an epoch, as groups are made in the block.
    """

    def __call__(self) -> None:
        """Does it, or nothing where there is nothing to do."""
        graphs = captured()
        if not graphs:
            return
        _begin_aborts()
        errors: list[Exception] = []
        for graph in graphs:
            try:
                graph.reset()
            except Exception as err:  # that of one graph keeps no other one
                errors.append(err)
        self._forget_recorded()
        if errors:
            raise errors[0]

    def begin(self) -> None:
        """Nothing: the training thread may be in a replay."""

    @staticmethod
    def _forget_recorded() -> None:
        """Has torch.compile record anew. What is compiled holds on to the trees of its graphs, and fails once they were reset: so it goes too."""
        trees: Any = sys.modules.get("torch._inductor.cudagraph_trees")
        if trees is None or not any(True for _ in live(trees.CUDAGraphNode)):
            return
        if dynamo := sys.modules.get("torch._dynamo"):
            dynamo.reset()
        trees.reset_cudagraph_trees()  # torch 2.6 leaves it to each backend


#: Backends whose collectives an abort ends, by a part of their names: "nccl2" and "nccl-lazy" are torch 2.15's.
_ABORTED = ("nccl", "xccl")


class AbortProcessGroups:
    """Ends every process group of torch.distributed.

    Groups of NCCL (``nccl``, ``nccl2``, ``nccl-lazy``) and of XCCL are aborted, which frees a thread that is blocked in a collective, and then destroyed. A
    Gloo group does not let go of a blocked thread by itself: the connections that were noted when it was made are cut
    (:func:`replicad.store.connections`), then it is destroyed. Each group has ``timeout`` seconds.

    Nothing else that communicates is aborted: groups of UCC and MPI are destroyed alone, and symmetric memory, NVSHMEM, and DeepEP's buffers are not known to
    torch.distributed. A kernel of theirs that waits for a lost peer runs until the process ends. Where a job uses them, put a part of your own before this
    one, which ends them: ``abort=[MyAbort(), *default_abort()]``. Without one the process is killed after ``hard`` seconds, and another one takes its rank.
    """

    def __init__(self, timeout: float = 30.0) -> None:
        self.timeout = timeout

    def __call__(self) -> None:
        """Does it, or nothing where there is nothing to do."""
        if (begun := _begin_aborts()) is not None:
            self._wait(begun)
            from ..store import destroy_process_group

            destroy_process_group()
        elif store := sys.modules.get("replicad.store"):
            store.forget()  # a restart is raised at any point of making a group too

    def begin(self) -> None:
        """All of it, unless graphs were captured: an abort ends only once they are gone, and the training thread may be in one."""
        if captured():
            self.free()
        else:
            self()

    def free(self) -> bool:
        """Frees the threads that are blocked in collectives, and leaves the groups to the program; whether there are any. Aborts that wait for graphs are
        begun alone."""
        begun = _begin_aborts()
        if begun and not captured():
            self._wait(begun)
        return begun is not None

    def _wait(self, begun: list[threading.Thread]) -> None:
        until = time.monotonic() + self.timeout
        for t in begun:
            t.join(max(0.0, until - time.monotonic()))
        if any(t.is_alive() for t in begun):
            raise TimeoutError(
                f"a process group was not aborted within {self.timeout} s: give a longer timeout; or, where a CUDA graph from outside of the block has collectives in it, "
                "capture it inside (NCCL waits for it)"
            )


def _begin_aborts() -> list[threading.Thread] | None:
    """Begins to abort all process groups, each on a thread of its own; None if there are none. Again for one that is being aborted it waits for that."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    c10d = torch.distributed.distributed_c10d
    groups = [(g, str(c10d._world.pg_map.get(g, ("",))[0])) for g in list(c10d._world.pg_map)]
    threads = [threading.Thread(target=_abort, args=(g,), daemon=True) for g, backend in groups if any(name in backend for name in _ABORTED)]
    if store := sys.modules.get("replicad.store"):
        store.cut()
    for t in threads:
        t.start()
    return threads


def _abort(group: Any) -> None:
    """Aborts what of a group is on devices."""
    for device in group._device_types:
        if device.type == "cpu":
            continue
        backend = group._get_backend(device)
        if abort := getattr(backend, "abort", None) or getattr(backend, "_abort", None):
            abort()


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
    """Data loaders, asynchronous savers, graphs, process groups, TransformerEngine."""
    return [AbortDataLoaders(), AsyncSavers(), ResetGraphs(), AbortProcessGroups(), TransformerEngineAbort()]
