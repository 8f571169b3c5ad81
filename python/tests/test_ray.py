"""Actors of Ray are ranks of a job that has no launcher."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("ray", reason="ray is missing: see python/requirements-frameworks.txt")

from conftest import PATIENCE, ROOT, Daemon, Job


def driver(daemon: Daemon, program: Path, *args: str) -> Job:
    """A program that starts Ray for itself, and what Ray prints of its actors."""
    env = {
        **daemon.env, "REPLICAD": str(ROOT / "bin" / "replicad"), "OMP_NUM_THREADS": "1",
        "RAY_TMPDIR": str(daemon.dir), "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0", "RAY_COLOR_PREFIX": "0",
    }  # fmt: skip
    process = subprocess.Popen([sys.executable, str(program), *args], env=env, cwd=daemon.dir, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    job = Job.of(process, "ray", lambda: f"The daemon:\n{daemon.log}")
    daemon.jobs.append(job)
    return job


def ranks_at(daemon: Daemon, step: int) -> tuple[int, list[int]]:
    """Where the job begins next, and its processes by rank once it has committed a step there. Ray is late to print what actors print."""
    begins = int(json.loads(daemon.log.until('"event":"resumed"'))["step"])
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        (job,) = (job for job in json.loads(daemon.verb("status", *daemon.target, "--json"))["jobs"] if job["phase"] != "ended")
        if job["position"]["step"] >= step:
            return begins, [int(rank["pid"]) for rank in job["ranks"]]
    raise AssertionError(f"step {step} is not committed")


def test_an_actor_is_lost_and_made_again(own_daemon: Daemon) -> None:
    """The example, without a fault and with one: the losses are equal to the bit, and the other actor's process stays."""
    example = ROOT / "examples" / "frameworks" / "with_ray.py"
    plain = driver(own_daemon, example).done()
    own_daemon.log.until('"event":"ended"')
    run = driver(own_daemon, example)
    _, (survivor, lost) = ranks_at(own_daemon, 5)
    os.kill(lost, signal.SIGKILL)
    begins, (stayed, new) = ranks_at(own_daemon, 6)
    assert begins >= 5 and stayed == survivor and new != lost
    out = run.done()
    want, got = (re.findall(r"^losses (.*)", text, re.M) for text in (plain, out))
    assert want == got and len(want) == 1, out
    assert len(re.findall(r"rank 1 step 100 ", out)) == 1, out


# Actors whose method raises, without `inprocess`, and a driver that calls it again.
DRIVER = """
import os, sys
import ray, torch
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
import replicad


@ray.remote(max_restarts=-1)
class Actor:
    def __init__(self, rank, **options):
        connection = replicad.connect(job="fenced", rank=rank, dev=True, min_copies=1, **options)
        torch.manual_seed(1)
        self.model = torch.nn.Linear(4, 4)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.session = replicad.Session(self.model, self.optimizer, connection=connection)

    def pid(self):
        return os.getpid()

    def train(self, steps, dies=False):
        self.session.resume()
        for step in self.session.steps(steps):
            self.optimizer.zero_grad()
            self.model(torch.ones(2, 4)).sum().backward()
            with self.session.step():
                self.optimizer.step()
            self.session.commit(timeout=60)  # waits for the other one, as a collective does
            if dies and step == 5:
                os.kill(os.getpid(), 9)
        self.session.leave()
        return [p.tolist() for p in self.model.parameters()]


ray.init(num_cpus=4, include_dashboard=False)
try:
    ray.get(Actor.remote(0).pid.remote())
except ray.exceptions.ActorDiedError as err:
    print("ALONE", "this actor is in no placement group" in str(err), "pass world=" in str(err))
group = placement_group([{"CPU": 1}] * 2)
stays, lost = (Actor.options(scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=r)).remote(r) for r in range(2))
pid = ray.get(stays.pid.remote())
calls = {stays.train.remote(8): stays, lost.train.remote(8, dies=True): lost}
done = []
while calls:
    (call,), _ = ray.wait(list(calls), num_returns=1)
    actor = calls.pop(call)
    try:
        done.append(ray.get(call))
    except replicad.Fenced as err:
        print("FENCED", actor is stays, "epoch" in str(err))
        calls[actor.train.remote(8)] = actor
    except ray.exceptions.RayActorError:
        print("LOST", actor is lost)
        calls[actor.train.remote(8)] = actor
print("SAME PROCESS", ray.get(stays.pid.remote()) == pid)
print("EQUAL", len(done) == 2 and done[0] == done[1])
"""


def test_a_fenced_actor_raises_and_is_called_again(own_daemon: Daemon) -> None:
    program = own_daemon.dir / "driver.py"
    program.write_text(DRIVER)
    out = driver(own_daemon, program).done()
    for line in ("ALONE True True", "FENCED True True", "LOST True", "SAME PROCESS True", "EQUAL True"):
        assert re.search(f"^{line}$", out, re.M), f"no {line}:\n{out}"
