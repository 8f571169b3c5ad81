"""Loaders of other libraries: where their own state says it, a resumed run sees the samples of an undisturbed one; where it does not, that is said."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest

torch = pytest.importorskip("torch")
datasets = pytest.importorskip("datasets")
pytestmark = pytest.mark.filterwarnings("ignore:.set_vital. is deprecated")  # torchdata calls it

from torchdata.stateful_dataloader import StatefulDataLoader

from replicad._core import capsule
from replicad._torch import loaders
from replicad._torch.lacking import alive, missing
from replicad._torch.objects import Objects
from replicad.data import Loader
from test_preload import World, world  # noqa: F401 - the fixture


def samples(shards: list[int]) -> Iterator[dict[str, int]]:
    for s in shards:
        for i in range(10):
            yield {"x": 10 * s + i}


def streamed() -> Any:
    return datasets.IterableDataset.from_generator(samples, gen_kwargs={"shards": [0, 1, 2, 3]})


def mapped() -> Any:
    return datasets.Dataset.from_generator(samples, gen_kwargs={"shards": [0, 1, 2, 3]})


def numbers(source: Any, count: int) -> list[Any]:
    return [torch.as_tensor(b["x"]).tolist() for b in islice(iter(source), count)]


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: Loader(mapped(), 3, rank=0, world=2, seed=1), id="Dataset in a Loader"),
        pytest.param(lambda: streamed(), id="IterableDataset"),
        pytest.param(lambda: streamed().batch(3), id="IterableDataset in batches"),
        pytest.param(lambda: streamed().shuffle(seed=3, buffer_size=1), id="its shards shuffled"),
        pytest.param(lambda: StatefulDataLoader(streamed(), batch_size=3), id="IterableDataset in a StatefulDataLoader"),
        pytest.param(lambda: StatefulDataLoader(streamed(), batch_size=3, num_workers=2), id="with workers"),
    ],
)
def test_goes_on_at_the_sample(make: Callable[[], Any]) -> None:
    whole, first = numbers(make(), 6), make()
    had = numbers(first, 3)
    state = capsule.unpack(capsule.pack({"data": loaders.state(first)}, "data"))["data"]
    then = make()
    loaders.set_state(then, state)
    assert had + numbers(then, 3) == whole
    assert loaders.buffered(first) == 0


@pytest.mark.parametrize("of", [lambda d: d, lambda d: StatefulDataLoader(d, batch_size=3), lambda d: d.map(lambda x: x)], ids=["itself", "in a loader", "mapped"])
def test_a_shuffle_buffer_is_named(of: Callable[[Any], Any]) -> None:
    """Its library leaves the buffer out of the state, and a resumed run would not see the samples in it."""
    model, data = torch.nn.Linear(1, 1), of(streamed().shuffle(seed=3, buffer_size=5))
    objects = Objects({"model": model, "optimizer": torch.optim.SGD(model.parameters(), 0.1), "data": data}, lambda name: False, True)
    (said,) = (v for v in missing(objects, alive()) if v.what == "data")
    assert said.ok is False and "shuffle buffer of 5 samples is not in its state" in said.reason


def test_restarts_fork_with_all_of_it_behind_them(world: World) -> None:  # noqa: F811
    """pyarrow, which most of them import, would start a thread. All that imports it, transformers' Trainer too, would be imported by each restart."""
    lives = world.run("import datasets\nfrom transformers import Trainer")
    lives.next()
    lives.ready()
    assert not any(name.startswith("JE_ARROW") for name in lives.again()["environ of C"])
    lines = world.lines(lives)
    assert len(lines) == 1 and lines[0].startswith("restarts fork from"), lines
