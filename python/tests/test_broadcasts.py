"""DDP begins a forward with rank 0's buffers or not, by what the forward before it was: a restart behind an evaluation makes no difference."""

from __future__ import annotations

import re
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn.modules.module import _global_forward_pre_hooks

from conftest import Daemon
from replicad._torch.broadcasts import Broadcasts

# Of two models one is registered as it is, and the other one as DDP has it. An evaluation follows each third step; the first of a restart begins behind one.
PROGRAM = """
import hashlib, os, pathlib, signal, sys
import torch, replicad
import torch.distributed as dist
from replicad.parallel import ddp
from replicad.store import init_process_group
from torch.nn.parallel import DistributedDataParallel

how, *faults = sys.argv[1:]
torch.set_num_threads(1)
torch.manual_seed(1)
rank, world = replicad.place()


def make():
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))


def at(moment):
    mark = pathlib.Path(f"{sys.argv[0]}-{moment}")
    if f"{rank}:{moment}" in faults and not mark.exists():
        mark.touch()
        if how == "inprocess":
            raise ValueError(moment)
        os.kill(os.getpid(), signal.SIGKILL)


bare, other = make(), make()
parameters = [*bare.parameters(), *other.parameters()]
if how != "inprocess":
    dist.init_process_group("gloo")
    other = ddp(other)
optimizer = torch.optim.SGD(parameters, lr=0.05)
session = replicad.Session(model=[bare, other], optimizer=optimizer, strict=True)


@replicad.inprocess.wrap(session, enabled=how == "inprocess")
def train(call):
    session.resume()
    if how == "inprocess":
        init_process_group(session)
    around = [m if isinstance(m, DistributedDataParallel) else ddp(m) for m in (bare, other)]
    for step in session.steps(8):
        if step in (4, 7):
            session.commit()  # so that the fault goes back no further than that
            at(step)
        x = torch.randn(4, 4, generator=torch.Generator().manual_seed(10 * step + rank))
        sum(m(x).square().mean() for m in around).backward()
        with session.step():
            optimizer.step()
            optimizer.zero_grad()
        if step % 3 == 0:
            with torch.no_grad():
                for m in around:
                    m(x)
        digests = [hashlib.sha256(b"".join(b.numpy().tobytes() for b in m.buffers())).hexdigest()[:8] for m in (bare, other)]
        print("AFTER", rank, step, *digests, flush=True)
    session.leave()


with session:
    train()
dist.destroy_process_group()
"""


def after(output: str) -> dict[tuple[str, str], str]:
    """The digests of both models' buffers, by rank and step: of one that was done twice the later ones."""
    return {(rank, step): digests for rank, step, digests in re.findall(r"AFTER (\d) (\d) (.*)", output)}


@pytest.fixture(scope="module")
def plain(daemon: Daemon) -> dict[tuple[str, str], str]:
    out = after(daemon.run(PROGRAM, "plain", world=2).done())
    assert len(out) == 16
    assert out["0", "5"] != out["1", "5"], "the ranks' statistics differ, or this shows nothing"
    return out


@pytest.mark.parametrize("how", ["killed", pytest.param("inprocess", marks=pytest.mark.long)])
def test_behind_an_evaluation(how: str, daemon: Daemon, plain: dict[tuple[str, str], str]) -> None:
    job = daemon.run(PROGRAM, how, "0:4", "1:7", world=2)
    out = job.done()
    assert len(re.findall("recovered: step [1-9]", out)) == 2, out
    assert after(out) == plain


def test_a_model_without_a_wrapper_leaves_nothing_behind() -> None:
    """A state of a world of several ranks is loaded by one rank alone."""
    model: Any = torch.nn.Linear(1, 1)
    broadcasts, before = Broadcasts(), len(_global_forward_pre_hooks)
    broadcasts.set({"model": model}, {"model": False, "another": True})
    assert (broadcasts.value(), len(_global_forward_pre_hooks)) == ({"model": False}, before + 1)
    broadcasts.forward({"model": model}, model)
    model(torch.ones(1))
    assert (broadcasts.value(), len(_global_forward_pre_hooks)) == ({"model": False}, before + 1)
    broadcasts.trained()
    assert (broadcasts.value(), len(_global_forward_pre_hooks)) == ({}, before)
