"""Hyperparameters that a program asks to have in the place of its job's."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler as schedules

import replicad
from replicad._torch.derived import Derived
from replicad._torch.objects import Objects
from replicad._torch.replacing import Replacing


def objects(optimizer: Any, scheduler: Any = ()) -> Objects:
    given = {"model": (), "optimizer": optimizer, "scheduler": scheduler, "scaler": (), "data": (), "extra": None}
    return Objects(given, lambda name: False, True, derived=Derived(None))


def sgd(lr: Any, **more: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=lr, momentum=0.9, **more)


class Program:
    """As a process begins it, with a rate."""

    def __init__(self, lr: Any, make: Callable[[Any, float], Any] | None, **more: Any) -> None:
        self.optimizer = sgd(lr, **more)
        self.scheduler = make(self.optimizer, lr) if make else None
        self.objects = objects(self.optimizer, self.scheduler if make else ())
        self.replacing = Replacing()

    def resumes(self, job: Program, step: int, *names: str) -> None:
        common, own = job.objects.common(), {"replaced": job.replacing.kept}
        self.replacing.asks(self.objects, names)
        self.objects.set_common(common)
        self.objects.set_objects(job.objects.objects())
        self.replacing.loaded(own, step, self.objects)

    def rates(self, n: int) -> list[float]:
        out = []
        for _ in range(n):
            self.optimizer.step()
            if isinstance(self.scheduler, schedules.ReduceLROnPlateau):
                self.scheduler.step(1.0)
            elif self.scheduler is not None:
                self.scheduler.step()
            out.append(self.optimizer.param_groups[0]["lr"])
        return out


SCHEDULES: dict[str, Callable[[Any, float], Any]] = {
    "step": lambda o, lr: schedules.StepLR(o, 3),
    "lambda": lambda o, lr: schedules.LambdaLR(o, lambda n: min(n / 4, 1.0)),
    "exponential": lambda o, lr: schedules.ExponentialLR(o, 0.9),
    "cosine": lambda o, lr: schedules.CosineAnnealingLR(o, 20, eta_min=0.001),
    "restarts": lambda o, lr: schedules.CosineAnnealingWarmRestarts(o, 6, eta_min=0.001),
    "polynomial": lambda o, lr: schedules.PolynomialLR(o, 20, power=2.0),
    "one cycle": lambda o, lr: schedules.OneCycleLR(o, max_lr=lr, total_steps=20),
    "cyclic": lambda o, lr: schedules.CyclicLR(o, base_lr=lr / 10, max_lr=lr, step_size_up=4),
    "in a row": lambda o, lr: schedules.SequentialLR(o, [schedules.LinearLR(o, 0.1, total_iters=3), schedules.CosineAnnealingLR(o, 15)], [3]),
    "chained": lambda o, lr: schedules.ChainedScheduler([schedules.LinearLR(o, 0.1, total_iters=3), schedules.ExponentialLR(o, 0.9)]),
}


@pytest.mark.parametrize("at", [2, 7])
@pytest.mark.parametrize("how", SCHEDULES)
def test_a_schedule_goes_on_from_the_new_rate_as_if_it_had_begun_with_it(how: str, at: int) -> None:
    job, other, new = (Program(lr, SCHEDULES[how]) for lr in (0.1, 0.04, 0.04))
    job.rates(at)
    other.rates(at)
    new.resumes(job, at, "lr")
    assert new.optimizer.param_groups[0]["lr"] == pytest.approx(other.optimizer.param_groups[0]["lr"])
    assert new.rates(10) == pytest.approx(other.rates(10))
    assert new.replacing.moved
    assert f"step {at}: optim: lr " in new.replacing.kept["said"], new.replacing.kept


@pytest.mark.parametrize("how", ["step", "one cycle", "none", "plateau"])
def test_the_same_file_again_changes_nothing(how: str) -> None:
    make = {**SCHEDULES, "none": None, "plateau": lambda o, lr: schedules.ReduceLROnPlateau(o, patience=1)}[how]
    job, new = Program(0.1, make), Program(0.04, make)
    job.rates(2)
    new.resumes(job, 2, "lr")
    new.rates(5)
    if make is None:
        new.optimizer.param_groups[0]["lr"] = 0.007  # by hand
    once_more = Program(0.04, make)
    once_more.resumes(new, 7, "lr")
    assert once_more.optimizer.param_groups[0]["lr"] == new.optimizer.param_groups[0]["lr"]
    assert once_more.rates(6) == new.rates(6)
    assert not once_more.replacing.moved
    assert once_more.replacing.kept == new.replacing.kept
    edited = Program(0.02, make)
    edited.resumes(new, 13, "lr")
    assert edited.replacing.moved
    without = Program(0.3, make)
    without.resumes(edited, 13)
    assert without.replacing.kept == edited.replacing.kept


def test_a_file_that_always_asks() -> None:
    first, again = Program(0.1, None), Program(0.1, None)
    first.resumes(first, 0, "lr")
    first.optimizer.param_groups[0]["lr"] = 0.03  # by hand
    again.resumes(first, 6, "lr")
    assert again.optimizer.param_groups[0]["lr"] == 0.03
    assert not first.replacing.moved
    assert not again.replacing.moved


def test_a_copy_that_has_it_in_part_is_mended() -> None:
    """Survivors of a fault have the new rate in what ranks share, and a rank that is new has none of it in what is its own."""
    job, new, another = (Program(lr, SCHEDULES["step"]) for lr in (0.1, 0.04, 0.04))
    job.rates(7)
    new.resumes(job, 7, "lr")
    rate = new.optimizer.param_groups[0]["lr"]
    new.replacing.kept = {"asked": {}, "said": ""}
    another.resumes(new, 7, "lr")
    assert another.optimizer.param_groups[0]["lr"] == rate
    assert not another.replacing.moved


def test_what_is_not_asked_for_stays_the_jobs() -> None:
    job, new = Program(0.1, None, weight_decay=0.5), Program(0.04, None, weight_decay=0.25)
    new.resumes(job, 3, "weight_decay")
    assert (new.optimizer.param_groups[0]["lr"], new.optimizer.param_groups[0]["weight_decay"]) == (0.1, 0.25)
    assert new.replacing.notes() == {"replaced": "step 3: optim: weight_decay 0.5 of the job is replaced by 0.25 of this program"}


class Own:
    """A scheduler that is none of torch's."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer, self.peak = optimizer, 0.1

    def state_dict(self) -> dict[str, Any]:
        return {"peak": self.peak}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.peak = state["peak"]


@pytest.mark.parametrize(
    ("make", "names", "want"),
    [
        (lambda: objects(sgd(0.1)), ("rate",), r"'rate' is no hyperparameter of optim: want one of .*\blr\b.*momentum"),
        (lambda: objects(sgd(0.1)), "lr", r"want names of hyperparameters, as replace=\('lr',\)"),
        (lambda: objects(sgd(0.1)), (3,), "want names of hyperparameters"),
        (lambda: objects(sgd(0.1)), ("params",), "'params' is no hyperparameter"),
        (lambda: objects(()), ("lr",), "as there is none"),
        (lambda: objects(sgd(float("nan"))), ("lr",), "lr of optim is nan, which is no finite number"),
        (
            lambda: objects(torch.optim.Adam([torch.nn.Parameter(torch.zeros(2))], lr=torch.tensor(0.1), capturable=False, foreach=False)),
            ("lr",),
            "lr of optim is tensor.* no finite",
        ),
        (lambda: objects(o := sgd(0.1), Own(o)), ("lr",), "lr of optim is set by scheduler, which is none of torch's schedulers"),
    ],
)
def test_refused(make: Callable[[], Objects], names: Any, want: str) -> None:
    with pytest.raises(replicad.Invalid, match=want):
        Replacing().asks(make(), names)


PROGRAM = """
import json, logging, os, pathlib, signal, sys, torch, replicad

said = []
class Said(logging.Handler):
    def emit(self, record):
        said.append(record.getMessage())
logging.getLogger("replicad").addHandler(Said())

mark, again = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
torch.manual_seed(1)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.4 if mark.exists() else 0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
loader = replicad.data.Loader(torch.ones(400, 4), batch_size=4)
with replicad.Session(model, optimizer, scheduler=scheduler, data=loader) as session:
    at = session.resume(replace=("lr",) if mark.exists() else ())
    print("RATE", json.dumps([at, optimizer.param_groups[0]["lr"], [x for x in said if "replace" in x]]), flush=True)
    for batch in loader.endless():
        model(batch).sum().backward()
        with session.step() as step:
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
        if step in (3, 6) and not (place := mark if step == 3 else again).exists():
            session.save(wait=True)
            place.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if step == 8:
            break
    session.save(wait=True)
    print("END", json.dumps([optimizer.param_groups[0]["lr"], session.noticed]))
"""


def test_it_is_asked_for_once_and_in_the_commit(daemon: Any, tmp_path: pathlib.Path) -> None:
    name = f"replacing-{tmp_path.name}".replace("_", "-")
    out = daemon.run(PROGRAM, str(tmp_path / "mark"), str(tmp_path / "again"), name=name, flags=("--durable-every", "0")).done()
    rates = [json.loads(x.removeprefix("RATE ")) for x in out.splitlines() if x.startswith("RATE ")]
    want = "step 3: optim: lr 0.1 of the job is replaced by 0.4 of this program"
    assert [at for at, _, _ in rates] == [0, 3, 6], out
    assert [lr for _, lr, _ in rates] == pytest.approx([0.1, 0.04, 0.0004])
    assert [said for _, _, said in rates] == [[], [f"replicad: {want}, as replace= asks"], []]
    lr, noticed = json.loads(next(x for x in out.splitlines() if x.startswith("END ")).removeprefix("END "))
    assert lr == pytest.approx(0.4 * 0.1**4)
    assert noticed == {}, out
    where = f"{daemon.dir}/replicad-dev/durable/{name}"
    assert want in daemon.verb("ckpt", "show", f"{where}@8"), daemon.verb("ckpt", "show", f"{where}@8")
