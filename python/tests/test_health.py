"""What a restart inside of the process asks of its devices, on the stand-in (fakecuda.py)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import fakecuda
from replicad import inprocess
from replicad._torch import device
from replicad.inprocess import memory

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
