"""The last step of a job is compared like any other: ranks that leave with different ones do it again."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("torch", reason="torch is missing: sessions hold torch's state")

from conftest import Daemon

PROGRAM = """
import os
import torch
import replicad

rank = int(os.environ["REPLICAD_RANK"])
model = torch.nn.Linear(8, 8)
with torch.no_grad():
    for p in model.parameters():
        p.fill_(0.5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
session = replicad.Session(model=model, optimizer=optimizer)
flipped = []

def train(call):
    start = session.resume()
    print("AT", rank, int(start), call.runs, flush=True)
    for step in range(start + 1, 6):
        model(torch.ones(1, 8)).square().sum().backward()
        with session.step():
            optimizer.step()
            if step == 5 and rank == 1 and not flipped:
                flipped.append(step)
                model.weight.data[0, 0] += 1e-3
        optimizer.zero_grad()
        if step < 5:
            session.commit()  # steps are faster than commits, and one that finds no free slot is not copied
    session.leave()

replicad.inprocess.wrap(session)(train)()
print("END", rank, repr(float(model.weight.detach().double().sum())), flush=True)
session.close()
"""


def test_a_last_step_that_differs_is_done_again(daemon: Daemon) -> None:
    import torch

    model = torch.nn.Linear(8, 8)
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        model(torch.ones(1, 8)).square().sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    out = daemon.run(PROGRAM, world=2).done()
    assert sorted(re.findall(r"^END .*$", out, re.M)) == [f"END {r} {float(model.weight.detach().double().sum())!r}" for r in (0, 1)], out
    assert sorted(re.findall(r"^AT .*$", out, re.M)) == ["AT 0 0 1", "AT 0 4 2", "AT 1 0 1", "AT 1 4 2"], out
