"""A node that is short of descriptors fails no rank: what goes there waits, or goes elsewhere."""

from __future__ import annotations

import errno
import os
import resource
import uuid
from pathlib import Path

import pytest

from conftest import Daemon
from nodes import Node, cluster
from replicad import Mismatch, NoMemory
from replicad._core import ending
from replicad.errors import Again, Refused

RANK = """
import ctypes, itertools, time
from replicad import Fenced, Rank, Region

weights = (ctypes.c_uint8 * 4096)()
with Rank.open() as rank:
    rank.register([Region("weights", ctypes.addressof(weights), 4096, shape=(4096,))])
    rank.attach()
    while True:
        order = rank.join()
        if order.initialise:
            rank.seal_initial()
            continue
        rank.load()
        try:
            rank.ready()
            print("OPEN", rank.number, order.step, order.source, flush=True)
            for step in itertools.count(order.step + 1):
                rank.step_enter(step)
                weights[0] = step % 256
                rank.step_exit(step)
                if step == order.step + 5:
                    rank.commit(step)
                    print("COMMITTED", rank.number, step, flush=True)
                time.sleep(0.02)
        except Fenced:
            continue
"""


def daemon_of(node: Node) -> int:
    """The process of a node's daemon."""
    wanted = f"daemon\0--config\0{node.target[1]}\0".encode()
    pids = [int(p.parent.name) for p in Path("/proc").glob("[0-9]*/cmdline") if wanted in _read(p)]
    assert len(pids) == 1, pids
    return pids[0]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def starve(pid: int) -> tuple[int, int]:
    """Leaves a process one descriptor; returns its limits."""
    used = max(int(fd) for fd in os.listdir(f"/proc/{pid}/fd")) + 1
    hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)[1]
    return resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 1, hard))


@pytest.mark.parametrize("then", ["it has some again", "another node has a process"])
def test_a_spare_without_descriptors_costs_no_job(then: str) -> None:
    with cluster("abc") as nodes:
        name = f"want-{uuid.uuid4().hex[:8]}"

        def run(node: str, *flags: str) -> Daemon:
            nodes[node].run(RANK, world=2, name=name, flags=("--min-copies", "2", *flags))
            return nodes[node]

        a, b = (run(node, "--ranks", rank).jobs[0] for node, rank in (("a", "0"), ("b", "1")))
        a.until("COMMITTED 0 5")
        c = run("c", "--spare", "--capacity", "1").jobs[0]
        pid = daemon_of(nodes["c"])
        limits = starve(pid)
        b.process.kill()  # its process dies with it
        said = c.until("node c is short of descriptors")
        assert "LimitNOFILE" in said, said
        for _ in range(2):  # the process waits, and is not started again and again
            c.until("node c is short of descriptors")
        if then == "it has some again":
            resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
            c.until("OPEN 1 5")
        else:
            run("b", "--spare", "--capacity", "1").jobs[-1].until("OPEN 1 5")
            resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        a.until("OPEN 0 5")
        for node in nodes.values():
            assert not any("do not requeue" in str(job.out) or "is done" in str(job.out) for job in node.jobs)
        nodes["a"].verb("job", "end", name, *nodes["a"].target)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOSPC, errno.EDQUOT])
def test_wants_of_a_program(number: int) -> None:
    err = RuntimeError("the loader failed")
    err.__cause__ = OSError(number, os.strerror(number))
    assert ending.of_a_want(err)


def test_what_is_no_want() -> None:
    assert all(map(ending.of_a_want, (Again(), NoMemory(), MemoryError(), RuntimeError("can't start new thread"))))
    assert not any(map(ending.of_a_want, (Refused(), Mismatch(), OSError(errno.ENOENT, "x"), RuntimeError("shape"), ImportError())))


def test_the_status_of_a_want(daemon: Daemon) -> None:
    """A program that was short of something is started again, more often than one that fails would be."""
    job = daemon.run(
        """
        import errno, os, sys
        import replicad.testing
        from replicad import Rank, Region
        with open(sys.argv[0] + ".starts", "a") as f:
            f.write(".")
        if os.path.getsize(sys.argv[0] + ".starts") <= 6:
            import replicad.session
            raise OSError(errno.ENOSPC, "no space left on device")
        print("ENOUGH", flush=True)
        sys.exit(0)
        """
    )
    job.until("ENOUGH")
    assert "ended with status 75" in str(job.out)
    daemon.verb("job", "end", job.name, "--dev")
    assert job.wait() != 5
