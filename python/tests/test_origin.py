"""A rank of a new run that begins at the step of another run's generation, with a real daemon and launcher, without torch."""

from __future__ import annotations

import re

from conftest import Daemon

#: A rank that says where it begins, and after the step that is its argument what is committed.
BEGINS = """
import array, sys
from replicad import Fenced, Rank, Region

memory = array.array("q", range(64))
with Rank.open() as rank:
    origin = rank.origin()
    address, n = memory.buffer_info()
    rank.register([Region("words", address, 8 * n, dtype="int64", shape=(n,))])
    rank.attach()
    while True:
        order = rank.join()
        if order.initialise:
            print("BEGINS", order.step, "of", origin and (origin["job"], origin["world"], origin["generation"]["step"]), flush=True)
            memory[0] = order.step
            rank.seal_initial()
            continue
        rank.load()
        rank.ready()
        assert memory[0] == order.step
        print("LOADED", order.step, order.source, flush=True)
        try:
            for step in range(order.step + 1, order.step + int(sys.argv[1]) + 1):
                if order.world > 1:
                    rank.barrier(f"step {step}", order.world)
                rank.step_enter(step)
                memory[0] = step
                rank.step_exit(step)
            rank.leave()
            break
        except Fenced:
            pass
"""


def test_a_run_begins_where_another_was(own_daemon: Daemon) -> None:
    """In another world, and once: what a rank asks for says which generation it is, and a run of its own has none."""
    first = own_daemon.run(BEGINS, "7", name="first", flags=("--durable-every", "1")).done()
    assert "BEGINS 0 of None" in first
    root = own_daemon.dir / "replicad-dev" / "durable"
    out = own_daemon.run(BEGINS, "3", name="second", world=2, flags=("--durable-every", "1", "--from", f"{root}/first@last")).done()
    assert re.findall(r"^BEGINS .*", out, re.M) == ["BEGINS 7 of ('first', 1, 7)"] * 2
    assert f"from: step 7 of file://{root}/first (world 1, now 2)" in out
    again = own_daemon.run(BEGINS, "1", name="second", world=2, flags=("--resume", "--from", f"{root}/first@last")).done()
    assert "BEGINS" not in again
    assert again.count("LOADED 10 durable") == 2
