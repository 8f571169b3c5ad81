"""Sessions on an accelerator, without one: a device made of threads, on which what is launched comes later."""

from __future__ import annotations

import contextlib
import itertools
import random
import re
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="torch is missing: sessions hold torch's state")

import torch.distributed.distributed_c10d as c10d

import fakecuda as fc
from conftest import Daemon
from replicad import rng
from replicad._core.threads import Threads
from replicad._torch import device
from replicad._torch.communicators import Communicators
from replicad._torch.staging import Staging
from replicad._torch.tensors import Leaf
from replicad.errors import Canceled

HERE = Path(__file__).parent


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The device of these tests, for this process."""
    monkeypatch.setattr(device, "cuda", fc.cuda)
    monkeypatch.setattr(fc, "error", None)
    return fc.cuda


# -- words -------------------------------------------------------------------------------------------------------------------


def test_a_mark_passes_with_all_that_its_streams_were_given(fake: SimpleNamespace) -> None:
    go, stream = threading.Event(), fc.Stream(name="slow")
    stream.launch(lambda: go.wait(60))
    mark = device.Mark([fc.current_stream(), stream])
    assert not mark.passed()
    with pytest.raises(Canceled, match="has not finished what it was given: enough"):
        mark.wait(lambda: "enough")
    go.set()
    mark.wait(lambda: "")
    assert mark.passed()
    fc.fail()
    with pytest.raises(RuntimeError, match="illegal memory access"):
        mark.passed()


def test_a_step_is_known_by_the_streams_that_it_ran_on(fake: SimpleNamespace) -> None:
    here, there, elsewhere = fc.Stream(name="here"), fc.Stream(name="there"), fc.Stream(1, name="elsewhere")
    of = torch.device("cuda", 0)
    streams = device.Streams([of])
    with fake.stream(there):
        pass  # before
    streams.begin()
    with fake.stream(here):
        pass  # what it launched may be waited for later
    worker = threading.Thread(target=lambda: fake.set_stream(elsewhere))
    worker.start()
    worker.join()
    go = threading.Event()
    here.launch(lambda: go.wait(60))
    mark = streams.end()
    assert not mark.passed()
    there.launch(lambda: go.wait(60))
    elsewhere.launch(lambda: go.wait(60))
    assert not device.Mark([there]).passed()
    go.set()
    mark.wait(lambda: "")
    for s in (there, elsewhere):
        s.synchronize()
    assert set(streams._seen) == {here, fc.current_stream(of)}


def test_stages_take_what_tensors_take(fake: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's allocator of pinned memory rounds up to a power of two: for each tensor, or for one block of all of them."""
    fc.runtime.registered.clear()
    leaves = [Leaf(f"t{n}", fc.fake(torch.zeros(n)), "window") for n in (1, 1000, 33_000, (1 << 20) + 1)]
    staging = Staging([*leaves, Leaf("tied", leaves[1].tensor, "window")], False, {})
    (taken,) = fc.runtime.registered.values()
    assert staging.nbytes <= taken <= staging.nbytes + device.ALIGNED * len(leaves)
    assert [s.data_ptr() % device.ALIGNED for s in staging.stages] == [0] * 5 and staging.stages[1].data_ptr() == staging.stages[4].data_ptr()
    del staging
    assert not fc.runtime.registered, "memory that nobody holds is none of the device's"

    asked: list[int] = []
    monkeypatch.setattr(fc, "host_memory", False)
    inner = torch.empty

    def empty(n: int, *, dtype: torch.dtype, pin_memory: bool = False) -> torch.Tensor:
        asked.append(n)
        return inner(n, dtype=dtype)

    monkeypatch.setattr(torch, "empty", empty)
    Staging(leaves, False, {})
    assert asked == [4, 4000, 132_000, (4 << 20) + 4]


def test_what_the_next_forward_changes_is_copied_before_it(fake: SimpleNamespace) -> None:
    """And nobody waits for the device."""
    mean = fc.fake(torch.zeros(8))
    staging = Staging([Leaf("mean", mean, "any", private=True), Leaf("w", fc.fake(torch.zeros(8)), "window")], False, {})
    assert [x.changes for x in staging.leaves] == ["window", "window"], "a stage changes with the step"
    go = threading.Event()
    fc.current_stream().launch(lambda: go.wait(60))
    fc.launch(lambda: fc.raw(mean).fill_(1), mean)
    fc.waited.clear()
    staging.small()
    fc.launch(lambda: fc.raw(mean).fill_(2), mean)
    assert not fc.waited and float(staging.stages[0][0]) == 0
    go.set()
    fc.synchronize()
    assert set(staging.stages[0].tolist()) == {1.0} and set(fc.raw(mean).tolist()) == {2.0}


def test_generators_are_the_ranks_own(fake: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """By their place among those that the rank uses: another process of the rank may see others."""
    monkeypatch.setattr(rng, "session_devices", lambda: [1])
    fake.default_generators[0].offset, fake.default_generators[1].offset = 4, 8
    state = rng.get()
    fake.default_generators[0].offset = fake.default_generators[1].offset = 0
    monkeypatch.setattr(rng, "session_devices", lambda: [0])
    rng.set(state)
    assert [g.offset for g in fake.default_generators] == [8, 0]
    monkeypatch.setattr(rng, "session_devices", lambda: [0, 1])
    with pytest.raises(Exception, match="of 1 CUDA devices, this rank has its tensors on 2"):
        rng.set(state)


class Backend:
    def __init__(self, name: str, error: int | None) -> None:
        self.name, self._error = lambda: name, error
        if error is not None:
            self.get_error = lambda: error


class Group(c10d.ProcessGroup):
    _device_types = (torch.device("cpu"), torch.device("cuda"))

    def __init__(self, backend: Backend) -> None:
        super().__init__(0, 1)
        self._backend = backend

    def _get_backend(self, of: torch.device) -> Backend:
        assert of.type == "cuda", of
        return self._backend


@pytest.mark.parametrize(
    ("name", "error", "handling", "why", "lost"),
    [
        ("nccl", 0, "", None, False),
        ("nccl", 2, "", "the process group g: nccl reports 2", True),
        ("nccl", None, "3", None, False),  # torch 2.6, whose watchdog ends the process
        ("nccl", None, "1", "the process group g: nccl can't be asked whether a collective has failed: use nccl (of torch 2.7 or later), or gloo", False),
        ("nccl", None, "old name", "the process group g: nccl can't be asked whether a collective has failed: use nccl (of torch 2.7 or later), or gloo", False),
        ("ucc", None, "", "the process group g: ucc can't be asked whether a collective has failed: use nccl (of torch 2.7 or later), or gloo", False),
        ("gloo", None, "", None, False),
    ],
)
def test_communicators(name: str, error: int | None, handling: str, why: str | None, lost: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(c10d._world.pg_names, Group(Backend(name, error)), "g")
    if handling == "old name":
        monkeypatch.setenv("NCCL_ASYNC_ERROR_HANDLING", "1")
    else:
        monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", handling)
    all_of_them = Communicators()
    fault = all_of_them.fault(all_of_them.now())
    assert (fault and fault.why) == why and bool(fault and fault.lost) == lost


@pytest.mark.parametrize(("word", "error", "counted"), [("abort", 0, True), ("shutdown", 0, False), ("shutdown", 2, True)])
def test_an_abort_is_counted_whoever_asks_for_it(word: str, error: int, counted: bool) -> None:
    """And the end of a group that has failed, which nobody can ask afterwards."""
    all_of_them = Communicators()
    since = all_of_them.now()
    with contextlib.suppress(RuntimeError):  # torch's own, without a backend
        getattr(Group(Backend("nccl", error)), word)()
    fault = all_of_them.fault(since)
    assert (fault is not None and fault.why == "a process group was aborted meanwhile") == counted
    assert all_of_them.fault(all_of_them.now()) is None


def test_an_abort_counts_beside_the_end_of_another_group() -> None:
    """Which asks its backend meanwhile."""
    all_of_them = Communicators()
    since = all_of_them.now()
    peaceful = Backend("nccl", 0)

    def asked() -> int:
        with contextlib.suppress(RuntimeError):
            Group(Backend("nccl", 0)).abort()
        return 0

    peaceful.get_error = asked
    with contextlib.suppress(RuntimeError):
        Group(peaceful).shutdown()
    assert all_of_them.fault(since) is not None


def test_the_worker_loses_no_step_that_ends_while_it_looks() -> None:
    """A step that it lost would be waited for by the next one, until its timeout."""

    class Rank(SimpleNamespace):
        reads = 0

        @property
        def _later(self) -> int:
            self.reads += 1
            if self.reads == 1:  # the training thread ends step 5 right after this was read
                self.ended = 5
                self._wake.set()
                return 0
            return self.ended

        @_later.setter
        def _later(self, step: int) -> None:
            self.ended = step

    staged: list[int] = []
    rank = Rank(
        ended=0, _wake=threading.Event(), _quit=threading.Event(), stage_lock=threading.Lock(), before_capture=None, _h=None,
        _armed=SimpleNamespace(value=1), _arming=4, _look_at_fence=lambda: None,
        _lib=SimpleNamespace(rp_notify=lambda h: 0, rp_capture=lambda h, text: 0 if 5 not in staged else rank._quit.set() or rank._wake.set() or 0),
    )  # fmt: skip
    rank.stage = lambda step: (staged.append(step), setattr(rank._armed, "value", 0))
    rank._wake.set()
    worker = threading.Thread(target=Threads._work, args=(rank,), daemon=True)
    worker.start()
    worker.join(30)
    assert not worker.is_alive() and staged == [4, 5]


# -- jobs --------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def device_job(daemon: Daemon, tmp_path: Path) -> Callable[..., str]:
    """Runs :mod:`device_job`, two ranks, with a plan of faults. The job must end well, and be right at each resume."""
    runs = itertools.count()

    def run(plan: str, *, sharded: bool = False, code: int | None = 0, **env: object) -> str:
        folder = tmp_path / str(next(runs))
        folder.mkdir()
        more = {"OUT": str(folder), "KIND": "sharded" if sharded else "ddp"} | {k: str(v) for k, v in env.items()}
        program = f"""
            import os, runpy, sys
            import torch
            os.environ.update({more!r})
            sys.path.insert(0, {str(HERE)!r})
            runpy.run_path({str(HERE / "device_job.py")!r}, run_name="__main__")
        """
        job = daemon.run(program, *plan.split(), world=2, flags=("--groups", "0,1") if sharded else ())
        assert job.wait() == code or code is None, str(job.out)
        return "\n".join(job.out.seen)

    return run


def right(out: str, resumes: int) -> None:
    """Every state was what it must be, each resume's and the last one's."""
    assert "WRONG BITS" not in out, out
    assert len(set(re.findall(r"AT step \d+ from \S+, epoch (\d+) right", out))) >= resumes + 1, out
    assert out.count(" END ") == 2, out
    assert "more than `hard`" not in out, "a healthy process was killed\n" + out


def drawn(seed: int, kinds: list[str], faults: int) -> str:
    """A plan that a seed draws."""
    of = random.Random(seed)
    return " ".join(f"{of.choice(kinds)}@{step}" for step in sorted(of.sample(range(2, 4 * faults), faults)))


def test_the_training_thread_waits_for_no_device(device_job: Callable[..., str]) -> None:
    """With a buffer on it too, which the next forward changes."""
    out = device_job("")
    right(out, 0)
    assert out.count("WAITED 0 []") == 2 and out.count("noticed {}") == 2, out


@pytest.mark.parametrize(("how", "seed"), [("inproc", 1), ("inproc item", 2), pytest.param("inproc", 3, marks=pytest.mark.long), pytest.param("inproc", 4, marks=pytest.mark.long)])
def test_faults_within_processes(how: str, seed: int, device_job: Callable[..., str]) -> None:
    """A host is a step ahead of its device: what it waits for may wait for a rank that was lost."""
    plan = drawn(seed, ["raise-bwd", "raise-after", "raise-win"], 16)
    right(device_job(plan, HOW=how, SEED=seed, STEPS=70, PACE=0.005, sharded=seed % 2 == 0), 16)


@pytest.mark.parametrize(
    ("plan", "more"),
    [
        ("lost@4 raise-bwd@8 stop@12", {"HOW": "inproc"}),
        ("kill-bwd@4 watchdog@8", {"HOW": "inproc", "sharded": True}),
        ("kill-win@4 watchdog@8", {"HOW": "process", "sharded": True}),
        ("abort@5", {"HOW": "inproc", "sharded": True}),
        ("fault@5", {"HOW": "inproc"}),
        ("kill-bwd@5 raise-after@9", {"HOW": "inproc", "SIDE": 1}),
        pytest.param("fault@5 stop@9", {"HOW": "process"}, marks=pytest.mark.long),
        pytest.param("abort@5 kill-after@12", {"HOW": "process", "sharded": True}, marks=pytest.mark.long),
        pytest.param("kill-bwd@5 raise-after@9", {"HOW": "process", "SIDE": 1}, marks=pytest.mark.long),
    ],
)
def test_faults(plan: str, more: dict[str, object], device_job: Callable[..., str]) -> None:
    """Ranks, devices and communicators that are lost: never a wrong bit, and nobody else is."""
    right(device_job(plan, STEPS=16, **more), len(plan.split()))


@pytest.mark.parametrize(
    ("control", "plan", "more", "found"),
    [
        ("communicators", "watchdog@6", {"sharded": True}, "WRONG BITS"),
        ("waits", "raise-bwd@6", {"HOW": "inproc", "HARD": 4}, "that is more than `hard`"),
        ("streams", "kill-bwd@6", {"SIDE": 1, "code": None}, "WRONG BITS|the copy has other bytes than the tensor had|ranks differ"),
    ],
)
def test_what_was_wrong_once_is_found(control: str, plan: str, more: dict[str, object], found: str, device_job: Callable[..., str]) -> None:
    """Its moment may be missed on a busy machine: it is tried a few times."""
    outs = (device_job(plan, CONTROL=control, **more) for _ in range(15))
    assert any(re.search(found, out) for out in outs)
