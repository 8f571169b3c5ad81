"""A job that has no state begins with the program's own checkpoint, and counts from its step."""

from __future__ import annotations

import re
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import replicad
from conftest import Daemon
from replicad import Invalid, Mismatch
from replicad._torch.memory import Memory
from replicad._torch.objects import Objects
from replicad._torch.reloaded import putting_back
from replicad._torch.staging import Staging
from replicad._torch.steps import step_of
from replicad._torch.trained import Trained

#: Trains from a checkpoint of its own, of step 500 or as the arguments say; kills itself once, between two steps.
PROGRAM = """
import os, pathlib, signal, sys
import torch, replicad
from replicad.data import Loader

last, fault, *steps = map(int, sys.argv[1:])
rank, world = replicad.place()
torch.set_num_threads(1)
torch.manual_seed(7 + rank)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loader = Loader(torch.utils.data.TensorDataset(torch.ones(128, 2)), 4, seed=1)
session = replicad.Session(model, optimizer, data=loader, shared_buffers=lambda name: True)


def load():
    "A checkpoint as people read it: it fills what is registered."
    print("LOADS", rank, flush=True)
    model.load_state_dict({"weight": torch.full((1, 2), 0.25), "bias": torch.full((1,), 0.5)})
    state = optimizer.state_dict()
    state["state"] = {i: {"momentum_buffer": torch.full_like(of["momentum_buffer"], 0.125)} for i, of in state["state"].items()}
    state["param_groups"][0]["lr"] = 0.01
    optimizer.load_state_dict(state)
    loader.load_state_dict(loader.state_dict() | {"epoch": 3, "used": 5})
    return steps[rank] if steps else 500


with session:
    at = session.resume(otherwise=load)
    momentum = optimizer.state[model.bias]["momentum_buffer"].item()
    print("AT", rank, int(at), at.source, session.at, loader.epoch, loader.used, optimizer.param_groups[0]["lr"], f"{model.bias.item():.6f} {momentum:.6f}", flush=True)
    batches = loader.endless()
    for step in session.steps(last):
        (x,) = next(batches)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        with session.step():
            optimizer.step()
        if step == fault:
            session.commit()
            mark = pathlib.Path(f"{sys.argv[0]}-{rank}")
            if rank == 1 and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
    session.save(wait=True)
    print("ENDS", rank, session.at, f"{model.bias.item():.6f}", flush=True)
"""


def test_a_job_counts_from_its_programs_checkpoint(own_daemon: Daemon) -> None:
    job = own_daemon.run(PROGRAM, "506", "503", world=2, flags=("--durable-every", "4"))
    job.done()
    out = job.printed()
    for rank in (0, 1):
        first, second = re.findall(rf"^AT {rank} (.*)", out, re.M)
        assert first == "500 otherwise 500 3 5 0.01 0.500000 0.125000"
        assert re.match(r"503 (own|peer)-ram 503 3 8 0.01 0\.\d+", second), second
    assert sorted(re.findall(r"^LOADS (\d)", out, re.M)) == ["0", "1"], "a job that has a state never asks for another"
    assert len(set(re.findall(r"^ENDS \d (506 .*)", out, re.M))) == 1
    listed = own_daemon.verb("ckpt", "ls", f"{own_daemon.dir}/replicad-dev/durable/{job.name}")
    kept = set(re.findall(r"\b50\d\b", listed))
    assert kept in ({"504", "506"}, {"505", "506"}), listed  # 504 is due; where its commit lapses on a slow machine, the next one is written in its stead
    again = own_daemon.run(PROGRAM, "508", "0", world=2, name=job.name, flags=("--resume", "--durable-every", "4"))
    again.done()
    out = again.printed()
    assert re.findall(r"^AT (\d) 506 durable 506 3 11 0.01", out, re.M) in (["0", "1"], ["1", "0"]), out
    assert "LOADS" not in out


def test_ranks_that_begin_at_different_steps_end_the_job(daemon: Daemon) -> None:
    job = daemon.run(PROGRAM, "506", "0", "500", "400", world=2)
    assert job.wait() == 5, job.printed()
    assert "rank 0 begins at step 500, rank 1 at step 400: what the program loads by itself must be of one step on all ranks (session.resume(otherwise=...))" in job.printed()


@pytest.mark.parametrize(
    "make", [torch.optim.AdamW, lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.1), capturable=False, foreach=False), lambda p: torch.optim.SGD(p, momentum=0.9)]
)
def test_registered_tensors_take_what_an_optimizer_loads(make: Any) -> None:
    """``load_state_dict`` makes new ones, which would be in no copy."""
    model = torch.nn.Linear(2, 2)
    optimizer = make(model.parameters())
    objects = Objects({"model": model, "optimizer": optimizer}, lambda name: False, False)
    trained = Trained(objects, Memory(Staging(objects.leaves, False, {})))
    other = torch.nn.Linear(2, 2)
    loaded = make(other.parameters())
    other(torch.ones(3, 2)).sum().backward()
    loaded.step()
    loaded.param_groups[0]["weight_decay"] = 0.5
    back = putting_back([optimizer])
    optimizer.load_state_dict(loaded.state_dict())
    with pytest.raises(Mismatch, match="was replaced by another tensor"):
        trained.check_places()
    back()
    trained.check_places()
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert optimizer.state[p].keys() == loaded.state[q].keys()
        assert all(torch.equal(torch.as_tensor(optimizer.state[p][k]), torch.as_tensor(v)) for k, v in loaded.state[q].items())
    assert optimizer.param_groups[0]["weight_decay"] == 0.5
    back = putting_back([optimizer])
    optimizer.load_state_dict(make(torch.nn.Linear(2, 2).parameters()).state_dict())
    back()
    trained.check_places()  # a checkpoint from before the first step has no state


def test_a_step_is_a_number() -> None:
    assert (step_of(0), step_of(torch.tensor(7))) == (0, 7)
    for wrong in (None, -1, 1.5, "latest", 1 << 38):
        with pytest.raises(Invalid, match=re.escape(f"otherwise returned {wrong!r}: want the step of the checkpoint")):
            step_of(wrong)


def test_alone_it_goes_on_from_its_own_checkpoint() -> None:
    model = torch.nn.Linear(2, 1)
    session = replicad.Session(model, torch.optim.SGD(model.parameters(), lr=0.1), enabled=False)
    calls: list[int] = []
    at = session.resume(otherwise=lambda: calls.append(1) or 40)  # type: ignore[func-returns-value]
    assert (at, at.source, list(session.steps(42))) == (40, "otherwise", [41, 42])
    assert session.resume(otherwise=lambda: calls.append(1) or 40) == 42 and calls == [1]  # type: ignore[func-returns-value]
