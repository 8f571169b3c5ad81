"""What copies lack is said where people look: by status, the launcher, and whoever goes on from disk."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path

from conftest import PATIENCE, Daemon

#: A rank that counts. Arguments: the last step, what its copies lack from step 2 on, and a file for which it waits before it leaves.
COUNT = """
import array, os, sys
from replicad import Rank, Region

last, lacks, file = int(sys.argv[1]), sys.argv[2], sys.argv[3]
words = array.array("q", [0] * 64)
with Rank.open() as rank:
    rank.register([Region("words", words.buffer_info()[0], 8 * len(words), dtype="int64", shape=(len(words),))])
    rank.attach()
    order = rank.join()
    if order.initialise:
        rank.seal_initial()
        order = rank.join()
    rank.load()
    rank.ready()
    for step in range(order.step + 1, last + 1):
        rank.barrier(f"step {step}", order.world)
        if step == 2:
            rank.lacks(lacks)
            rank.lacks(lacks)
        rank.step_enter(step)
        words[0] = step
        rank.step_exit(step)
    rank.commit(last)
    print("AT", words[0], flush=True)
    while file and not os.path.exists(file):
        rank.wait_fence(0.01)
    rank.leave()
"""


def durable(daemon: Daemon, step: int) -> str:
    """What status says once the step is durable."""
    end = time.monotonic() + PATIENCE
    while not re.search(rf"^durable +\(\d+,{step}\)", status := daemon.verb("status", "--dev"), re.M):
        assert time.monotonic() < end, f"step {step} is not written:\n{status}"
    return status


def launchers(out: str) -> list[str]:
    """The lines of a launcher on what is lacking."""
    return re.findall(r"^replicad run: .* lacks .*$", out, re.M)


def test_said_where_people_look(own_daemon: Daemon, tmp_path: Path) -> None:
    daemon, name = own_daemon, f"lacks-{os.getpid()}"
    flags = ("--durable-every", "1")
    job = daemon.run(COUNT, "4", "model.teacher.0.weight", str(tmp_path / "looked"), world=2, name=name, flags=flags)
    job.until("AT 4")
    job.until("AT 4")
    status = durable(daemon, 4)
    assert re.search(r"^lacks +rank 0 and 1 more: model\.teacher\.0\.weight: a restart is not the same run$", status, re.M), status
    (of,) = json.loads(daemon.verb("status", "--dev", "--json"))["jobs"]
    assert of["lacks"] == [{"rank": 0, "more": 1, "text": "model.teacher.0.weight"}]
    (tmp_path / "looked").touch()
    said = launchers(job.done())
    assert len(said) == 1, said
    assert re.fullmatch(
        r"replicad run: step [1-4] lacks model\.teacher\.0\.weight \(rank [01](?: and 1 more)?\): a restart from it is not the same run; session\.noticed says what to do", said[0]
    ), said

    # A process that goes on from there begins without it; what it writes lacks nothing.
    out = daemon.run(COUNT, "6", "", "", world=2, name=name, flags=("--resume", *flags)).done()
    want = "replicad run: warning: step 4, which the job goes on from, lacks model.teacher.0.weight (rank 0 and 1 more): this is not the same run; session.noticed says what to do"
    assert launchers(out) == [want], out
    assert "AT 6" in out
    out = daemon.run(COUNT, "7", "", "", world=2, name=name, flags=("--resume", *flags)).done()
    assert launchers(out) == [], out
    assert "AT 7" in out
