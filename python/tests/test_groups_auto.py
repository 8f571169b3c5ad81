"""`replicad run --groups auto`: a job whose ranks name their replica groups, without torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from conftest import PATIENCE, Daemon

#: Each rank names the group that stands at its place in the first argument, registers as many words as there in the second, and counts
#: steps up to the third. A rank that is refused says why.
COUNT = """
import array, os, signal, sys
from replicad import Fenced, Rank, Refused, Region

names, sizes = ([int(n) for n in a.split(",")] for a in sys.argv[1:3])
last = int(sys.argv[3])
rank = Rank.open()
print("OPENED", rank.number, rank.group, rank.groups, os.getpid(), flush=True)
if rank.group is None:
    rank.name_group(names[rank.number])
words = array.array("q", [0] * sizes[rank.number])
rank.register([Region("words", words.buffer_info()[0], 8 * len(words), dtype="int64", shape=(len(words),))])
try:
    rank.attach()
except Refused as err:
    print("REFUSED", rank.number, err, flush=True)
    signal.pause()  # until the test ends the job, which would end by itself where each process of a rank did
while True:
    order = rank.join()
    if order.initialise:
        words[1] = rank.group
        rank.seal_initial()
        continue
    try:
        rank.load()
        rank.ready()
        assert words[0] == order.step and words[1] == rank.group == order.group, (list(words), order)
        print("RESUMED", rank.number, order.step, order.source, flush=True)
        for step in range(order.step + 1, last + 1):
            rank.barrier(f"step {step}", order.world)
            rank.step_enter(step)
            words[0] = step
            rank.step_exit(step)
            if step == 20 and order.epoch == 1:  # all ranks wait for the loss of one
                rank.wait_fence()
        rank.leave()
        break
    except Fenced:
        continue
rank.close()
print("DONE", rank.number, rank.group, flush=True)
"""
AUTO = ("--groups", "auto")


def test_a_rank_is_lost(daemon: Daemon) -> None:
    job = daemon.run(COUNT, "0,1,0,1", "4,8,4,8", "40", world=4, flags=AUTO)
    opened = [job.until("OPENED").split() for _ in range(4)]
    assert sorted(words[2:4] for words in opened) == [["None", "None"]] * 4
    for _ in range(4):
        job.until("RESUMED")
    ranks = json.loads(daemon.verb("status", "--dev", "--json"))["jobs"]
    groups = {r["rank"]: r["group"] for j in ranks if j["name"] == job.name for r in j["ranks"]}
    assert groups == {0: 0, 1: 1, 2: 0, 3: 1}
    lost = next(words for words in opened if words[1] == "1")
    job.kill(pid=int(lost[-1]))
    assert " 1 1 (0, 1, 0, 1) " in job.until("OPENED")  # its successor is told what its group is
    out = job.done()
    assert sorted(line for line in out.splitlines() if line.startswith("DONE")) == ["DONE 0 0", "DONE 1 1", "DONE 2 0", "DONE 3 1"]


def test_names_that_are_no_groups(daemon: Daemon) -> None:
    job = daemon.run(COUNT, "0,0,3,3", "4,4,4,4", "1", world=4, flags=AUTO)
    text = job.until("REFUSED")
    assert "the ranks name the groups [0 0 3 3]: group 1 has no rank" in text
    daemon.verb("job", "end", job.name, "--dev")
    job.wait()


def test_ranks_of_a_group_that_differ(daemon: Daemon) -> None:
    """What differs is said by name, and the rank that would have been second has nothing."""
    job = daemon.run(COUNT, "0,0", "4,8", "1", world=2, flags=AUTO)
    text = job.until("REFUSED")
    assert "ranks 0 and 1 both name group 0, but their regions have geometries" in text
    assert '"words" has shape' in text
    daemon.verb("job", "end", job.name, "--dev")
    job.wait()


def test_a_rank_without_a_group(daemon: Daemon) -> None:
    job = daemon.run(COUNT.replace("rank.name_group(names[rank.number])", "pass"), "0", "4", "1", flags=AUTO)
    assert "rank 0 of job" in (text := job.until("REFUSED"))
    assert "does not say its replica group: name it before attaching" in text
    daemon.verb("job", "end", job.name, "--dev")
    job.wait()


def test_under_another_launcher(daemon: Daemon, tmp_path: Path) -> None:
    """`replicad exec` leaves it to the ranks too."""
    path = tmp_path / "count.py"
    path.write_text(COUNT)
    name = f"auto-{os.getpid()}"
    command = [str(daemon.program), "exec", "--dev", "--job", name, "--world", "1", "--min-copies", "1", "--groups", "auto", "--", sys.executable, str(path), "0", "4"]
    env = daemon.env | {"RANK": "0", "WORLD_SIZE": "1"}
    for last in ("3", "5"):
        done = subprocess.run([*command, last], env=env, cwd=daemon.dir, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "OPENED 0 None None" in done.stdout
        assert "DONE 0 0" in done.stdout
