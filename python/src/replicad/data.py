"""A data loader that goes on exactly where it was: at the batch after the last one that was used, with the same samples, in the
same order, augmented by the same random numbers, whatever its workers had fetched ahead.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import logging
import operator
import random
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler
from torch.utils.hooks import RemovableHandle

from . import rng
from ._core import draws, latest
from ._core.waiting import place
from .errors import Invalid, Mismatch

__all__ = ["Endless", "Loader"]

#: The most bytes of a loader's version.
VERSION = 256

log = logging.getLogger("replicad")

#: Options of torch's loader that this one settles by itself, and what there is instead.
_SETTLED = {
    "sampler": "the order comes from seed= and shuffle=; for one of your own, or a subset, give torch.utils.data.Subset(dataset, indices) with shuffle=False",
    "batch_sampler": "batches come from batch_size=, seed= and shuffle=; for an order of your own give torch.utils.data.Subset(dataset, indices) with shuffle=False",
    "drop_last": "leave it out, what doesn't fill a batch on every rank is always left out",
    "generator": "give seed=, which order and items are drawn from",
}


def _number(*parts: Any) -> int:
    """A 63-bit number that depends on all of these and on nothing else."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "little") >> 1


class _NumPys:
    """numpy's own generator, put aside and back. Its state as numpy gives and takes it costs more than a sample does, so the memory of the Mersenne
    twister is compared and copied: where it is what was put back last, nothing was drawn in between."""

    BYTES = 624 * 4 + 4  #: of numpy's mt19937_state: the key and the place in it

    def __init__(self) -> None:
        self._state: Any = None
        self._raw = b""  #: of that state; empty where it is more than the twister (a second normal number that waits to be drawn, another generator)

    def aside(self, np: Any) -> None:
        g = np.get_bit_generator()
        self._address = g.ctypes.state_address if type(g) is np.MT19937 else 0
        if self._raw and self._address and ctypes.string_at(self._address, self.BYTES) == self._raw:
            return
        self._state = np.get_state()
        self._raw = ctypes.string_at(self._address, self.BYTES) if self._address and not self._state[3] else b""

    def back(self, np: Any) -> None:
        if self._raw:
            np.seed(0)  # drops a normal number that waits
            ctypes.memmove(self._address, self._raw, self.BYTES)
        else:
            np.set_state(self._state)


class _Seeded(Dataset[Any]):
    """A dataset whose every batch begins with generators that depend on (seed, epoch, index of its first sample) alone: what its items draw
    does not depend on which worker fetches it, or on what that worker fetched before. Those are python's, numpy's and torch's, and the dataset's own."""

    def __init__(self, dataset: Any, seed: int, here: bool) -> None:
        self.dataset, self.seed, self.here = dataset, seed, here
        self._at_once = getattr(dataset, "__getitems__", None)
        self._numpys = _NumPys()
        self._own: dict[str, Any] | None = None  #: the dataset's generators, by where they are; found in the process that fetches
        self._aside: dict[int, Callable[[], object]] = {}  #: what puts them back
        self._settled = False  #: a batch was fetched
        self.last = (0, 0)  #: the first sample of the batch

    def __getstate__(self) -> dict[str, Any]:
        """A worker that is started by spawn finds the generators of its own copy."""
        return self.__dict__ | {"_own": None, "_aside": {}, "_settled": False}

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, at: list[tuple[int, int]]) -> Any:
        if not self.here:
            return self._items(at)
        # In the training process its own generators are put back: those that are seeded here, since others would repeat their draws for every batch.
        before = random.getstate(), torch.default_generator.get_state()
        if np := sys.modules.get("numpy.random"):
            self._numpys.aside(np)
        self._aside = {id(g): draws.aside(g) for g in self._generators().values()}
        try:
            return self._items(at)
        finally:
            for back in self._aside.values():
                back()
            random.setstate(before[0])
            torch.default_generator.set_state(before[1])
            if np:
                self._numpys.back(np)

    def _generators(self) -> dict[str, Any]:
        if self._own is None:
            self._own = draws.generators(self.dataset, "dataset")
        return self._own

    def _items(self, at: list[tuple[int, int]]) -> Any:
        first, self._settled = not self._settled, True
        items = self._fetch(at)
        if not first:
            return items
        # A dataset may make its generators when it is first asked for an item, in each worker anew. What that item drew from them is drawn again, seeded.
        now = draws.generators(self.dataset, "dataset")
        if list(map(id, now.values())) == list(map(id, self._generators().values())):
            return items
        self._own = now
        self._aside = {id(g): draws.aside(g) for g in now.values()} | self._aside
        return self._fetch(at)

    def _fetch(self, at: list[tuple[int, int]]) -> Any:
        self.last = at[0]
        n = _number(self.seed, "batch", *at[0])
        random.seed(n)
        torch.default_generator.manual_seed(n)
        if np := sys.modules.get("numpy"):
            np.random.seed(n % 2**32)
        for path, g in self._generators().items():  # by where it is: generators that were made alike draw otherwise, as they are to
            draws.seed(g, _number(self.seed, "batch", *at[0], path))
        indices = [index for _, index in at]
        return self._at_once(indices) if self._at_once else [self.dataset[i] for i in indices]


class _Collate:
    """A program's ``collate_fn`` in a worker: its own generators begin each batch seeded, as the dataset's do. One that it makes with its first batch has that batch made again."""

    def __init__(self, fn: Callable[[list[Any]], Any], items: _Seeded) -> None:
        self.fn, self.items = fn, items
        self._own: dict[str, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_own": None}

    def __call__(self, batch: list[Any]) -> Any:
        if first := self._own is None:
            self._own = draws.generators(self.fn, "collate_fn")
        self._seed()
        out = self.fn(batch)
        if first and list(map(id, (now := draws.generators(self.fn, "collate_fn")).values())) != list(map(id, (self._own or {}).values())):
            self._own = now
            self._seed()
            out = self.fn(batch)
        return out

    def _seed(self) -> None:
        for path, g in (self._own or {}).items():
            draws.seed(g, _number(self.items.seed, "batch", *self.items.last, path))


class _Batches(Sampler[list[tuple[int, int]]]):
    """The rest of an epoch, from a batch on."""

    def __init__(self, loader: Loader, epoch: int, first: int) -> None:
        self.loader, self.epoch, self.first = loader, epoch, first

    def __len__(self) -> int:
        return len(self.loader) - self.first

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        lo, order = self.loader, self.loader.order(self.epoch)
        for b in range(self.first, len(lo)):
            start = (b * lo.world + lo.rank) * lo.batch_size
            yield [(self.epoch, i) for i in order[start : start + lo.batch_size]]


class Loader:
    """Batches of a map-style dataset for one of ``world`` data-parallel ranks, shuffled by (seed, epoch). Which one it is comes from
    the launcher (:func:`replicad.place`), unless ``rank`` and ``world`` are given.

    Register it as ``data=`` of a :class:`replicad.Session`. ``for batch in loader`` gives the rest of the present epoch;
    ``loader.endless()`` goes on for ever. A batch counts as used when it was handed out, and with an epoch's last one ``loader.epoch`` is the next. Each batch has
    ``batch_size`` samples of this rank; what doesn't fill a batch on every rank is left out of the epoch. ``options`` are those of torch's
    ``DataLoader``; :class:`replicad.Invalid` for one that this loader settles by itself (a sampler, say), and for a dataset without a length.

    ``version`` names what the samples are, in up to 256 bytes (``"corpus-v3@sha256:..."``). It is kept with the place, and a loader of another version is refused: the
    same numbers would be other samples.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        *,
        seed: int = 0,
        rank: int | None = None,
        world: int | None = None,
        shuffle: bool = True,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        version: str | None = None,
        **options: Any,
    ) -> None:
        for name in options:
            if name in _SETTLED:
                raise Invalid(f"loader: {name}={options[name]!r}: {_SETTLED[name]}")
        if isinstance(dataset, IterableDataset) or not (hasattr(type(dataset), "__len__") and hasattr(type(dataset), "__getitem__")):
            raise Invalid(
                f"loader: a dataset of class {type(dataset).__qualname__}: want a map-style one, with len() and items by index; read it into a list, or "
                "register another loader that has state_dict and load_state_dict (torchdata's StatefulDataLoader) as the session's data="
            )
        try:
            batch_size = operator.index(batch_size)
        except TypeError:
            raise Invalid(
                f"loader: batch_size={batch_size!r}: want a whole number of samples for each rank; batch_size=1 with a collate_fn that takes the one out gives single ones"
            ) from None
        if rank is None or world is None:
            if rank is not world:
                raise Invalid(f"loader: rank={rank} with world={world}: give both or none")
            rank, world = place()
        if batch_size < 1 or not 0 <= rank < world or len(dataset) < batch_size * world:
            raise Invalid(f"loader: batches of {batch_size} for rank {rank} of {world} from {len(dataset)} samples: want at least one whole batch for every rank")
        if version is not None and not (isinstance(version, str) and version.isprintable() and 0 < len(version.encode()) <= VERSION):
            raise Invalid(f"loader: version={version!r:.80}: want 1 to {VERSION} bytes of text that can be printed, or none")
        self.dataset, self.batch_size, self.seed, self.rank, self.world, self.shuffle = dataset, batch_size, seed, rank, world, shuffle
        self.version = version
        self.options = {"num_workers": num_workers, "collate_fn": collate_fn, **options}
        self.epoch = 0
        self.used = 0  # batches of this epoch
        self._life = 0
        self._before: OrderedDict[int, Callable[..., None]] = OrderedDict()  # by whom it is told, before a batch is handed out
        self._iterated = False
        self.asked = False  # for its state, by what keeps that

    def __len__(self) -> int:
        return len(self.dataset) // (self.batch_size * self.world)

    def order(self, epoch: int) -> list[int]:
        """The numbers of the samples in the order in which an epoch has them, over all ranks."""
        if not self.shuffle:
            return list(range(len(self.dataset)))
        g = torch.Generator().manual_seed(_number(self.seed, "order", epoch))
        return torch.randperm(len(self.dataset), generator=g).tolist()

    def __repr__(self) -> str:
        return f"<replicad.data.Loader of {len(self.dataset)} samples, {self.batch_size} a batch, seed {self.seed}>"

    def generators(self) -> dict[str, Any]:
        """The dataset's own generators, by where they were found: each batch begins with them seeded, as with the process's. They are looked for on the dataset, on what it
        wraps, on transforms, in lists and dicts of those, and in what their functions refer to."""
        return draws.generators(self.dataset, "dataset")

    def __iter__(self) -> Iterator[Any]:
        if not self._iterated:
            self._say_added()
        self._iterated = True
        self._life += 1
        self._tell()
        life, here, left = self._life, self.options["num_workers"] == 0, len(self) - self.used
        items, options = _Seeded(self.dataset, self.seed, here), dict(self.options)
        if (fn := options["collate_fn"]) is not None and not here:
            options["collate_fn"] = _Collate(fn, items)
        source = DataLoader(
            items,
            batch_sampler=_Batches(self, self.epoch, self.used),
            generator=torch.Generator().manual_seed(_number(self.seed, "workers", self.epoch)),
            **options,
        )
        batches = iter(source)
        self._say_unkept()
        while left and self._life == life:  # else another iterator was made, or the state was loaded: this one's batches are no longer the next
            batch = next(batches)
            left -= 1
            # With its last batch the epoch is over: who counts batches and asks for no further one begins the next epoch, too.
            self.epoch, self.used = (self.epoch, self.used + 1) if left else (self.epoch + 1, 0)
            yield batch
            if left and self._life == life:
                self._tell()

    def before_a_batch(self, hook: Callable[..., None]) -> RemovableHandle:
        """Has ``hook`` called with this loader whenever it is asked for a batch, before it is made; ``remove()`` ends that."""
        handle = RemovableHandle(self._before)
        self._before[handle.id] = hook
        return handle

    def _tell(self) -> None:
        for hook in list(self._before.values()):
            hook(self)

    def _say_added(self) -> None:
        """What rng.add keeps of a generator that workers draw from is a copy that nobody uses."""
        for path, g in self.generators().items():
            if rng.added(g):
                log.warning(
                    "replicad: the generator at %s was given to replicad.rng.add, and the loader seeds it for each batch: leave that out, unless the loop draws from it too",
                    path,
                )

    def _say_unkept(self) -> None:
        """Nobody has asked for its state, and it is about to hand out batches: a session may have to say so."""
        if not self.asked and latest.session is not None:
            latest.session.iterated(self)

    def numbered(self) -> Iterator[tuple[int, Any]]:
        """The rest of the present epoch, each batch with its number in the epoch, the first being 0: what ``enumerate(loader)`` gives in a process that has not resumed in the
        middle of one. Use it where something hangs on that number: when gradients are applied, what is updated, evaluated or logged each so many batches."""
        at = self.used
        for batch in self:
            yield at, batch
            at += 1

    def endless(self) -> Endless:
        """Batch after batch, epoch after epoch."""
        return Endless(self)

    def state_dict(self) -> dict[str, Any]:
        """Where the loader is, and of what."""
        self.asked = True
        named = {"version": self.version} if self.version is not None else {}
        return {"epoch": self.epoch, "used": self.used, "of": [self.seed, self.world, self.batch_size, len(self.dataset), self.shuffle], **named}

    def _check_version(self, state: dict[str, Any]) -> None:
        """A version that is given for the first time counts from then on."""
        had = state.get("version")
        if had is not None and had != self.version:
            raise Mismatch(
                f"the state is of a loader of {had!r}, this one is of {self.version!r}: have the loader read {had!r}, or begin a new job where the data is to be another one "
                "(replicad run --from URL, with the loader's name in Session(fresh=))"
            )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes to where a loader of the same kind was. :class:`Mismatch` for one with another seed, world, batch size, number of samples or order."""
        self.asked = True
        of = [self.seed, self.world, self.batch_size, len(self.dataset), self.shuffle]
        if state["of"] != of:
            raise Mismatch(f"the state is of a loader with seed, world, batch size, samples, shuffle = {state['of']}, this one has {of}: make the loader with the same")
        self._check_version(state)
        self.epoch, self.used = (state["epoch"], state["used"]) if state["used"] < len(self) else (state["epoch"] + 1, 0)
        self._life += 1

    def take_up(self, state: dict[str, Any]) -> None:
        """Goes to the sample at which loaders of another number of ranks were, of the same samples in the same order. :class:`Mismatch` where the batches of all ranks
        together have another size, and none of this size begins at that sample."""
        self.asked = True
        seed, world, size, samples, shuffle = state["of"]
        if [seed, samples, shuffle] != [self.seed, len(self.dataset), self.shuffle]:
            raise Mismatch(
                f"the state is of a loader with seed, samples, shuffle = {[seed, samples, shuffle]}, this one has {[self.seed, len(self.dataset), self.shuffle]}: make it alike"
            )
        self._check_version(state)
        had, now = world * size, self.world * self.batch_size
        if had == now:
            used = state["used"]
        elif state["used"] * had % now:
            raise Mismatch(
                f"the state is of {world} loaders with batches of {size}, {state['used'] * had} samples into epoch {state['epoch']}, and {self.world} with batches of "
                f"{self.batch_size} begin none there. Keep the batches of all ranks together at {had} samples (batch_size={had / self.world:g})"
            )
        else:
            used = state["used"] * had // now
        self.epoch, self.used = (state["epoch"], used) if used < len(self) else (state["epoch"] + 1, 0)
        self._life += 1


class Endless(Iterator[Any]):
    """A loader's batches without an end. An exception that is raised in the middle of a batch, a restart say, does not end it, as it would end
    a generator for good: the next batch is the one that the loader is at."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._epoch: Iterator[Any] | None = None

    def __next__(self) -> Any:
        while True:
            if self._epoch is None:
                self._epoch = iter(self._loader)
            epoch, self._epoch = self._epoch, None
            with contextlib.suppress(StopIteration):
                batch = next(epoch)
                self._epoch = epoch
                return batch

    def close(self) -> None:
        """Ends the loader's worker processes."""
        epoch, self._epoch = self._epoch, None
        if epoch is not None:
            epoch.close()  # type: ignore[attr-defined]
