"""What a job's hyperparameters replace in those that the program was written with."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

from replicad._torch.hyper import arguments, replaced


def groups(o: torch.optim.Optimizer) -> list[dict[str, Any]]:
    return [{k: v for k, v in g.items() if k != "params"} for g in o.param_groups]


def adam(**more: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW([torch.nn.Parameter(torch.zeros(2))], **({"lr": 0.1, "weight_decay": 0.5} | more))


@pytest.mark.parametrize(
    ("ours", "theirs", "want"),
    [
        (adam(), adam(), ""),
        (adam(), adam(lr=0.001), "lr 0.1 of this program is replaced by 0.001 of the job"),
        (
            adam(),
            adam(lr=0.001, weight_decay=0.01),
            "lr 0.1 of this program is replaced by 0.001 of the job, weight_decay 0.5 of this program is replaced by 0.01 of the job",
        ),
        (adam(betas=(0.9, 0.99)), adam(betas=[0.9, 0.95]), "betas (0.9, 0.99) of this program is replaced by (0.9, 0.95) of the job"),
        (adam(lr=torch.tensor(0.1)), adam(lr=torch.tensor(0.2)), ""),
    ],
)
def test_groups(ours: torch.optim.Optimizer, theirs: torch.optim.Optimizer, want: str) -> None:
    assert replaced(groups(ours), groups(theirs), arguments(ours), scheduled=False) == want


def test_what_a_scheduler_changes_is_compared_by_where_it_began() -> None:
    ours, later, other = adam(), adam(), adam(lr=0.2)
    for o in (ours, later, other):
        torch.optim.lr_scheduler.OneCycleLR(o, max_lr=o.param_groups[0]["lr"], total_steps=10)
    later.param_groups[0] |= {"lr": 0.07, "betas": (0.87, 0.999)}
    assert replaced(groups(ours), groups(later), arguments(ours), scheduled=True) == ""
    assert replaced(groups(ours), groups(other), arguments(ours), scheduled=True) == "lr 0.004 of this program is replaced by 0.008 of the job"


class Counting(torch.optim.SGD):
    """Has counters in its groups."""

    def __init__(self, params: Any, **more: Any) -> None:
        super().__init__(params, **more)
        for g in self.param_groups:
            g["k"] = 0


def test_what_counts_is_no_hyperparameter() -> None:
    ours, theirs = (Counting([torch.nn.Parameter(torch.zeros(2))], lr=0.1) for _ in range(2))
    theirs.param_groups[0] |= {"k": 7, "momentum": 0.5}
    assert replaced(groups(ours), groups(theirs), arguments(ours), scheduled=False) == "momentum 0 of this program is replaced by 0.5 of the job"


PROGRAM = """
import json, logging, os, pathlib, signal, sys, torch, replicad

said = []
class Said(logging.Handler):
    def emit(self, record):
        said.append(record.getMessage())
logging.getLogger("replicad").addHandler(Said())

scheduled, mark = sys.argv[1] == "scheduled", pathlib.Path(sys.argv[2])
torch.manual_seed(1)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1 if mark.exists() else 0.001, weight_decay=0.5 if mark.exists() else 0.25)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2) if scheduled else ()
with replicad.Session(model, optimizer, scheduler=scheduler) as session:
    for step in range(session.resume() + 1, 9):
        model(torch.ones(1, 4)).sum().backward()
        with session.step():
            optimizer.step()
            optimizer.zero_grad()
            if scheduled:
                scheduler.step()
        if step == 5 and not mark.exists():
            session.commit()
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    print("SAID", json.dumps([x for x in said if "replaced" in x]))
"""


@pytest.mark.parametrize("how", ["plain", "scheduled"])
def test_it_is_said_at_a_resume(run: Callable[..., str], how: str, tmp_path: Any) -> None:
    out = run(PROGRAM, how, str(tmp_path / "mark"))
    said = json.loads(next(x for x in out.splitlines() if x.startswith("SAID ")).removeprefix("SAID "))
    changed = "lr 0.1 of this program is replaced by 0.001 of the job, weight_decay 0.5 of this program is replaced by 0.25 of the job"
    assert said == [f"replicad: optim: {changed} (session.resume(replace=('lr',)) has this program's stay)"]
