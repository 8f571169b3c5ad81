"""The life of a rank without torch, with a real daemon and launcher."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import pace
from conftest import Daemon
from replicad import Rank
from replicad._core.threads import helpers
from replicad.errors import Fenced, Invalid

#: A rank that counts: word 0 is the step; each further word is a function of what it was. Arguments: the last step, and a step: once
#: it or a later one is committed the rank says so and waits for the loss of a rank.
COUNT = """
import array, os, sys, zlib
import replicad
from replicad import Fenced, Rank, Region

last = int(sys.argv[1])
words = array.array("q", [0] * 64)
address, length = words.buffer_info()
own = array.array("q", [0])
with Rank.open() as rank:
    rank.register([
        Region("words", address, 8 * length, dtype="int64", shape=(length,)),
        Region("own", own.buffer_info()[0], 8, dtype="int64", shape=(1,), private=True, changes="any"),
    ])
    rank.attach()
    fresh = False
    while True:
        order = rank.join()
        if order.initialise:
            for i in range(length):
                words[i] = i
            rank.seal_initial()
            fresh = True
            continue
        rank.load()
        rank.ready()
        assert words[0] == order.step, (words[0], order)
        print("RESUMED", order.step, "fresh" if fresh and order.step == 0 else order.source, "as", order.rank, "pid", os.getpid(), flush=True)
        try:
            for step in range(order.step + 1, last + 1):
                if order.world > 1:  # as collectives do, it keeps ranks in step
                    rank.barrier(f"step {step}", order.world)
                own[0] = 10000 * order.rank + step
                rank.step_enter(step)
                for i in range(length):
                    words[i] = (words[i] * 6364136223846793005 + 1442695040888963407) % 2**62 if i else step
                rank.step_exit(step)
                if len(sys.argv) > 2 and fresh:
                    if step == last - 1:
                        rank.commit(step)  # its steps are not over before one is committed
                    if rank.committed >= int(sys.argv[2]):
                        print("COMMITTED", rank.committed, flush=True)
                        rank.wait_fence()
                    else:
                        rank.wait_fence(0.001)  # a step takes a while
            print("RESULT", order.rank, zlib.crc32(bytes(words)), own[0], flush=True)
            rank.leave()
            break
        except Fenced:
            print("FENCED", flush=True)
            fresh = False
"""


def result(out: str) -> list[str]:
    return sorted(re.findall(r"^RESULT .*$", out, re.M))


def test_a_look_that_a_join_overtakes_closes_nothing() -> None:
    """The watcher saw the fence of the epoch before, and said so once the rank was in the next one: that epoch passed for closed, and a restart
    was raised in it."""

    class Overtaken(Rank):
        fenced = property(lambda self: self.said.pop(0))  # type: ignore[assignment]

    rank = Overtaken.__new__(Overtaken)
    rank._fence, rank._fence_lock, rank._on_fence, rank.said = threading.Event(), threading.Lock(), [], [True, False]
    rank._look_at_fence()
    assert not rank.wait_fence(0)
    rank.said = [True, True]
    rank._look_at_fence()
    assert rank.wait_fence(0)


def test_a_commit_that_its_ranks_loss_overtakes_is_one() -> None:
    """Whoever hears of a commit may end at once. A rank that looked for it before that, and for the fence afterwards, took a step that is committed for one that is not."""

    class Overtaken(Rank):
        committed = property(lambda self: self.said.pop(0))  # type: ignore[assignment]

        def pause(self, most: float) -> None: ...

        def _seal_step(self, op: str, unchanged: bool) -> bool:
            raise Fenced(op)

    rank = Overtaken.__new__(Overtaken)
    rank._paused, rank.said = 0.0, [6, 7]
    rank.commit(7)
    rank.said = [6, 6]
    with pytest.raises(Fenced):
        rank.commit(7)


def test_life(run: Callable[..., str]) -> None:
    out = run(COUNT, "20")
    assert "RESUMED 0 fresh as 0" in out
    assert len(result(out)) == 1


def test_helpers(run: Callable[..., str]) -> None:
    """Threads that copy beside the worker live as long as the rank."""
    begun = COUNT.replace("rank.attach()", "rank.attach()\n    print('THREADS', sorted(t.name for t in rank.threads), flush=True)")
    out = run("import os\nos.environ['REPLICAD_CAPTURE_THREADS'] = '3'\n" + begun, "20")
    assert "THREADS ['replicad-helper', 'replicad-helper', 'replicad-watcher', 'replicad-worker']" in out
    assert len(result(out)) == 1


@pytest.mark.parametrize("text", ["0", "17", "-1", "two", "1.5"])
def test_how_many_helpers_is_refused_by_name(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICAD_CAPTURE_THREADS", text)
    with pytest.raises(Invalid, match=r"REPLICAD_CAPTURE_THREADS=.*want 1 to 16"):
        helpers()


def test_kill_and_resume_from_own_ram(daemon: Daemon) -> None:
    want = result(daemon.run(COUNT, "3000").done())
    job = daemon.run(COUNT, "3000", "7")
    pid = int(job.until("RESUMED 0 fresh").split()[-1])
    committed = int(job.until("COMMITTED").split()[-1])
    job.kill(pid=pid)
    words = job.until("RESUMED").split()
    assert int(words[1]) >= committed
    assert words[2] == "own-ram"
    assert int(words[-1]) != pid
    assert result(job.done()) == want


def test_survivor_stays_in_its_process(daemon: Daemon) -> None:
    want = result(daemon.run(COUNT, "500", world=2).done())
    assert len(want) == 2
    job = daemon.run(COUNT, "500", "7", world=2)
    pids = [job.until("RESUMED 0 fresh").split()[-1] for _ in range(2)]
    committed = int(job.until("COMMITTED").split()[-1])
    job.kill(pid=int(pids[0]))
    job.until("FENCED")
    after = [job.until("RESUMED").split() for _ in range(2)]
    assert after[0][1] == after[1][1]
    assert int(after[0][1]) >= committed
    assert {line[-1] for line in after} & set(pids) == {pids[1]}
    assert result(job.done()) == want


def test_a_fence_that_the_training_thread_has_read(daemon: Daemon) -> None:
    """The watcher slept on, and nobody was told: the message that was to wake it was gone before it looked."""
    out = daemon.run(
        """
        import ctypes, select, threading
        from replicad import Fenced, Rank, Region
        from replicad._core import threads

        memory = (ctypes.c_uint8 * 4096)()
        late, poll = threading.Event(), select.poll
        late.set()

        class Late:
            \"\"\"A watcher that gets to run late.\"\"\"

            def __init__(self):
                self._poll = poll()
                self.register = self._poll.register

            def poll(self, ms):
                late.wait()
                return self._poll.poll(ms)

        threads.select.poll = Late
        with Rank.open() as rank:
            rank.register([Region("m", ctypes.addressof(memory), 4096, shape=(4096,))])
            rank.attach()
            while (order := rank.join()).initialise:
                rank.seal_initial()
            rank.load(); rank.ready()
            if order.epoch == 1:
                late.clear()
                rank.kv_set(f"watcher {rank.number}", b"")  # the answer wakes it once more
                if rank.number == 1:
                    rank.kv_get("waits")
                    rank.fail("a fault")
                else:
                    rank.kv_set("waits", b"")
                try:
                    rank.barrier("of more than there are", 3)
                except Fenced:
                    late.set()
                print("TOLD", rank.wait_fence(60), flush=True)
                rank.join(); rank.load(); rank.ready()
            rank.leave()
        """,
        world=2,
    ).done()
    assert out.count("TOLD True") == 2, out


def test_daemon_comes_back(own_daemon: Daemon) -> None:
    """No daemon's fault stops training: a rank in a step goes on, and finds the next daemon by itself."""
    job = own_daemon.run(
        """
        import ctypes, sys
        from replicad import Rank, Region
        memory = (ctypes.c_uint8 * 65536)()
        with Rank.open() as rank:
            rank.register([Region("m", ctypes.addressof(memory), 65536, shape=(65536,))])
            rank.attach()
            while (order := rank.join()).initialise:
                rank.seal_initial()
            rank.load(); rank.ready()
            step, back = order.step, None
            if order.epoch > 1:
                print("RECONNECTED never: another process has the rank", flush=True)
                rank.leave()
                sys.exit()
            while back is None or rank.committed < back:
                step += 1
                if back is None and rank.stats().reconnects:
                    back = step  # which begins once the next daemon is there
                rank.step_enter(step)
                memory[0] = step % 256
                rank.step_exit(step)
                rank.wait_fence(0.001)
                if step == 3:
                    print("STEPPING", flush=True)
            print("RECONNECTED", step, flush=True)
            rank.leave()
        """
    )
    job.until("STEPPING")
    assert own_daemon.process is not None
    own_daemon.process.kill()
    own_daemon.log.rest()
    own_daemon.process.wait()
    own_daemon.start()
    line = job.until("RECONNECTED")
    assert "never" not in line or pace.now() >= 4, "a daemon that comes back within its grace finds the rank's process"
    job.done()


def test_who_waits_for_an_order_leaves_the_rank_to_others(run: Callable[..., str]) -> None:
    """Of two threads that take the rank in turn the one that waits is the faster to take it again: a meeting of seconds took a minute."""
    run(
        """
        import ctypes, threading
        from replicad import Rank, Region
        from replicad._core import handle
        handle.SLICE = 60.0  # no look comes by time alone: how long the keys take is no matter
        memory = (ctypes.c_uint8 * 64)()
        with Rank.open() as rank:
            rank.register([Region("m", ctypes.addressof(memory), 64, shape=(64,))])
            if rank.number == 1:
                rank.scope()
                rank.kv_get("go")
            rank.attach()
            assert rank.join().initialise
            rank.seal_initial()
            looks, join, pause = [], rank._lib.rp_join, threading.Event()
            rank._lib.rp_join = lambda *args: looks.append(1) or join(*args)
            waiting = threading.Thread(target=lambda: rank.join(beside=True))
            waiting.start()
            if rank.number == 0:
                rank.scope()
                for i in range(50):
                    pause.wait(0.001)  # in which the other one takes it
                    rank.kv_set(f"k/{i}", b"v")
                assert len(looks) < 25, f"it was asked for orders {len(looks)} times while 50 keys were set"
                rank.kv_set("go", b"")
            waiting.join()
            rank.load(); rank.ready()
            rank.leave()
        """,
        world=2,
    )


def test_attach_that_is_answered_late_is_asked_again(own_daemon: Daemon, tmp_path: Path) -> None:
    """A daemon that is busy answers when the rank has stopped waiting, and asks once more: the process was refused, and ended."""
    job = own_daemon.run(
        """
        import ctypes, sys, time
        from pathlib import Path
        from replicad import Rank, Region
        from replicad._core import native as _native
        memory = (ctypes.c_uint8 * 64)()

        def wait_for(name):
            while not Path(sys.argv[1], name).exists():
                time.sleep(0.01)

        with Rank.open() as rank:
            rank.register([Region("m", ctypes.addressof(memory), 64, shape=(64,))])
            print("REGISTERED", flush=True)
            wait_for("stopped")
            assert rank._lib.rp_attach(rank._h, 0, ctypes.byref(rank._text)) == _native.ETIMEOUT
            print("ASKED", flush=True)
            wait_for("claimed")
            rank.attach()
            while (order := rank.join()).initialise:
                rank.seal_initial()
            rank.load(); rank.ready()
            rank.leave()
        """,
        str(tmp_path),
    )
    job.until("REGISTERED")
    assert own_daemon.process is not None
    own_daemon.process.send_signal(signal.SIGSTOP)
    (tmp_path / "stopped").touch()
    job.until("ASKED")
    own_daemon.process.send_signal(signal.SIGCONT)
    own_daemon.log.until('"event":"claimed"')
    (tmp_path / "claimed").touch()
    assert "ended with status 1" not in job.done()


def test_rendezvous(run: Callable[..., str]) -> None:
    out = run(
        """
        import ctypes, threading
        from replicad import Invalid, Rank, Region, Timeout
        memory = (ctypes.c_uint8 * 64)()
        with Rank.open() as rank:
            rank.register([Region("m", ctypes.addressof(memory), 64, shape=(64,))])
            rank.attach()
            while (order := rank.join()).initialise:
                rank.seal_initial()
            rank.load(); rank.ready()
            me, other = order.rank, 1 - order.rank
            rank.barrier("before", 2)
            large = bytes([me]) * (32 << 10)
            rank.kv_set(f"from/{me}", large)
            rank.kv_set(f"empty/{me}", b"")
            assert rank.kv_get(f"from/{other}") == bytes([other]) * (32 << 10)
            assert rank.kv_get(f"empty/{other}") == b""
            # A waiting get is woken by the other's set, and another thread may ask meanwhile.
            got = []
            waiting = threading.Thread(target=lambda: got.append(rank.kv_get(f"late/{other}")))
            waiting.start()
            rank.barrier("waiting", 2)
            rank.kv_set(f"late/{me}", b"now")
            waiting.join()
            assert got == [b"now"]
            try:
                rank.kv_get("nobody sets this", timeout=0.05)
                raise SystemExit("a key that nobody set")
            except Timeout:
                pass
            for call in (lambda: rank.kv_set("k", bytes((32 << 10) + 1)), lambda: rank.kv_set("k" * 300, b"")):
                try:
                    call()
                    raise SystemExit("a value or key too large")
                except Invalid:
                    pass
            rank.barrier("after", 2)
            print("MET", me, flush=True)
            rank.leave()
        """,
        world=2,
    )
    assert "MET 0" in out
    assert "MET 1" in out


def test_a_large_state_has_longer_to_attach(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two minutes for all were too few for an arena of more than a hundred gigabytes, which the node reserves page by page."""
    given: list[float] = []

    def wait(rank: Rank, op: str, call: object, timeout: float) -> None:
        given.append(timeout)
        raise InterruptedError

    monkeypatch.setattr(Rank, "_wait", wait)
    for registered in (0, 40 << 30):
        rank = object.__new__(Rank)
        rank._registered = registered
        with pytest.raises(InterruptedError):
            rank.attach()
    slots, pace = 4, 1 << 30  # bytes a second
    assert given[0] >= 60
    assert given[1] - given[0] >= slots * (40 << 30) / pace
