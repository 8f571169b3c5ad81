"""What a restart inside of the process asks of its devices, on the stand-in (fakecuda.py)."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import fakecuda
from replicad import inprocess
from replicad._torch import device
from replicad.inprocess import abort, memory, parts

GIB = 1 << 30


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The stand-in, of which this process uses device 1 alone."""
    monkeypatch.setattr(device, "cuda", fakecuda.cuda)
    monkeypatch.setattr(fakecuda, "contexts", {1})
    monkeypatch.setattr(fakecuda, "memory", {0: [60 * GIB, 80 * GIB], 1: [60 * GIB, 80 * GIB]})
    monkeypatch.setattr(fakecuda, "held", {0: [0, 0], 1: [0, 0]})
    monkeypatch.setattr(fakecuda, "emptied", [])
    yield fakecuda
    assert fakecuda.contexts == {1}, "device 0 was touched"


def asked(fake: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Which devices are synchronised from now on."""
    seen: list[int] = []
    inner = fake.cuda.synchronize
    monkeypatch.setattr(fake.cuda, "synchronize", lambda of: (seen.append(of), inner(of)))
    return seen


# -- CUDAHealth -------------------------------------------------------------------------------------------------------------


def test_each_device_that_is_used_synchronises_twice(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = asked(fake, monkeypatch)
    ran: list[int] = []
    fakecuda.launch(lambda: ran.append(1), on=fake._default[1])
    inprocess.CUDAHealth()()
    assert seen == [1, 1] and ran == [1]
    fake.contexts.add(0)
    inprocess.CUDAHealth()()
    assert sorted(seen[2:]) == [0, 0, 1, 1]
    fake.contexts.discard(0)


def test_the_thread_that_asks_stands_on_the_device_that_it_asks(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    on: list[int] = []
    monkeypatch.setattr(fake.cuda, "synchronize", lambda of: on.append(fake.current_device()))
    inprocess.CUDAHealth()()
    assert on == [1, 1]


def test_an_error_that_sticks_is_unhealthy(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake, "error", "CUDA error: an illegal memory access was encountered")
    with pytest.raises(inprocess.Unhealthy, match=r"^CUDA device 1: CUDA error: an illegal memory access"):
        inprocess.CUDAHealth()()


def test_a_device_that_hangs_is_unhealthy(fake: Any) -> None:
    over = threading.Event()
    stream = fakecuda.Stream(1)
    stream.launch(lambda: over.wait())
    try:
        with pytest.raises(inprocess.Unhealthy, match=r"^CUDA device 1 did not synchronise within 0.05 s$"):
            inprocess.CUDAHealth(timeout=0.05)()
    finally:
        over.set()
    inprocess.CUDAHealth()()


# -- memory -----------------------------------------------------------------------------------------------------------------


def test_a_device_without_memory_is_unhealthy(fake: Any) -> None:
    fake.memory[1][0] = 100 << 20
    with pytest.raises(inprocess.Unhealthy, match=r"^100 MiB of CUDA device 1 are available, want 256$"):
        inprocess.MemoryHealth()()
    fake.held[1] = [GIB, 2 * GIB]  # what torch keeps for tensors to come is available
    inprocess.MemoryHealth()()


def test_tensors_that_each_restart_leaves_behind_are_unhealthy(fake: Any) -> None:
    leak = inprocess.MemoryHealth(device_growth=GIB)
    fake.held[1] = [10 * GIB, 11 * GIB]
    leak()
    fake.held[1] = [11 * GIB, 30 * GIB]  # a cache may grow
    leak()
    fake.held[1][0] = 12 * GIB
    with pytest.raises(inprocess.Unhealthy, match=r"^tensors on CUDA device 1 have grown by 2048 MiB over the restarts, at most 1024 are allowed$"):
        leak()


def test_what_a_trace_has_of_memory(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.held[1] = [GIB, 2 * GIB]
    now = memory.now()
    assert now["available"] > 0 and now["resident"] > 0
    assert now["devices"] == [{"device": 1, "free": 60 * GIB, "allocated": GIB, "reserved": 2 * GIB}]
    monkeypatch.setattr(fake, "error", "CUDA error: of one that has failed")
    assert memory.now()["devices"] == "RuntimeError: CUDA error: of one that has failed"


def test_the_cache_is_emptied_where_the_device_is_short_of_memory(fake: Any) -> None:
    fake.held[1] = [GIB, 3 * GIB]
    inprocess.DropCaches()()
    assert fake.emptied == []
    fake.memory[0][0] = 0  # of others
    inprocess.DropCaches()()
    assert fake.emptied == []
    fake.memory[1][0] = GIB - 1
    inprocess.DropCaches()()
    assert sum(fake.emptied) == 2 * GIB and fake.memory[1][0] == 3 * GIB - 1


# -- graphs -----------------------------------------------------------------------------------------------------------------


class Group:
    """A process group of NCCL, whose abort ends once no graph is left that has its collectives."""

    _device_types = (torch.device("cpu"), torch.device("cuda"))

    def __init__(self, *graphs: Any) -> None:
        self.graphs, self.order = graphs, []
        self.begun, self.over = threading.Event(), threading.Event()

    def _get_backend(self, of: torch.device) -> Group:
        assert of.type == "cuda"
        return self

    def abort(self) -> None:
        self.order.append("abort")
        self.begun.set()
        self.over.wait(60 if self.graphs else 0)


class Graph(fakecuda.CUDAGraph):
    """A graph that holds a group's collectives."""

    group: Group | None = None

    def reset(self) -> None:
        super().reset()
        if self.group is not None:
            assert self.group.begun.wait(60), "a replay may wait for a peer until the abort is begun"
            self.group.order.append("reset")
            self.group.over.set()


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes groups known to torch.distributed, by their backends."""
    c10d = torch.distributed.distributed_c10d
    destroyed: list[bool] = []

    def call(**by_name: Any) -> list[bool]:
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(c10d, "_pg_map", {g: (name, None) for name, g in by_name.items()})
        import replicad.store

        monkeypatch.setattr(replicad.store, "destroy_process_group", lambda: destroyed.append(True))
        return destroyed

    return call


def run_abort(which: list[str]) -> None:
    for part in inprocess.default_abort():
        if type(part).__name__ in which:
            part()


def test_graphs_of_the_block_are_reset_and_those_from_before_stay(fake: Any) -> None:
    before = fakecuda.CUDAGraph()
    with parts.freeze():
        assert parts.captured() == []
        inside = [fakecuda.CUDAGraph(), Graph()]
        with parts.freeze():  # a block in this one
            abort.ResetGraphs()()
        assert [g.resets for g in (before, *inside)] == [0, 1, 1]
    assert {id(g) for g in parts.captured()} >= {id(g) for g in (before, *inside)}


def test_graphs_from_before_stay_where_the_program_froze_objects_itself(fake: Any) -> None:
    gc.freeze()
    try:
        before = fakecuda.CUDAGraph()
        with parts.freeze():
            inside = fakecuda.CUDAGraph()
            abort.ResetGraphs()()
            assert (before.resets, inside.resets) == (0, 1)
    finally:
        gc.unfreeze()


def test_a_graph_that_cannot_be_reset_keeps_no_other_one(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(fakecuda.CUDAGraph):
        def reset(self) -> None:
            raise RuntimeError("CUDA error: sticky")

    with parts.freeze():
        graphs = [fakecuda.CUDAGraph(), Broken(), fakecuda.CUDAGraph()]
        with pytest.raises(RuntimeError, match="sticky"):
            abort.ResetGraphs()()
        assert graphs[0].resets == graphs[2].resets == 1


@pytest.mark.parametrize("blocked", [True, False])
def test_an_abort_that_waits_for_graphs_ends_by_their_reset(blocked: bool, fake: Any, groups: Any) -> None:
    with parts.freeze():
        graph = Graph()
        graph.group = group = Group(graph)
        destroyed = groups(nccl=group)
        if blocked:  # on the fault thread, as the training thread may be in a replay
            for part in (abort.ResetGraphs(), abort.AbortProcessGroups(timeout=60)):
                part.begin()
            assert group.begun.wait(60) and graph.resets == 0 and not destroyed
        run_abort(["ResetGraphs", "AbortProcessGroups"])
        assert graph.resets == 1 and group.order[0] == "abort" and "reset" in group.order and destroyed == [True]


def test_a_graph_from_outside_that_holds_a_group_is_named(fake: Any, groups: Any) -> None:
    graph = Graph()
    group = Group(graph)
    groups(nccl=group)
    with parts.freeze():
        try:
            with pytest.raises(TimeoutError, match="where a CUDA graph from outside of the block has collectives in it, capture it inside"):
                abort.AbortProcessGroups(timeout=0.05)()
        finally:
            group.over.set()


@pytest.mark.parametrize("recorded", [True, False])
def test_what_compiled_functions_recorded_goes_with_what_was_compiled(recorded: bool, fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Node:
        pass

    did: list[str] = []
    trees = SimpleNamespace(CUDAGraphNode=Node, reset_cudagraph_trees=lambda: did.append("trees"))
    monkeypatch.setitem(sys.modules, "torch._inductor.cudagraph_trees", trees)
    monkeypatch.setitem(sys.modules, "torch._dynamo", SimpleNamespace(reset=lambda: did.append("compiled")))
    with parts.freeze():
        abort.ResetGraphs()()
        assert did == []
        made = [fakecuda.CUDAGraph(), *([Node()] if recorded else [])]
        gc.collect()
        abort.ResetGraphs()()
        assert did == (["compiled", "trees"] if recorded else []) and made


# -- backends ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("backend", "aborted"), [("nccl", True), ("cpu:gloo,cuda:nccl2", True), ("nccl-lazy", True), ("xccl", True), ("gloo", False), ("ucc", False)])
def test_which_backends_are_aborted(backend: str, aborted: bool, fake: Any, groups: Any) -> None:
    group = Group()
    destroyed = groups(**{backend: group})
    abort.AbortProcessGroups()()
    assert bool(group.order) == aborted and destroyed == [True]
