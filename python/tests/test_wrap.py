"""The in-process wrapper's decisions, on a session without a daemon."""

from __future__ import annotations

import asyncio
import functools
import gc
import json
import math
import os
import re
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import replicad
from replicad import inprocess
from replicad._core.life import Life
from replicad.inprocess.parts import given, name


class Rank:
    """What the wrapper asks of a rank."""

    def __init__(self, attached: bool) -> None:
        self.attached, self.fenced, self.failed = attached, False, []

    number = 0

    def freeze_good(self) -> None: ...

    def wait_fence(self, timeout: float) -> bool:
        return False

    def fail(self, text: str) -> None:
        self.failed.append(text)


def session(attached: bool) -> SimpleNamespace:
    life = Life()
    return SimpleNamespace(enabled=True, rank=Rank(attached), life=life, rest=life.resumed.clear, last_moment=lambda: None, step_end=lambda error: None, at=7)


def block(calls: list[int]) -> object:
    def run(call: object) -> str:
        calls.append(1)
        if len(calls) < 3:
            raise RuntimeError("no")
        return "done"

    return run


def test_a_process_that_was_never_the_rank_ends() -> None:
    calls: list[int] = []
    with pytest.raises(RuntimeError, match="no"):
        inprocess.wrap(session(attached=False), abort=[], finalize=[], health=[])(block(calls))()
    assert len(calls) == 1


def test_a_fault_of_an_attached_rank_is_reported_and_the_block_runs_again() -> None:
    calls: list[int] = []
    s = session(attached=True)
    assert inprocess.wrap(s, abort=[], finalize=[], health=[])(block(calls))() == "done"
    assert len(calls) == 3 and s.rank.failed == ["RuntimeError: no"] * 2


def test_no_restart_is_raised_in_a_destructor() -> None:
    """What a destructor was about to free (a loader's worker processes, descriptors) would stay for ever."""
    inside, closed, asked, finished = threading.Event(), threading.Event(), [], []

    class Held:
        def __del__(self) -> None:
            inside.set()
            while len(asked) < 5:  # the epoch is closed, and the fault thread has tried more than once
                time.sleep(0)
            finished.append(1)

    class Asked(Life):
        @property
        def in_step(self) -> bool:
            asked.append(1)
            return False

    s = session(attached=True)
    s.rank.wait_fence = lambda timeout: closed.wait(timeout)
    s.life = Asked()
    s.life.resumed.set()

    @inprocess.wrap(s, abort=[], finalize=[], health=[])
    def block(call: inprocess.Call) -> str:
        if call.runs > 1:
            return "again"
        s.life.resumed.set()
        held = Held()
        threading.Thread(target=lambda: inside.wait() and closed.set()).start()
        del held
        while True:  # the restart comes here
            time.sleep(0)

    assert block() == "again" and finished == [1]


async def coroutine(call: object) -> None: ...


async def asynchronous(call: object) -> object:
    yield


def generator(call: object) -> object:
    yield


class Callable:
    async def __call__(self, call: object) -> None: ...


@pytest.mark.parametrize("fn", [coroutine, asynchronous, generator, functools.partial(generator), Callable()])
def test_a_block_that_only_begins_when_it_returns_is_refused(fn: Any) -> None:
    name = getattr(fn, "__qualname__", repr(fn))
    with pytest.raises(replicad.Invalid, match=rf"{re.escape(name)} is .* wrap a plain function that runs it to its end"):
        inprocess.wrap(session(attached=True))(fn)


def test_a_plain_block_may_run_a_loop_of_asyncio() -> None:
    """What the refusal of a coroutine says to do."""
    calls: list[int] = []

    async def run() -> str:
        await asyncio.sleep(0)
        return block(calls)(None)

    assert inprocess.wrap(session(attached=True), abort=[], finalize=[], health=[])(lambda call: asyncio.run(run()))() == "done"


def test_a_wrapper_that_is_not_enabled_passes_through(tmp_path: Path) -> None:
    def never() -> None:
        raise AssertionError("a part")

    before = threading.enumerate(), gc.get_freeze_count(), sys.unraisablehook

    @inprocess.wrap(lambda: never(), enabled=False, abort=[never], finalize=[never], health=[never], trace=str(tmp_path / "trace"))
    def block(call: inprocess.Call, *args: object, **kwargs: object) -> object:
        assert (threading.enumerate(), gc.get_freeze_count(), sys.unraisablehook) == before
        if "error" in kwargs:
            raise ValueError("the block's own")
        return call.runs, args, kwargs

    assert block(1, "two", three=3) == (0, (1, "two"), {"three": 3}) and block.__name__ == "block"
    with pytest.raises(ValueError, match="the block's own"):
        block(error=True)
    assert not (tmp_path / "trace").exists()


class Part:
    """Notes that it ran, and raises what it is told to."""

    def __init__(self, name: str, ran: list[str], error: BaseException | None = None) -> None:
        self.__name__, self.ran, self.error = name, ran, error

    def __call__(self) -> None:
        self.ran.append(self.__name__)
        if self.error is not None:
            raise self.error


def test_own_parts_run_in_order_and_the_trace_and_the_log_say_what_they_raised(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ran: list[str] = []
    first, second = Part("first", ran, KeyError("x")), Part("second", ran)
    clean, third = Part("clean", ran, asyncio.CancelledError()), Part("third", ran)
    path = tmp_path / "trace"
    train = inprocess.wrap(session(attached=True), abort=[first, second], finalize=[clean, third], health=[Part("sane", ran)], trace=str(path))
    assert train(block([1]))() == "done"
    assert ran == ["first", "second", "clean", "third", "sane"]
    said = [r.getMessage() for r in caplog.records]
    assert [s for s in said if "part first: KeyError: 'x'" in s] and [s for s in said if "part clean: CancelledError" in s]

    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert {line["pid"] for line in lines} == {os.getpid()} and all(isinstance(line["t"], int) for line in lines)
    assert all(line["seconds"] >= 0 for line in lines if "part" in line)
    assert all(line["available"] > 0 < line["resident"] for line in lines if line["event"] == "memory")
    assert [{k: v for k, v in line.items() if k not in ("t", "pid", "seconds", "available", "resident")} for line in lines] == [
        {"event": "run", "runs": 1},
        {"event": "ended", "reason": "RuntimeError: no"},
        {"event": "memory", "when": "before", "devices": []},
        {"event": "abort", "part": "first", "error": "KeyError: 'x'"},
        {"event": "abort", "part": "second"},
        {"event": "finalize", "part": "clean", "error": "CancelledError: "},
        {"event": "finalize", "part": "third"},
        {"event": "health", "part": "sane"},
        {"event": "memory", "when": "after", "devices": []},
        {"event": "again", "runs": 1},
        {"event": "run", "runs": 2},
    ]


def test_a_full_disk_under_the_trace_keeps_no_part_from_running() -> None:
    ran: list[str] = []
    train = inprocess.wrap(session(attached=True), abort=[Part("a", ran), Part("b", ran)], finalize=[], health=[], trace="/dev/full")
    assert train(block([1]))() == "done" and ran == ["a", "b"]


def test_parts_that_take_an_argument_get_the_call() -> None:
    seen: list[Any] = []

    class Frees:
        def __call__(self, call: inprocess.Call) -> None:
            seen.append(("part", call.runs))

        def begin(self, call: inprocess.Call) -> None:
            seen.append(("begin", call.runs))

    def plain(most: int = 3) -> None:
        seen.append(most)

    call = inprocess.Call()
    call.runs = 2
    first, second = given(call, [Frees(), plain])
    first()
    first.begin()  # type: ignore[attr-defined]
    second()
    assert seen == [("part", 2), ("begin", 2), 3]
    assert (name(first), name(second)) == ("Frees", "plain"), "as logs and traces call them"
    assert (call.resumed, call.steps, call.step) == (None, 0, -1), "there is no session yet"


def test_health_checks_that_fail_are_all_named() -> None:
    ran: list[str] = []
    count = [1]
    sane = [inprocess.CUDAHealth(), inprocess.MemoryHealth(), Part("own", ran, OSError("a port")), inprocess.FaultLimit(0, lambda: count[0]), Part("last", ran)]
    calls: list[int] = []
    with pytest.raises(inprocess.Unhealthy) as err:
        inprocess.wrap(session(attached=True), abort=[], finalize=[], health=sane, hard=math.inf)(block(calls))()
    assert str(err.value) == "own: OSError: a port; FaultLimit: this process has failed 1 times, at most 0 are allowed"
    assert len(calls) == 1 and ran == ["own", "last"]


def test_memory_that_is_short_or_leaks_is_unhealthy() -> None:
    inprocess.MemoryHealth()()
    with pytest.raises(inprocess.Unhealthy, match=r"^\d+ MiB of host memory are available, want \d+$"):
        inprocess.MemoryHealth(free=1 << 60)()
    leak = inprocess.MemoryHealth(growth=16 << 20)
    leak()
    held = bytearray(os.urandom(1 << 20) * 64)
    with pytest.raises(inprocess.Unhealthy, match=r"has grown by \d+ MiB over its restarts, at most 16 are allowed"):
        leak()
    del held


def test_a_fault_limit_counts_what_it_is_told() -> None:
    count = [2]
    limit = inprocess.FaultLimit(2, lambda: count[0])
    limit()
    count[0] = 3
    with pytest.raises(inprocess.Unhealthy, match="failed 3 times, at most 2"):
        limit()


def test_the_restart_of_a_wrapper_around_this_one_goes_on_once_the_parts_have_run() -> None:
    ran: list[str] = []
    with pytest.raises(inprocess.Restart):
        inprocess.wrap(session(attached=True), abort=[Part("a", ran, inprocess.Restart()), Part("b", ran)], finalize=[], health=[])(block([]))()
    assert ran == ["a", "b"]


def test_no_thread_of_a_wrapper_outlives_its_block() -> None:
    before = set(threading.enumerate())
    assert inprocess.wrap(session(attached=True), abort=[], finalize=[], health=[])(block([1]))() == "done"
    assert set(threading.enumerate()) <= before


def test_an_epoch_that_is_closed_before_the_block_begins(caplog: pytest.LogCaptureFixture) -> None:
    """Of a session that was resumed before: the restart comes inside of the block, whose fault thread ends with it."""
    before = set(threading.enumerate())
    for _ in range(20):
        s = session(attached=True)
        s.life.resumed.set()
        s.rank.fenced = True
        s.rank.wait_fence = lambda timeout: True
        calls: list[int] = []

        def run(call: inprocess.Call, s: Any = s, calls: list[int] = calls) -> str:
            calls.append(call.runs)
            while s.life.resumed.is_set():
                time.sleep(0.001)
            return "done"

        assert inprocess.wrap(s, abort=[], finalize=[], health=[])(run)() == "done"
    assert set(threading.enumerate()) <= before


def test_errors_of_peers_before_resume_end_nobody(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(sys.modules["replicad.inprocess.wrap"], "PAUSE", 0.0)
    s = session(attached=True)
    s.rank.fenced = True
    s.rank.wait_fence = lambda timeout: True

    def run(call: inprocess.Call) -> str:
        if call.runs < 8:
            raise RuntimeError("[gloo] Connection closed by peer")
        return "done"

    assert inprocess.wrap(s, abort=[], finalize=[], health=[])(run)() == "done"
    assert caplog.text.count("met an error of a peer before session.resume()") == 7


def test_a_wrapper_inside_of_another_that_ends_the_process() -> None:
    s, outer = session(attached=True), []
    s.rank.fenced = True

    @inprocess.wrap(s, abort=[], finalize=[], health=[], hard=1e6)
    def inner(call: inprocess.Call) -> None:
        raise FileExistsError("each time")

    def run(call: inprocess.Call) -> None:
        outer.append(call.runs)
        inner()

    with pytest.raises(inprocess.Unhealthy, match="failed 3 times in a row") as raised:
        inprocess.wrap(s, abort=[], finalize=[], health=[], hard=1e6)(run)()
    assert isinstance(raised.value.__cause__, FileExistsError) and outer == [1]


def test_hooks_of_a_run_do_not_stay_for_the_next(caplog: pytest.LogCaptureFixture) -> None:
    """Of parameters they are taken off, of modules and optimizers named at once; those from before stay, and so do those of what the block made."""
    s, model, found, seen = session(attached=True), torch.nn.Linear(2, 2), [], []
    optimizer = torch.optim.SGD(model.parameters())
    outside = model.weight.register_hook(lambda grad: grad), model.register_forward_hook(lambda *_: None)

    def run(call: Any) -> None:
        s.life.resumed.set()
        own = torch.nn.Linear(2, 2)
        own.weight.register_hook(lambda grad: grad)
        seen.append(own)
        model.weight.register_hook(lambda grad: grad * 0.5)
        model.bias.register_post_accumulate_grad_hook(lambda p: None)
        model.register_forward_pre_hook(noting)
        optimizer.register_step_post_hook(stepping)
        model.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        found.append(model.weight.grad.tolist())
        if call.runs < 3:
            raise RuntimeError("no")

    def noting(*_: object) -> None: ...

    def stepping(*_: object) -> None: ...

    half_made = torch.nn.Linear.__new__(torch.nn.Linear)  # is about as well, and has no hooks
    inprocess.wrap(s, abort=[], finalize=[], health=[])(run)()
    assert not vars(half_made)
    assert found == [[[0.5, 0.5], [0.5, 0.5]]] * 3
    assert len(model.bias._post_accumulate_grad_hooks) == 1
    assert [len(m.weight._backward_hooks) for m in seen] == [1, 1, 1]
    assert outside[0].id in model.weight._backward_hooks and outside[1].id in model._forward_hooks
    (told,) = [r.getMessage() for r in caplog.records if "registered hooks" in r.getMessage()]
    assert "noting on Linear, " in told and "stepping on SGD" in told and "handle.remove()" in told
