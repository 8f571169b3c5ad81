"""A model that a session has can be copied, saved whole and sent to other processes; what copies do is nobody's business."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is missing: sessions hold torch's state")

from conftest import Daemon, environment

COPIED = """
import copy, io, sys
import torch
import replicad

def weight(model, answers):
    model(torch.ones(1, 4))
    answers.put(float(model[0].weight.sum()))

def spawned(model):
    context = torch.multiprocessing.get_context("spawn")
    answers = context.Queue()
    process = context.Process(target=weight, args=(model, answers))
    process.start()
    answer = answers.get()
    process.join()
    return answer

def reloaded(model):
    kept = io.BytesIO()
    torch.save(model, kept)
    kept.seek(0)
    return torch.load(kept, weights_only=False)

def main():
    torch.manual_seed(1)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    session = replicad.Session(model=model, optimizer=optimizer)
    session.resume()
    averaged = torch.optim.swa_utils.AveragedModel(model)  # not the session's
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
        with session.step():
            optimizer.step()
            optimizer.zero_grad()
        averaged.update_parameters(model)
        for made in (averaged, copy.deepcopy(model), reloaded(model)):
            made(torch.ones(2, 4)).sum().backward()
            torch.optim.SGD(made.parameters(), lr=0.1).step()
        its = copy.deepcopy(optimizer)
        its.step()
        torch.save(optimizer, io.BytesIO())
    torch.compile(copy.deepcopy(model), fullgraph=True, backend="eager")(torch.ones(2, 4)).sum().backward()
    print("NOTICED", session.noticed)
    torch.save(model, sys.argv[1])
    print("SPAWNED", spawned(model) == float(model[0].weight.sum()))
    optimizer.param_groups[0]["lr"] = 0.5
    model(torch.ones(2, 4))  # the first forward since the step: those of copies are none
    print("NOTICED", *session.noticed)
    try:
        optimizer.step()
    except replicad.SessionState:
        print("REFUSED")
    session.leave()
    session.close()
    optimizer.step()
    print("HOOKS", len(model._forward_pre_hooks), len(optimizer._optimizer_step_pre_hooks))

if __name__ == "__main__":
    main()
"""

ELSEWHERE = """
import sys
sys.modules["replicad"] = None  # not to be imported
import torch
print(torch.load(sys.argv[1], weights_only=False)(torch.ones(1, 4)).shape)
"""


def test_copies_of_a_model(daemon: Daemon, tmp_path: Path) -> None:
    out = daemon.run(COPIED, str(tmp_path / "model.pt")).done()
    assert "NOTICED {}\n" in out
    assert "SPAWNED True\n" in out
    assert "NOTICED optim.groups[0].lr\n" in out
    assert "REFUSED\n" in out
    assert "HOOKS 0 0" in out
    elsewhere = subprocess.run([sys.executable, "-c", ELSEWHERE, str(tmp_path / "model.pt")], env=environment(), capture_output=True, text=True)
    assert elsewhere.stdout == "torch.Size([1, 4])\n", elsewhere.stderr
