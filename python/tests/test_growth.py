"""Ranks whose regions grow between two steps, with a real daemon and launcher, without torch."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from conftest import PATIENCE, Daemon
from nodes import cluster

#: A rank that counts, as in test_rank.py, and has another region from a step on. Arguments: the last step, the step after which it grows, and
#: a step: once it or a later one is committed the rank says so and waits for the loss of a rank.
GROWS = """
import array, os, sys, zlib
from replicad import Fenced, Rank, Region
from replicad.errors import Refused

last, at = int(sys.argv[1]), int(sys.argv[2])
waits = int(sys.argv[3]) if len(sys.argv) > 3 else 0
memory = {"words": array.array("q", range(64)), "late": array.array("q", [7] * 1000), "own": array.array("q", [0])}

def regions(names):
    for name in names:
        address, n = memory[name].buffer_info()
        yield Region(name, address, 8 * n, dtype="int64", shape=(n,), **({"private": True, "changes": "any"} if name == "own" else {}))

def update(name, step):
    words = memory[name]
    for i in range(len(words)):
        words[i] = (words[i] * 6364136223846793005 + 1442695040888963407 + step) % 2**62 if i else step

with Rank.open() as rank:
    names = rank.recipe().decode().split() or ["words", "own"]
    print("REGISTERS", *names, flush=True)
    rank.register(regions(names))
    rank.attach()
    fresh, grown = False, False
    while True:
        order = rank.join()
        if order.initialise:
            rank.seal_initial()
            fresh = not order.step
            continue
        rank.load()
        rank.ready()
        print("RESUMED", order.step, order.source, "as", order.rank, "pid", os.getpid(), "with", len(names), flush=True)
        try:
            for step in range(order.step + 1, last + 1):
                if order.world > 1:
                    rank.barrier(f"step {step}", order.world)
                if step == at + 1 and "late" not in names:
                    wants = ["late", "words", "own"]
                    rank.commit(step - 1, unchanged=True)
                    print("GROWING", step - 1, flush=True)
                    rank.grow(regions(wants), " ".join(wants).encode())
                    names, grown = wants, True
                    print("GROWN", step - 1, flush=True)
                    break
                memory["own"][0] = 10000 * order.rank + step
                rank.step_enter(step)
                for name in names[:-1]:
                    update(name, step)
                rank.step_exit(step)
                if waits and (fresh or grown) and step > waits:
                    if rank.committed >= waits and order.rank == 0:  # who stops first keeps the other in the barrier, where it does not look
                        print("COMMITTED", rank.committed, flush=True)
                        rank.wait_fence()
                    rank.wait_fence(0.001)
            else:
                print("RESULT", order.rank, *[zlib.crc32(bytes(memory[n])) for n in sorted(names)], flush=True)
                rank.leave()
                break
        except Fenced:
            print("FENCED", flush=True)
            fresh = grown = False
"""


def result(out: str) -> list[str]:
    return sorted(re.findall(r"^RESULT .*$", out, re.M))


def test_two_ranks_grow_and_one_comes_back_grown(daemon: Daemon) -> None:
    """Without a restart, and what comes later is as if nothing had happened: a process that starts afterwards registers by the recipe."""
    want = daemon.run(GROWS, "300", "20", world=2).done()
    assert want.count("GROWN 20") == 2
    assert len(re.findall(r"RESUMED 20 own-ram as \d pid \d+ with 3", want)) == 2
    assert want.count("job grows at step 20: 1 regions more (7.8 KiB a rank)") == 1, want
    assert "is closed" not in want, want
    assert len(result(want)) == 2

    job = daemon.run(GROWS, "300", "20", "40", world=2)
    pids = [job.until("RESUMED 0 ").split()[6] for _ in range(2)]
    committed = int(job.until("COMMITTED").split()[-1])
    job.kill(pid=int(pids[0]))
    job.until("REGISTERS late words own")
    after = [job.until("RESUMED").split() for _ in range(2)]
    assert int(after[0][1]) >= committed
    assert {line[6] for line in after} & set(pids) == {pids[1]}
    assert result(job.done()) == result(want)


def test_killed_in_the_middle_of_a_growth(daemon: Daemon) -> None:
    """Whoever is killed while the others wait to grow: the growth comes back with the process, and no step is lost."""
    want = result(daemon.run(GROWS, "100", "20", world=2).done())
    dies = GROWS.replace(
        "rank.grow(regions(wants)",
        "os.kill(os.getpid(), 9) if order.rank == 1 and order.incarnation <= 2 else None; rank.grow(regions(wants)",
    )
    out = daemon.run(dies, "100", "20", world=2).done()
    assert "FENCED" in out
    assert re.search(r"RESUMED 20 own-ram as 1 pid \d+ with 2", out), out
    assert result(out) == want


@pytest.mark.parametrize("moment", ["seal_initial", "load", "ready"])
def test_killed_once_it_is_decided(daemon: Daemon, moment: str) -> None:
    """The growth is taken back: new processes go on at the step that was committed, with the regions of before, and grow again."""
    want = result(daemon.run(GROWS, "100", "20", world=2).done())
    dies = GROWS.replace(f"rank.{moment}()", f"os.kill(os.getpid(), 9) if grown and order.rank == 1 and order.incarnation <= 2 else rank.{moment}()")
    out = daemon.run(dies, "100", "20", world=2).done()
    least = 3 if moment == "seal_initial" else 4  # the other one may not have its arena yet, and then it has nothing to give up
    assert least <= out.count("REGISTERS words own") <= 4, out
    assert least <= out.count("GROWN 20") <= 4, out
    assert result(out) == want


def test_refusals(daemon: Daemon) -> None:
    """Nothing has changed, the epoch is open, and the text says which region it is."""
    other = (
        GROWS.replace('wants = ["late", "words", "own"]', 'wants = ["late", "words", "own"] if order.rank or grown is None else ["words", "late", "own"]')
        .replace(
            "rank.grow(regions(wants)",
            "try_grow(regions(wants)",
        )
        .replace(
            "with Rank.open() as rank:",
            """
def try_grow(r, recipe):
    global grown
    r = list(r)
    try:
        rank.grow(r, b"the same")
    except Refused as err:
        print("REFUSED", err, flush=True)
    wanted = ["late", "words", "own"]
    rank.grow(regions(wanted), " ".join(wanted).encode())

with Rank.open() as rank:""",
        )
    )
    out = daemon.run(other, "60", "20", world=2).done()
    assert out.count("REFUSED grow: ranks 0 and 1 of one group ask for different regions") == 2, out
    assert '"late" is extra' in out, out
    assert out.count("GROWN 20") == 2
    assert len(result(out)) == 2


@pytest.mark.parametrize("decided", [False, True])
def test_a_daemon_that_restarts_in_the_middle(own_daemon: Daemon, tmp_path: Path, decided: bool) -> None:
    """The ranks ask again, or seal their step for the next daemon, and the growth goes on."""
    want = result(own_daemon.run(GROWS, "100", "20", world=2).done())
    program = GROWS.replace(
        "with Rank.open() as rank:",
        f"""
def wait_for(rank):
    import time
    print("WAITS", rank, flush=True)
    while not os.path.exists({str(tmp_path / "go")!r}):
        time.sleep(0.01)

with Rank.open() as rank:""",
    )
    if decided:
        program = program.replace("rank.seal_initial()", "wait_for(1) if grown and order.rank else None; rank.seal_initial()")
    else:
        program = program.replace("rank.grow(regions(wants)", "wait_for(1) if order.rank else None; rank.grow(regions(wants)")
    job = own_daemon.run(program, "100", "20", world=2)
    job.until("WAITS 1")
    assert own_daemon.process is not None
    own_daemon.process.kill()
    own_daemon.log.rest()
    own_daemon.process.wait()
    own_daemon.start()
    (tmp_path / "go").touch()
    out = job.done()
    assert out.count("GROWN 20") == 2, out
    assert "FENCED" not in out
    assert result(out) == want


def test_goes_on_from_the_durable_tier(own_daemon: Daemon) -> None:
    """A durable generation from after a growth brings the recipe with it."""
    want = result(own_daemon.run(GROWS, "600", "20", world=2).done())
    job = own_daemon.run(GROWS, "600", "20", "40", world=2, name="kept", flags=("--durable-every", "5"))
    job.until("GROWN 20")
    job.until("COMMITTED")
    deadline = time.monotonic() + PATIENCE
    while not (written := re.search(r"^durable +\((\d+),(\d+)\)", own_daemon.verb("status", "--dev"), re.M)) or int(written[1]) < 2:
        assert time.monotonic() < deadline, "no generation of the growth is written"
    own_daemon.verb("job", "end", "kept", "--dev")
    job.wait()
    out = own_daemon.run(GROWS, "600", "20", world=2, name="kept", flags=("--durable-every", "5", "--resume")).done()
    assert out.count("REGISTERS late words own") == 2, out
    assert re.search(r"RESUMED [1-9]\d+ durable", out), out
    assert result(out) == want


def test_over_nodes_with_mirrors() -> None:
    """Each rank's parts lie on another node too, before and after the growth: a node that is lost afterwards costs no step."""
    with cluster("abc") as nodes:
        shared = ("--min-copies", "2", "--groups", "0,1")
        jobs = [nodes[n].run(GROWS, "400", "20", "60", world=2, name="over-nodes", flags=(*shared, "--ranks", r)) for n, r in (("a", "0"), ("b", "1"))]
        spare = nodes["c"].run(GROWS, "400", "20", "60", world=2, name="over-nodes", flags=(*shared, "--spare"))
        pids = [int(job.until("RESUMED 0 ").split()[6]) for job in jobs]
        for job in jobs:
            job.until("GROWN 20")
        grown = [job.until("RESUMED 20 own-ram") for job in jobs]
        assert all(line.endswith("with 3") for line in grown)
        committed = int(jobs[0].until("COMMITTED").split()[-1])
        nodes["b"].lose(pids[1])
        spare.until("REGISTERS late words own")
        assert int(spare.until("RESUMED").split()[1]) >= committed
        assert len(result(jobs[0].done()) + result(spare.done())) == 2


def test_a_node_is_lost_in_the_middle_of_a_growth() -> None:
    """What a mirror held before is there until the growth has resumed: the step that was committed is not lost with the only rank that had it."""
    waits = GROWS.replace(
        "rank.seal_initial()",
        "print('SEALS', order.rank, order.incarnation, flush=True) or (grown and order.rank and order.incarnation <= 2 and __import__('time').sleep(600)); rank.seal_initial()",
    )
    with cluster("abc") as nodes:
        shared = ("--min-copies", "2", "--groups", "0,1")
        jobs = [nodes[n].run(waits, "60", "20", world=2, name="lost", flags=(*shared, "--ranks", r)) for n, r in (("a", "0"), ("b", "1"))]
        spare = nodes["c"].run(waits, "60", "20", world=2, name="lost", flags=(*shared, "--spare"))
        pid = int(jobs[1].until("RESUMED 0 ").split()[6])
        for r, job in enumerate(jobs):
            job.until("GROWN 20")
            job.until(f"SEALS {r}")  # it has an arena of its own for the growth, which is to be given up
        nodes["b"].lose(pid)
        spare.until("REGISTERS words own")
        assert spare.until("RESUMED").split()[1:3] == ["20", "peer-ram"]
        spare.until("GROWN 20")
        out = jobs[0].done() + spare.done()
        assert len(result(out)) == 2
        assert jobs[0].out.seen.count("REGISTERS words own") == 2
