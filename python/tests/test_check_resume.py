"""check_resume passes a training loop that is kept whole, and names what another one forgot."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import cluster
import replicad
from replicad import testing
from replicad.data import Loader


def train(last: int, forget: bool = False) -> Iterator[dict[str, Any]]:
    """A few steps of a net with dropout and BatchNorm; with ``forget`` the samples come from a generator that nobody keeps."""
    torch.manual_seed(3)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=0.01)
    data = torch.utils.data.TensorDataset(torch.randn(64, 4, generator=torch.Generator().manual_seed(1)))
    loader, mine = Loader(data, 4, seed=2), torch.Generator().manual_seed(5)
    with replicad.Session(model=model, optimizer=optimizer, data=loader) as session:
        start, batches = session.resume(), loader.endless()
        for _ in range(start + 1, last + 1):
            (x,) = (torch.randn(4, 4, generator=mine),) if forget else next(batches)
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            with session.step():
                optimizer.step()
            yield {"samples": x, "loss": loss}


def told(last: int) -> Iterator[dict[str, Any]]:
    """A program that reads its arguments."""
    for values in train(last, forget=sys.argv[1:] == ["--forget"]):
        yield values | {"told": sys.argv[1:]}


def forgetful(last: int) -> Iterator[dict[str, Any]]:
    """Not kept whole."""
    yield from train(last, forget=True)


def test_a_resumed_run_is_the_same_run() -> None:
    done = testing.check_resume(train, steps=5, more=3, program=str(cluster.REPLICAD))
    assert (done.steps, done.resumed_at, done.source) == (8, 5, "own-ram")
    assert done.compared > 8 * 20


def test_the_program_is_given_its_arguments() -> None:
    with pytest.raises(testing.Different) as found:
        testing.check_resume(told, steps=3, more=2, program=str(cluster.REPLICAD), arguments=["--forget"])
    assert (found.value.name, found.value.step) == ("samples", 4)


def averaged(last: int) -> Iterator[dict[str, Any]]:
    """An average of weights over BatchNorm, whose statistics it takes from the model or averages, as the first argument says; the second says whether tensors are staged."""
    torch.manual_seed(3)
    torch.set_num_threads(1)
    use_buffers, staging = (arg == "True" for arg in sys.argv[1:])
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
    average = torch.optim.swa_utils.AveragedModel(model, use_buffers=use_buffers)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = Loader(torch.utils.data.TensorDataset(torch.randn(64, 4, generator=torch.Generator().manual_seed(1))), 4, seed=2)
    with replicad.Session(model={"model": model, "average": average}, optimizer=optimizer, data=loader, staging=staging) as session:
        start, batches = session.resume(), loader.endless()
        for _ in range(start + 1, last + 1):
            (x,) = next(batches)
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            with session.step():
                optimizer.step()
                average.update_parameters(model)
            yield {"samples": x, "loss": loss, "statistics": average.module[1].running_var, "noticed": sorted(session.noticed)}
        assert not session.noticed, session.noticed


@pytest.mark.parametrize("staging", [False, True])
@pytest.mark.parametrize("use_buffers", [False, True])
def test_an_average_over_batch_norm_is_kept_whole(use_buffers: bool, staging: bool) -> None:
    done = testing.check_resume(averaged, steps=5, more=3, program=str(cluster.REPLICAD), arguments=[str(use_buffers), str(staging)])
    assert (done.steps, done.resumed_at, done.source) == (8, 5, "own-ram")


def test_what_is_not_kept_is_named() -> None:
    with pytest.raises(testing.Different, match="differs after step 4") as found:
        testing.check_resume(forgetful, steps=3, more=2, program=str(cluster.REPLICAD))
    assert (found.value.name, found.value.step) == ("samples", 4)


def test_seeded_plans_depend_on_the_seed_alone(tmp_path: Any) -> None:
    plans = [testing.Faults.seeded(s, world=3, steps=100, count=9, rank=0, folder=tmp_path).plan for s in (1, 1, 2)]
    assert plans[0] == plans[1] != plans[2]
    assert {f.where for f in plans[0]} == set(testing.PLACES)
    assert [f.step for f in plans[0] if f.where != "resume"] == sorted(f.step for f in plans[0] if f.where != "resume")


def test_a_fault_happens_once_in_the_life_of_a_job(tmp_path: Any) -> None:
    for life in range(2):
        faults = testing.Faults([testing.Fault(3, 0, "window", "raise")], rank=0, folder=tmp_path)
        faults.at("window", 2)
        if life == 0:
            with pytest.raises(testing.Injected):
                faults.at("window", 4)
        faults.at("window", 5)
    (found,) = faults.happened()
    assert (found["step"], found["where"], found["rank"]) == (4, "window", 0)
