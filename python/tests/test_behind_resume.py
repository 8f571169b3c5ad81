"""What a program puts behind resume() into what is kept once, or is a forward's to change: frozen weights and the statistics of BatchNorm."""

from __future__ import annotations

import re
from typing import Any

import pytest

#: A frozen part whose BatchNorm counts on, and a head that is trained.
PROGRAM = """
import os, pathlib, signal, sys
import torch, replicad

HOW, STAGED, mark = sys.argv[1], sys.argv[2] == "staged", pathlib.Path(sys.argv[3])
torch.set_num_threads(1)
torch.manual_seed(1)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.back, self.norm, self.head = torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 2)
        self.back.requires_grad_(False)
        self.norm.requires_grad_(False)
    def forward(self, x):
        return self.head(self.norm(self.back(x)))


model = Net()
seen = {"back.weight": torch.full((6, 4), 0.25), "back.bias": torch.ones(6)}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
stats = {k: v.clone() for k, v in model.norm.state_dict().items()}
loader = replicad.data.Loader(torch.randn(64, 4, generator=torch.Generator().manual_seed(2)), batch_size=4, seed=1)
with replicad.Session(model, optimizer, data=loader, staging=STAGED) as session:
    at = session.resume()
    if HOW == "each":
        model.load_state_dict(seen, strict=False)
    if HOW == "guarded" and at == 0:
        model.load_state_dict(seen, strict=False)
    if HOW == "fresh":
        torch.nn.init.normal_(model.back.weight, generator=torch.Generator().manual_seed(os.getpid()))
    if HOW == "statistics":
        model.norm.load_state_dict(stats)
    batches = loader.endless()
    for step in session.steps(8):
        x = next(batches)
        value = model(x).square().mean()
        optimizer.zero_grad()
        value.backward()
        print("LOSS", step, value.item().hex(), flush=True)
        if step == 6 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        with session.step():
            optimizer.step()
    print("END", sum(v.double().sum() for v in model.state_dict().values()).item().hex(), "NOTICED", session.noticed, flush=True)
"""


def runs(daemon: Any, how: str, staged: str, fault: bool) -> Any:
    mark = daemon.dir / f"{how}-{staged}"
    if not fault:
        mark.touch()
    elif mark.exists():
        mark.unlink()
    return daemon.run(PROGRAM, how, staged, str(mark))


def losses(out: str) -> tuple[dict[str, str], set[str]]:
    return dict(re.findall(r"^LOSS (\d+) (.*)$", out, re.M)), set(re.findall(r"^END \S+ NOTICED .*$", out, re.M))


@pytest.mark.parametrize(("how", "staged"), [("guarded", "in place"), *(pytest.param(h, s, marks=pytest.mark.long) for h, s in [("guarded", "staged"), ("each", "in place")])])
def test_what_is_kept_once_is_kept_as_it_was_put_in_place(daemon: Any, how: str, staged: str) -> None:
    straight = runs(daemon, how, staged, False).done()
    assert straight.count("step 1: the job keeps more from here on, in epoch 2: model.back.weight and 1 more as put in place behind resume()") == 1, straight
    out = runs(daemon, how, staged, True).done()
    assert (out.count("recovered: step"), out.count("the job keeps more")) == (1, 1), out
    assert losses(out) == losses(straight), out
    assert "NOTICED {}" in out, out


@pytest.mark.parametrize("how", ["fresh", pytest.param("statistics", marks=pytest.mark.long)])
def test_a_process_that_takes_anothers_place_is_refused(daemon: Any, how: str) -> None:
    job = runs(daemon, how, "in place", True)
    assert job.wait() == 5, job.printed()
    names = {"fresh": "model.back.weight", "statistics": "model.norm.running_mean"}[how]
    assert re.search(rf"Mismatch: {names}.* changed between session.resume\(\) and the first forward: it was step \d's.*`if session.at == 0:`", job.printed()), job.printed()
