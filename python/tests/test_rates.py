"""Numbers of an optimizer's groups that a program writes between resume() and the first step: refused where that undoes the job's, and quiet where a loop writes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler as schedules

import replicad
from replicad._torch import later
from replicad._torch.derived import Derived
from replicad._torch.objects import Objects
from replicad._torch.rates import Rates

#: What a life of a program writes: behind resume(), between two steps and in a step's block.
Writes = Callable[["Life"], object]


def nothing(_: Life) -> None:
    pass


class Copy:
    """Of a step: what the commit has."""

    def __init__(self, step: int, common: Any, seen: str) -> None:
        self.step, self.common, self.seen = step, common, seen


class Life:
    """A process of a job."""

    def __init__(
        self,
        *,
        make: Callable[[Any], Any] | None = None,
        behind: Writes = nothing,
        top: Writes = nothing,
        block: Writes = nothing,
        data: Any = (),
        asked: bool = False,
        optimizer: Callable[[Any], Any] = lambda p: torch.optim.AdamW([{"params": p[:1]}, {"params": p[1:], "weight_decay": 0.0}], lr=0.1),
    ) -> None:
        self.optimizer = optimizer([torch.nn.Parameter(torch.zeros(2)) for _ in range(2)])
        self.scheduler = make(self.optimizer) if make else None
        given = {"model": (), "optimizer": self.optimizer, "scheduler": () if self.scheduler is None else self.scheduler, "scaler": (), "data": data, "extra": None}
        self.objects = Objects(given, lambda name: False, True, derived=Derived(None))
        self.rates, self.said = Rates(), list[str]()
        self.rates.keep(self.objects)
        self.writes, self.asked, self.at = (behind, top, block), asked, 0

    def set(self, **values: Any) -> None:
        for g in self.optimizer.param_groups:
            for k, v in values.items():
                if isinstance(g[k], torch.Tensor):
                    g[k].fill_(v)
                else:
                    g[k] = v

    def lives(self, steps: int, copy: Copy | None = None, fresh: bool = False) -> Copy:
        behind, top, block = self.writes
        if copy is not None:
            self.at = copy.step
            self.objects.set_common(copy.common)
        self.rates.loaded(copy.seen if copy else "", self.at, fresh or copy is None)
        behind(self)
        for _ in range(steps):
            top(self)
            self.rates.begins(self.at, self.asked, lambda name, text: self.said.append(text))
            self.at += 1
            block(self)
            for g in self.optimizer.param_groups:
                for p in g["params"]:
                    p.grad = torch.ones_like(p)
            self.optimizer.step()
            if self.scheduler is not None:
                self.scheduler.step()
            self.rates.ended()
        return Copy(self.at, self.objects.common(), self.rates.text)


def halved(o: Any) -> Any:
    return schedules.StepLR(o, 3, 0.5)


def rate(lr: float) -> Writes:
    return lambda life: life.set(lr=lr)


@pytest.mark.parametrize("at", [4, 5, 9])
@pytest.mark.parametrize("first", [0.02, 0.1])
def test_a_rate_that_undoes_what_a_schedule_has_done_is_refused(at: int, first: float) -> None:
    life = Life(make=halved, behind=rate(first))
    copy = life.lives(at)
    with pytest.raises(replicad.Mismatch, match=rf"^lr of optim was {first / 2 ** (at // 3)} in step {at}, .* and is {first} before.*`if session.at == 0:`.*replace=\('lr',\)"):
        Life(make=halved, behind=rate(first)).lives(1, copy)
    if first == 0.02:  # of another than the optimizer was made with, the first life says so as soon as a schedule moves it
        assert len(life.said) == 1
        assert "lr of optim was written between session.resume() and the first step" in life.said[0]
    else:
        assert life.said == []


@pytest.mark.parametrize(("name", "value", "other"), [("weight_decay", 0.3, 0.1), ("betas", (0.8, 0.9), (0.5, 0.9)), ("eps", 1e-4, 1e-3)])
def test_other_numbers_are_held_too(name: str, value: Any, other: Any) -> None:
    def moves(life: Life) -> None:
        if life.at == 3:
            life.set(**{name: other})

    job: dict[str, Any] = {"behind": lambda life: life.set(**{name: value}), "block": moves}
    with pytest.raises(replicad.Mismatch, match=f"^{name} of optim was .* in step 5.*replace=.'{name}'"):
        Life(**job).lives(1, Life(**job).lives(5))


def test_after_a_second_resume_too() -> None:
    job: dict[str, Any] = {"make": halved}
    copy = Life(**job, behind=rate(0.02)).lives(2)
    copy = Life(**job, behind=rate(0.02)).lives(4, copy)  # equal bytes
    with pytest.raises(replicad.Mismatch, match="lr of optim"):
        Life(**job, behind=rate(0.02)).lives(1, copy)


def by_step(life: Life) -> None:
    "As nanoGPT's get_lr(it): it warms up, and goes down."
    it = life.at
    life.set(lr=0.02 * min((it + 1) / 4, 1.0) * (1.0 if it < 8 else 0.5))


def cyclic(life: Life) -> None:
    "By epoch, of five steps, and the first epoch's again in the third."
    if life.at % 5 == 0:
        life.set(lr=0.02 if life.at // 5 % 2 == 0 else 0.002)


def by_epoch(life: Life) -> None:
    "A process that begins in the middle of an epoch sets its rate, too."
    life.set(lr=0.02 * 0.5 ** (life.at // 5))


def warms(life: Life) -> None:
    "By hand, in each step of the first ones."
    if life.at < 6:
        life.set(lr=0.02 * (life.at + 1) / 6)


def made_behind(make: Callable[[Any], Any]) -> Writes:
    def behind(life: Life) -> None:
        life.made = make(life.optimizer)  # type: ignore[attr-defined]

    return behind


QUIET: dict[str, dict[str, Any]] = {
    "by step": {"top": by_step},
    "by step, in the block": {"block": by_step},
    "by step, a tensor": {"top": by_step, "optimizer": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.1), foreach=False)},
    "by epoch": {"top": by_epoch},
    "by epoch, behind resume": {"behind": by_epoch, "top": by_epoch},
    "by epoch, in turns": {"top": cyclic},
    "a warm-up by hand": {"top": warms},
    "a warm-up by hand, and a scheduler": {"top": warms, "make": lambda o: schedules.StepLR(o, 7, 0.5)},
    "a constant": {"behind": rate(0.02)},
    "a constant before each step": {"top": rate(0.02)},
    "a scheduler's": {"make": halved},
    "one cycle": {"make": lambda o: schedules.OneCycleLR(o, 0.02, total_steps=40)},
    "under the step alone": {"make": halved, "behind": lambda life: life.set(lr=0.02) if life.at == 0 else None, "asked": True},
    "LambdaLR, made behind": {"behind": made_behind(lambda o: schedules.LambdaLR(o, lambda n: 0.5))},
    "OneCycleLR, made behind": {"behind": made_behind(lambda o: schedules.OneCycleLR(o, 0.02, total_steps=40))},
    "in a row, made behind": {"behind": made_behind(lambda o: schedules.SequentialLR(o, [schedules.LinearLR(o, 0.1, total_iters=3), schedules.ExponentialLR(o, 0.9)], [3]))},
}


@pytest.mark.parametrize("at", [1, 2, 5, 7, 10, 12])
@pytest.mark.parametrize("how", QUIET)
def test_nothing_is_said_of(how: str, at: int) -> None:
    later.listen()
    try:
        first = Life(**QUIET[how])
        copy = first.lives(at)
        second = Life(**QUIET[how])
        third = Life(**QUIET[how])
        third.lives(4, second.lives(5, copy))
        assert first.said + second.said + third.said == []
    finally:
        later.deaf()


def test_made_behind_and_stepped_in_the_block() -> None:
    """Its count begins anew, as it says by itself; what its constructor writes is no word of ours."""
    later.listen()
    try:
        job: dict[str, Any] = {
            "behind": made_behind(lambda o: schedules.LambdaLR(o, lambda n: 1 / (n + 1))),
            "block": lambda life: (life.optimizer.step(), life.made.step()),
        }
        second = Life(**job)
        second.lives(2, Life(**job).lives(4))
        assert second.said == []
    finally:
        later.deaf()


def test_a_scheduler_that_is_stepped_between_steps_is_no_hand() -> None:
    def by_hand(life: Life) -> None:
        if life.at and life.at % 2 == 0 and life.steps != life.at:  # type: ignore[attr-defined]
            life.steps = life.at  # type: ignore[attr-defined]
            life.scheduled.step()  # type: ignore[attr-defined]

    def life() -> Life:
        made = Life(make=lambda o: schedules.ExponentialLR(o, 0.5), behind=rate(0.02), top=by_hand)
        made.scheduled, made.scheduler, made.steps = made.scheduler, None, 0  # type: ignore[attr-defined]
        return made

    with pytest.raises(replicad.Mismatch, match="lr of optim"):
        life().lives(1, life().lives(5))


def test_what_cant_be_told_is_said_once() -> None:
    copy = Life(make=halved, behind=rate(0.02)).lives(5)
    edited = Life(make=halved, behind=rate(0.03))
    copy = edited.lives(4, copy)
    assert len(edited.said) == 1
    assert "lr of optim was 0.01 in step 5" in edited.said[0]
    with pytest.raises(replicad.Mismatch, match=r"is 0\.03 before"):
        Life(make=halved, behind=rate(0.03)).lives(1, copy)


def test_where_an_epoch_may_begin_it_is_said() -> None:
    loader = replicad.data.Loader(torch.ones(20, 4), batch_size=4)
    job: dict[str, Any] = {"make": halved, "behind": rate(0.02), "data": loader}
    copy = Life(**job).lives(5)
    second = Life(**job)
    second.lives(1, copy)
    assert len(second.said) == 1
    assert "lr of optim was 0.01 in step 5" in second.said[0]


def test_another_run_may_begin_with_what_it_likes() -> None:
    life = Life(make=halved, behind=rate(0.02))
    life.lives(1, Life(make=halved, behind=rate(0.02)).lives(5), fresh=True)
    assert life.said == []


def test_hooks_of_a_trainer_are_put_back() -> None:
    copy = Life(make=halved).lives(5)
    life = Life(make=halved, behind=lambda life: (life.set(lr=0.1, betas=(0.1, 0.2)), life.rates.stands(True)))
    after = life.lives(1, copy)
    assert life.said == []
    assert (life.optimizer.param_groups[0]["lr"], life.optimizer.param_groups[1]["betas"]) == (0.025, (0.9, 0.999))
    assert after.common == Life(make=halved).lives(1, copy).common


PROGRAM = """
import os, pathlib, signal, sys, torch, replicad

HOW, mark = sys.argv[1], pathlib.Path(sys.argv[2])
torch.manual_seed(1)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5) if HOW == "once" else ()
with replicad.Session(model, optimizer, scheduler=scheduler) as session:
    session.resume()
    if HOW == "once":
        for group in optimizer.param_groups:
            group["lr"] = 0.02
    for step in session.steps(8):
        if HOW == "by step":
            for group in optimizer.param_groups:
                group["lr"] = 0.02 / step
        model(torch.ones(1, 4)).sum().backward()
        with session.step():
            optimizer.step()
            optimizer.zero_grad()
            scheduler and scheduler.step()
        if step == 4 and not mark.exists():
            session.commit()
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    print("END", optimizer.param_groups[0]["lr"], session.noticed)
"""


def test_a_process_that_takes_anothers_place(daemon: Any, tmp_path: Path) -> None:
    """It ends, and no new one is started that could only do the same."""
    job = daemon.run(PROGRAM, "once", str(tmp_path / "once"))
    assert job.wait() == 5
    out = job.printed()
    assert "Mismatch: lr of optim was 0.005 in step 4, which this process has loaded, and is 0.02 before its first step" in out
    assert out.count("lr of optim was written between session.resume() and the first step, and a scheduler has moved it since") == 1
    out = daemon.run(PROGRAM, "by step", str(tmp_path / "by step")).done()
    assert "END 0.0025 {}" in out, out
    assert "is replaced by" not in out, out  # the loop writes it before each step, so that nobody's rate is lost
