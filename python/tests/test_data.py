"""The loader: a resumed run sees the samples, and their augmentation, of an undisturbed one."""

from __future__ import annotations

import random
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import replicad
from replicad import Invalid, Mismatch
from replicad.data import Loader

SAMPLES = 23


class Noisy(torch.utils.data.Dataset):
    """Samples that draw random numbers of every kind."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, i: int) -> Any:
        return torch.tensor([i, random.random(), np.random.rand(), float(torch.rand(()))], dtype=torch.float64)


def loader(**more: Any) -> Loader:
    return Loader(Noisy(), 2, **{"seed": 5, "rank": 0, "world": 2} | more)


def numbers(batches: Any, count: int) -> list[list[list[float]]]:
    return [b.tolist() for b in islice(batches, count)]


def test_an_epoch_has_each_sample_once_over_the_ranks() -> None:
    seen = [int(s[0]) for r in range(2) for b in loader(rank=r) for s in b.tolist()]
    assert len(seen) == len(set(seen)) == len(loader()) * 2 * 2 == 20
    assert seen != sorted(seen)
    assert [int(s[0]) for b in loader(shuffle=False, world=1) for s in b.tolist()] == list(range(SAMPLES - 1))


def test_an_exception_in_a_batch_does_not_end_an_endless_loader() -> None:
    """A restart is raised anywhere, and the iterator may be older than the block. As a generator it was at its end from then on."""

    class Once(Noisy):
        broken = False

        def __getitem__(self, i: int) -> Any:
            if len(seen) == 3 and not Once.broken:
                Once.broken = True
                raise KeyboardInterrupt
            return super().__getitem__(i)

    seen: list[Any] = []
    batches = Loader(Once(), 2, seed=5, rank=0, world=2).endless()
    while len(seen) < 12:
        try:
            seen.append(next(batches).tolist())
        except KeyboardInterrupt:
            assert len(seen) == 3
    assert Once.broken and seen == numbers(loader().endless(), 12)
    batches.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_goes_on_at_the_next_batch(workers: int) -> None:
    """Whatever was fetched ahead, and in whichever epoch."""
    want = numbers(loader().endless(), 14)
    for used in (0, 1, 4, 5, 6, 11):
        first = loader(num_workers=workers, persistent_workers=workers > 0)
        batches = first.endless()
        assert numbers(batches, used) == want[:used]
        state = first.state_dict()
        batches.close()
        second = loader(num_workers=workers)
        second.load_state_dict(state)
        rest = second.endless()
        assert numbers(rest, 14 - used) == want[used:], used
        rest.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_whoever_counts_batches_gets_every_epoch(workers: int) -> None:
    """Three times as many as an epoch has used to give 5, 0 and 5: the next epoch began only where one more batch was asked for."""
    want, lo = numbers(loader().endless(), 15), loader(num_workers=workers)
    for epoch in range(3):
        assert (lo.epoch, lo.used) == (epoch, 0)
        assert numbers(lo, len(lo)) == want[5 * epoch : 5 * epoch + 5], epoch
    assert numbers(lo, 2) + numbers(lo, 99) == numbers(loader().endless(), 20)[15:], "what is left of an epoch"
    assert (lo.epoch, lo.used) == (4, 0)


def test_a_state_after_the_last_batch_is_of_the_next_epoch() -> None:
    lo = loader()
    batches = iter(lo)
    for _ in range(len(lo)):
        next(batches)
    assert (lo.state_dict()["epoch"], lo.state_dict()["used"]) == (1, 0)
    assert list(batches) == []
    assert (lo.epoch, lo.used) == (1, 0), "asking for one more changes nothing"
    other = loader()
    other.load_state_dict(loader().state_dict() | {"used": 5})  # as an earlier version had it
    assert (other.epoch, other.used) == (1, 0)


def test_a_batch_is_fetched_at_once_where_the_dataset_can() -> None:
    asked: list[list[int]] = []

    class AtOnce(Noisy):
        def __getitems__(self, indices: list[int]) -> list[Any]:
            asked.append(indices)
            return [self[i] for i in indices]

    at_once = Loader(AtOnce(), 2, seed=5, rank=0, world=2)
    assert numbers(at_once.endless(), 7) == numbers(loader().endless(), 7)
    assert [len(i) for i in asked] == [2] * 7


def test_the_training_process_keeps_its_generators() -> None:
    def drawn() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    def seeded() -> None:
        random.seed(1), np.random.seed(1), torch.manual_seed(1)

    seeded()
    want = drawn()
    for workers in (0, 1):
        seeded()
        numbers(loader(num_workers=workers), 3)
        assert drawn() == want


@pytest.mark.filterwarnings("ignore")
def test_a_hugging_face_run_makes_all_its_steps(tmp_path: Path) -> None:
    """Its trainer counts an epoch's batches, and took an epoch without one for the end of the data: it stopped at 32 of 40 steps, undisturbed."""
    import transformers

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def forward(self, x: Any) -> dict[str, Any]:
            return {"loss": self.layer(x).square().mean()}

    class Trainer(transformers.Trainer):  # type: ignore[name-defined, misc]
        def get_train_dataloader(self) -> Any:
            return lo

    lo = Loader([{"x": torch.ones(4)}] * 16, 2, rank=0, world=1)
    options = transformers.TrainingArguments(str(tmp_path), max_steps=40, use_cpu=True, report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True)
    trainer = Trainer(Net(), options)
    trainer.train()
    assert (trainer.state.global_step, lo.epoch, lo.used) == (40, 5, 0)


@pytest.mark.parametrize("drawn", [0, 1, 2, 3])
def test_numpys_generator_is_put_back_whole(drawn: int) -> None:
    """With the second of a pair of normal numbers, which waits where one was drawn, and whatever is drawn between batches."""

    class Normal(Noisy):
        def __getitem__(self, i: int) -> Any:
            return torch.tensor([i, np.random.randn()])

    def course(batches: Any) -> list[float]:
        np.random.seed(1)
        out = []
        for turn in range(4):
            out += [float(np.random.randn()) for _ in range(drawn if turn != 2 else 0)]
            if batches:
                next(batches)
        return [*out, *np.random.randn(3).tolist()]

    assert course(Loader(Normal(), 1, rank=0, world=1).endless()) == course(None)


def test_an_iterator_ends_when_the_state_is_loaded() -> None:
    lo = loader()
    batches = iter(lo)
    before = lo.state_dict()
    next(batches)
    lo.load_state_dict(before)
    assert list(batches) == []
    assert lo.state_dict() == before
    assert len(list(lo)) == len(lo)
    assert lo.state_dict()["epoch"] == 1


@pytest.mark.parametrize("other", [{"seed": 6}, {"world": 3}, {"shuffle": False}])
def test_a_loader_of_another_kind_is_refused(other: dict[str, Any]) -> None:
    lo = loader(**other)
    with pytest.raises(Mismatch, match="seed, world, batch size"):
        lo.load_state_dict(loader().state_dict())
    assert lo.state_dict()["used"] == 0


def test_bad_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    for bad in ({"rank": 2}, {"rank": -1}, {"world": 12}):
        with pytest.raises(Invalid, match="at least one whole batch for every rank"):
            loader(**bad)
    with pytest.raises(Invalid, match="at least one whole batch"):
        Loader(Noisy(), 0)
    for size in (None, 2.5, "4"):
        with pytest.raises(Invalid, match="want a whole number of samples"):
            Loader(Noisy(), size)  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="give both or none"):
        Loader(Noisy(), 2, rank=1)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert numbers(Loader(Noisy(), 2, seed=5), 3) == numbers(loader(rank=1), 3)


@pytest.mark.parametrize(
    ("option", "instead"),
    [
        ({"sampler": [1, 2]}, "sampler=.*Subset"),
        ({"batch_sampler": [[1, 2]]}, "batch_sampler=.*Subset"),
        ({"drop_last": True}, "drop_last=True: leave it out"),
        ({"generator": torch.Generator()}, "generator=.*seed="),
    ],
)
def test_what_the_loader_settles_is_refused_by_name(option: dict[str, Any], instead: str) -> None:
    with pytest.raises(Invalid, match=instead):
        loader(**option)


class Flow(torch.utils.data.IterableDataset):
    """Samples without an index; some say how many."""

    def __iter__(self) -> Any:
        return iter(range(SAMPLES))


class Counted(Flow):
    def __len__(self) -> int:
        return SAMPLES


@pytest.mark.parametrize("dataset", [Flow(), Counted(), iter([1, 2, 3]), (i for i in range(3))])
def test_a_dataset_without_an_index_is_refused(dataset: Any) -> None:
    with pytest.raises(Invalid, match=f"of class {type(dataset).__qualname__}: want a map-style one.*data="):
        Loader(dataset, 1)


# -- generators of the dataset's own ------------------------------------------------------------------------------------

GLOBAL: Any = None


@pytest.fixture
def generators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the module and of the class; other tests ask which generators a process has."""
    monkeypatch.setattr(sys.modules[__name__], "GLOBAL", np.random.default_rng(11))
    monkeypatch.setattr(Own, "shared", np.random.RandomState(2))


def of_the_module(x: float) -> float:
    return x + float(GLOBAL.standard_normal())


class Adds:
    """A transform that holds a generator, whatever kind."""

    def __init__(self, generator: Any) -> None:
        self.held = {"here": [generator]}

    def __call__(self, x: float) -> float:
        g = self.held["here"][0]
        if isinstance(g, torch.Generator):
            return x + float(torch.rand((), generator=g))
        return x + (g.random() if isinstance(g, random.Random) else float(g.random_sample() if isinstance(g, np.random.RandomState) else g.random()))


class Slots:
    __slots__ = ("rng",)

    def __init__(self) -> None:
        self.rng = random.Random(3)


class Own(torch.utils.data.Dataset):
    """Draws from generators of its own: as attributes, of a transform, of a function, of a class, of a module, made when the first item is asked for."""

    shared: Any = None

    def __init__(self) -> None:
        self.transforms = [Adds(torch.Generator().manual_seed(5)), Adds(np.random.default_rng(5)), Adds(np.random.RandomState(5)), Adds(random.Random(5))]
        closed = np.random.Generator(np.random.MT19937(7))
        self.functions = (of_the_module, lambda x: x + float(closed.random()))
        self.bits = np.random.PCG64(8)
        self.slots = Slots()
        self.late: Any = None

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, i: int) -> Any:
        if self.late is None:
            self.late = np.random.default_rng(5)
        drawn = [f(0.0) for f in (*self.transforms, *self.functions)]
        drawn += [np.random.Generator(self.bits).random(), self.slots.rng.random(), Own.shared.random_sample(), self.late.random(), self.late.spawn(1)[0].random()]
        return torch.tensor([i, *drawn], dtype=torch.float64)


class Wraps(torch.utils.data.Dataset):
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, i: int) -> Any:
        return self.inner[i]


def own(**more: Any) -> Loader:
    return Loader(Own(), 2, **{"seed": 5, "rank": 0, "world": 2} | more)


@pytest.mark.usefixtures("generators")
@pytest.mark.parametrize("workers", [0, 2])
def test_generators_of_the_dataset_go_on(workers: int) -> None:
    """They began anew with each process and each epoch, in workers ran ahead of what was used, and all workers drew alike."""
    want = numbers(own().endless(), 9)
    flat = [x for batch in want for sample in batch for x in sample[1:]]
    assert len(set(flat)) == len(flat), "no two draw alike"
    for used in (0, 3, 5):
        lo = own(num_workers=workers)
        lo.load_state_dict(own().state_dict() | {"epoch": used // 5, "used": used % 5})
        rest = lo.endless()
        assert numbers(rest, 9 - used) == want[used:], used
        rest.close()


@pytest.mark.usefixtures("generators")
def test_generators_that_are_shared_with_the_training_process_are_put_back() -> None:
    dataset = Own()
    mine = [dataset.transforms[0].held["here"][0], dataset.transforms[1].held["here"][0]]

    def drawn() -> list[float]:
        return [float(torch.rand((), generator=mine[0])), float(mine[1].random()), float(mine[1].spawn(1)[0].random())]

    want = [drawn() for _ in range(3)]
    mine[0].manual_seed(5)
    mine[1] = dataset.transforms[1].held["here"][0] = np.random.default_rng(5)
    batches, got = Loader(dataset, 2, rank=0, world=1).endless(), []
    for _ in range(3):
        got.append(drawn())
        next(batches)
    assert got == want


@pytest.mark.usefixtures("generators")
@pytest.mark.parametrize(
    "wrap",
    [
        lambda d: torch.utils.data.Subset(d, range(SAMPLES)),
        lambda d: torch.utils.data.ConcatDataset([d]),
        lambda d: Wraps(Wraps(torch.utils.data.Subset(torch.utils.data.ConcatDataset([Wraps(d)]), range(SAMPLES)))),
    ],
)
def test_what_is_wrapped_is_found(wrap: Any) -> None:
    def course(first: int) -> list[Any]:
        lo = Loader(wrap(Own()), 2, seed=5, rank=0, world=2)
        lo.load_state_dict(lo.state_dict() | {"used": first})
        return numbers(lo.endless(), 5 - first)

    assert course(2) == course(0)[2:]


def test_a_dataset_that_holds_itself_and_much_is_walked_in_bounds() -> None:
    class Much(Noisy):
        def __init__(self) -> None:
            self.me = self
            self.samples = [(i, [str(i)]) for i in range(100_000)]
            self.transform = Adds(np.random.default_rng(1))

        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"{name} was asked for")

    assert list(Loader(Much(), 2, rank=0, world=1).generators()) == ["dataset.transform.held['here'][0]"]


@pytest.mark.usefixtures("generators")
def test_a_generator_that_was_added_and_is_the_loaders_is_said(caplog: pytest.LogCaptureFixture) -> None:
    dataset = Own()
    g = dataset.transforms[1].held["here"][0]
    replicad.rng.add("augment", g)
    try:
        lo = Loader(dataset, 2, rank=0, world=1)
        lo.load_state_dict(lo.state_dict())  # as a resume does
        numbers(lo, 1), numbers(lo, 1)
    finally:
        replicad.rng.remove("augment")
    assert [r.message for r in caplog.records if "rng.add" in r.message] == [
        "replicad: the generator at dataset.transforms[1].held['here'][0] was given to replicad.rng.add, and the loader seeds it for each batch: leave that out, "
        "unless the loop draws from it too"
    ]


PLAIN = list(range(96))


def worlds(world: int, size: int, state: dict[str, Any] | None = None) -> list[Loader]:
    """The loaders of all ranks."""
    loaders = [Loader(PLAIN, size, seed=7, rank=r, world=world) for r in range(world)]
    for lo in loaders:
        if state is not None:
            lo.take_up(state)
    return loaders


def taken(loaders: list[Loader], batches: int) -> list[Any]:
    """The samples of the next batches over all ranks, in the order in which the epochs have them."""
    streams = [lo.endless() for lo in loaders]
    return [int(x) for _ in range(batches) for stream in streams for x in next(stream)]


@pytest.mark.parametrize(("was", "now"), [((4, 2), (2, 4)), ((2, 4), (4, 2)), ((4, 2), (8, 1)), ((4, 2), (3, 4)), ((2, 6), (4, 1))])
@pytest.mark.parametrize("steps", [0, 3, 6, 11, 12, 13])
def test_another_world_goes_on_at_the_sample(was: tuple[int, int], now: tuple[int, int], steps: int) -> None:
    before = worlds(*was)
    first = taken(before, steps)
    state = before[0].state_dict()
    had, have = was[0] * was[1], now[0] * now[1]
    if state["used"] * had % have:
        with pytest.raises(replicad.Mismatch, match=rf"begin none there. Keep the batches of all ranks together at {had} samples"):
            worlds(*now, state)
        return
    rest = (2 * len(PLAIN) - len(first)) // have
    both = first + taken(worlds(*now, state), rest)
    whole = taken(worlds(1, len(PLAIN)), 2)
    assert both == whole[: len(both)]


def test_another_version_of_the_data_is_refused() -> None:
    """The same numbers would be other samples, and nothing else shows it."""
    three, four, unnamed = (loader(version=v) for v in ("corpus-v3@sha256:77", "corpus-v4", None))
    three.load_state_dict(unnamed.state_dict())  # it is named from now on
    state = three.state_dict()
    assert state["version"] == "corpus-v3@sha256:77" and "version" not in unnamed.state_dict()
    loader(version="corpus-v3@sha256:77").load_state_dict(state)
    for other in (four, unnamed):
        before = other.state_dict()
        for load in (other.load_state_dict, other.take_up):
            with pytest.raises(Mismatch, match=r"of a loader of 'corpus-v3@sha256:77', this one is of ('corpus-v4'|None): have the loader read"):
                load(state | {"used": 3})
        assert other.state_dict() == before
    for bad in ("", "x" * 257, "a\x1b[2J", 7):
        with pytest.raises(Invalid, match="want 1 to 256 bytes of text"):
            loader(version=bad)


def test_another_loader_is_refused() -> None:
    state = worlds(2, 4)[0].state_dict()
    for other in (Loader(PLAIN, 4, seed=8, rank=0, world=2), Loader(PLAIN[:-1], 4, seed=7, rank=0, world=2), Loader(PLAIN, 4, seed=7, rank=0, world=2, shuffle=False)):
        with pytest.raises(replicad.Mismatch, match="make it alike"):
            other.take_up(state)
