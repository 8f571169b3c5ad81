"""A rank that is lost in the middle of a ZeroRedundancyOptimizer's step, which sends parameters between ranks: the others are torn, go
back to the step before, and end with the weights of the undisturbed run."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is missing: the jobs are PyTorch programs")

import cluster
from conftest import Daemon

STEPS, BREAK = 12, 7
FLAGS = ("--steps", str(STEPS), "--width", "16", "--batch", "2", "--pace", "30ms")

#: zero.py, whose rank 1 breaks once, after its update and before it has sent it.
PROGRAM = f"""
import os, signal, sys, time, torch
from functools import partial
sys.path.insert(0, {str(cluster.EXAMPLES)!r})
import common, gpt, replicad, sharded, zero

what, folder = sys.argv[1:3]


class Broken(zero.ZeRO):
    def spread(self, args, world, model):
        model, computes, optimizer = super().spread(args, world, model)
        model.register_forward_pre_hook(lambda *_: self.waits())
        if common.torch.distributed.get_rank() == 1:
            self.steps = 0
            optimizer.optim.register_step_post_hook(lambda *_: self.updated(folder))
        return model, computes, optimizer

    def waits(self):
        "A step is copied if it finds a free slot: it does where commits are no further behind."
        session = replicad.session.current()
        while session is not None and not session.rank.fenced and session.committed < session.at - 2:
            time.sleep(0.001)

    def updated(self, folder):
        self.steps += 1
        if self.steps == {BREAK} and not os.path.exists(folder + "/broken"):
            open(folder + "/broken", "w").close()
            if what == "raise":
                raise ValueError("broken in the middle of the update")
            os.kill(os.getpid(), signal.SIGKILL)


sys.exit(common.main(partial(sharded.train, Broken()), gpt.arguments(micro=1, workers=0).parse_args(sys.argv[3:])))
"""


@pytest.fixture(scope="module")
def undisturbed() -> cluster.Result:
    return cluster.baseline("zero.py", 2, *FLAGS)


@pytest.mark.parametrize(("what", "more"), [pytest.param("kill", (), id="killed", marks=pytest.mark.long), pytest.param("raise", ("--inprocess",), id="raised in process")])
def test_lost_between_update_and_broadcast(daemon: Daemon, undisturbed: cluster.Result, tmp_path: Path, what: str, more: tuple[str, ...]) -> None:
    job = daemon.run(PROGRAM, what, str(tmp_path), *FLAGS, *more, world=2, flags=("--groups", "0,1"))
    got = cluster.Result(job.done())
    assert (tmp_path / "broken").exists()
    assert what == "raise" or "in _sync_params" in got.text, "rank 0 was waiting for rank 1's parameters, inside of its step"
    joined = {(e["rank"], e["step"], e["source"]) for e in got.events if e["event"] == "joined"}
    assert joined == {(0, 0, "fresh"), (1, 0, "fresh"), (0, BREAK - 1, "own-ram"), (1, BREAK - 1, "own-ram")}, got.text
    assert got.digests() == undisturbed.digests()
    assert len(got.digests()) == 2
