"""A session under a loop of Hugging Face accelerate::

    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    with replicad.accelerate.prepare(accelerator, model, optimizer, loader, scheduler) as session:
        session.resume()
        for epoch in range(loader.iteration, EPOCHS):
            for batch in loader:
                with accelerator.accumulate(model):
                    ...

``optimizer.step()`` is a step of the session where accelerate lets it update. The loop stays what it is.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.hooks import RemovableHandle

from .. import rng
from .._torch.marked import moves
from .._torch.workers import Workers, unwrapped
from ..alone import launched
from ..errors import Invalid, Mismatch, SessionState, Unsupported
from ..parallel import unsent
from ..session import Session
from ..store import init_process_group
from ._loop import OneStep, want
from ._makes import Makes

__all__ = ["again", "prepare"]

want("accelerate", "1.15")

from accelerate import Accelerator
from accelerate.data_loader import DataLoaderShard
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.utils import extract_model_from_parallel

#: What accelerate can drive and this can't keep, with what to use.
_REFUSED = {
    "DEEPSPEED": "DeepSpeed has a loop of its own around its engine",
    "MEGATRON_LM": "Megatron-LM has a loop of its own",
    "XLA": "tensors of XLA have no memory that could be copied",
}


def prepare(accelerator: Accelerator, *objects: Any, **options: Any) -> Session:
    """A session of what ``accelerator.prepare`` has returned: models, optimizers, schedulers and the loaders that are trained from. What was given to
    ``accelerator.register_for_checkpointing`` before is kept, too, and so are its scaler and its count of micro-batches. ``options`` are those of
    :class:`replicad.Session`. :class:`replicad.Invalid` for what was not prepared, :class:`replicad.Unsupported` for a loader whose place can't be kept."""
    if why := _REFUSED.get(accelerator.distributed_type.value):
        raise Unsupported(f"accelerate with {accelerator.distributed_type.value}: {why}: it is not supported")
    given = _sorted(accelerator, objects)
    watched = launched() and options.get("enabled") is not False  # its workers
    loaders = sum(isinstance(x, DataLoaderShard) for x in given["data"])
    data = [Place(x, "loader" if loaders == 1 else f"loader.{i}", watched) if isinstance(x, DataLoaderShard) else x for i, x in enumerate(given["data"])]
    extra = {"accelerator": moves(Micro(accelerator))} | _registered(accelerator, given) | dict(options.pop("extra", None) or {})
    session = Session(
        model=[m if accelerator.distributed_type.value == "FSDP" else extract_model_from_parallel(m, keep_torch_compile=False) for m in given["model"]],
        optimizer=given["optimizer"],
        scheduler=[s.scheduler for s in given["scheduler"]],
        scaler=() if accelerator.scaler is None else accelerator.scaler,
        data=data,
        extra=extra,
        **options,
    )
    one = OneStep(data)
    for optimizer in given["optimizer"]:
        _as_steps(session, optimizer, one)
    accelerator.register_for_checkpointing = _late(session, accelerator.register_for_checkpointing)
    return session


def again(accelerator: Accelerator, session: Session, model: torch.nn.Module) -> torch.nn.Module:
    """In a block of :mod:`replicad.inprocess`, after ``session.resume()``: a prepared model with process group and DDP around it, which are made anew where a restart has
    taken them down. Accelerator, session and all that was prepared stay outside of the block: a second ``accelerator.prepare`` would move what is kept."""
    if accelerator.num_processes == 1 and not isinstance(model, DistributedDataParallel):  # under a launcher one rank alone has groups, too
        return model
    if not dist.is_initialized():
        init_process_group(session, accelerator.state.backend)
    if not isinstance(model, DistributedDataParallel):
        raise Unsupported(
            f"{type(model).__name__}: only a model that accelerate has wrapped in DistributedDataParallel is wrapped again in the process: let the process end by its fault"
        )
    if model.process_group is dist.group.WORLD:
        return model
    handler = accelerator.ddp_handler
    options = unsent() | (handler.to_kwargs() if handler else {})  # resume() has put a rank's own buffers into the model
    new = DistributedDataParallel(model.module, device_ids=model.device_ids, output_device=model.output_device, **options)
    if handler is not None:
        handler.register_comm_hook(new)
    new._is_accelerate_prepared = True  # type: ignore[assignment]
    accelerator._models = [new if m is model else m for m in accelerator._models]
    return new


def _sorted(accelerator: Accelerator, objects: Iterable[Any]) -> dict[str, list[Any]]:
    """The objects by the session's arguments."""
    out: dict[str, list[Any]] = {"model": [], "optimizer": [], "scheduler": [], "data": []}
    for o in objects:
        kind = "model" if isinstance(o, torch.nn.Module) else "optimizer" if hasattr(o, "param_groups") else "data" if hasattr(o, "__iter__") else "scheduler"
        ours = kind == "data" and not isinstance(o, DataLoader)  # accelerate leaves that as it is
        if not ours and not getattr(o, "_is_accelerate_prepared", False):
            raise Invalid(
                f"replicad.accelerate.prepare: {type(o).__name__} is not what accelerator.prepare() returned: call that first, as it places what is kept on its device, and give "
                "its results here"
            )
        out[kind].append(_keepable(o) if kind == "data" else o)
    return out


def _keepable(loader: Any) -> Any:
    """A loader whose place can be kept."""
    if not hasattr(loader, "base_dataloader"):
        return loader
    base, ours = loader.base_dataloader, "use replicad.data.Loader, which needs no accelerator.prepare()"
    if isinstance(base.dataset, IterableDataset) or base.batch_sampler is None:
        what = "an IterableDataset" if isinstance(base.dataset, IterableDataset) else "batch_size=None"
        raise Unsupported(f"a loader with {what} has no place that could be kept: have a dataset with indices, and batches, or {ours}")
    if not isinstance(loader, DataLoaderShard):
        raise Unsupported(f"a {type(loader).__name__} reads on one rank for all: leave dispatch_batches=True out, or {ours}")
    if loader.use_stateful_dataloader:
        raise Unsupported("a loader with use_stateful_dataloader=True: leave that out, as the place of a plain one is kept")
    return loader


def _registered(accelerator: Accelerator, given: Mapping[str, list[Any]]) -> dict[str, Any]:
    """What was given to register_for_checkpointing, by its place there."""
    known = {id(x) for s in given["scheduler"] for x in (s, s.scheduler)} | {id(x) for kind in ("optimizer", "data", "model") for x in given[kind]}
    return {f"registered.{i}": o for i, o in enumerate(accelerator._custom_objects) if id(o) not in known}


def _late(session: Session, plain: Callable[..., None]) -> Callable[..., None]:
    """What takes the place of an accelerator's register_for_checkpointing while there is the session."""

    def register_for_checkpointing(*objects: Any) -> None:
        if not session.life.closed:
            names = ", ".join(type(o).__name__ for o in objects)
            raise Invalid(f"register_for_checkpointing({names}) after replicad.accelerate.prepare(): it would be in no copy. Call it before")
        plain(*objects)

    return register_for_checkpointing


def _as_steps(session: Session, optimizer: AcceleratedOptimizer, one: OneStep) -> None:
    """Has an update of the optimizer be a step, where none is open."""
    plain = optimizer.step

    @functools.wraps(plain)
    def step(closure: Callable[[], Any] | None = None) -> Any:
        if not optimizer.gradient_state.sync_gradients or session.life.inside is not None or session.life.closed:
            return plain(closure)
        one.begins(optimizer)
        with session.step():
            return plain(closure)

    optimizer.step = step


class Micro:
    """An accelerator's count of micro-batches. It has slots alone, by which the accelerator stays out of sight: what that holds is given by itself."""

    __slots__ = ("__weakref__", "_accelerator")

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = accelerator

    def state_dict(self) -> dict[str, Any]:
        """As it is now."""
        return {"step": self._accelerator.step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Puts it back."""
        self._accelerator.step = state["step"]


class Place:
    """Where a loop is in a prepared loader, which tells when it is asked for a batch.

    accelerate reads one batch ahead, to know the last one. So what is kept is how many batches the loop was given, the generators with which the epoch began (they have
    shuffled it), and those with which the batch that lies ready was made. A process that resumes shuffles as then, passes over what was used, makes that batch again with
    the generators of then, and goes on with those of now.
    """

    def __init__(self, loader: DataLoaderShard, name: str = "loader", watched: bool = False) -> None:
        self._loader, self._base, self._name = loader, loader.base_dataloader, name
        self.makes = Makes(f"{name}.dataset", f"{name}.collate_fn")
        self.generator: torch.Generator | None = loader.synchronized_generator
        self._before: OrderedDict[int, Callable[..., None]] = OrderedDict()
        self._epoch, self._used = loader.iteration, 0
        self._life = 0  # of the iterators that there are: a state that is loaded begins another
        self._began: tuple[Any, ...] | None = None  # the generators when the epoch began
        self._made: dict[int, Any] = {}  # those with which the newest batches were made, by index
        self._back = False  # it goes on in the middle of an epoch
        self.replay: tuple[int, Any, Any] | None = None  #: how many batches the next iterator passes over, the generators for the one after them, and for what follows
        object.__setattr__(self._base, "batch_sampler", _Indices(self._base.batch_sampler, self))  # torch refuses to have it set
        self._base.__iter__ = self._batches  # accelerate calls it by that name
        loader.numbered = self.numbered  # what the loop has
        self._workers = [Workers(self._base, name)] if watched and self._base.num_workers else []
        self.room = 4 * (len(rng.get()) + (0 if self.generator is None else self.generator.get_state().numel()))  #: what its state takes in the middle of an epoch

    @property
    def epoch(self) -> int:
        """The epoch that the loader is in."""
        return int(self._loader.iteration)

    @property
    def used(self) -> int:
        """How many batches of it the loop was given."""
        return self._used if self._loader.iteration == self._epoch else 0

    def numbered(self) -> Iterator[tuple[int, Any]]:
        """The rest of the epoch, each batch with its number in the epoch."""
        yield from enumerate(self._loader, self._used if self._back else 0)

    def __len__(self) -> int:
        return len(self._base.batch_sampler)

    def before_a_batch(self, hook: Callable[..., None]) -> RemovableHandle:
        """Has ``hook`` called with this place whenever the loop asks for a batch, before it is made; ``remove()`` ends that."""
        handle = RemovableHandle(self._before)
        self._before[handle.id] = hook
        return handle

    def note(self, index: int) -> None:
        """A batch is about to be made. Workers make theirs with generators of their own."""
        if self._base.num_workers == 0:
            self._made = {k: v for k, v in self._made.items() if k == index - 1} | {index: self.makes.get()}

    def holders(self) -> dict[str, Any]:
        """What makes the batches, and may carry something from one to the next."""
        return {f"{self._name}.dataset": self._base.dataset, f"{self._name}.collate_fn": unwrapped(self._base.collate_fn)}

    def workers(self) -> list[Workers]:
        """That make the batches."""
        return self._workers

    def _now(self) -> Any:
        return None if self.generator is None else self.generator.get_state()

    def _batches(self) -> Iterator[Any]:
        """The batches of an epoch, or of the rest of one."""
        life = self._life
        first, self._back, began = (self._used, False, self._began) if self._back else (0, False, None)
        self._used = at = first
        self._tell()
        self._epoch = self._loader.iteration
        now = rng.get()
        if first == len(self):  # accelerate counts only epochs that have begun
            self._loader.iteration += 1
            return
        if began is not None:
            rng.set(began[0])
            if self.generator is not None:
                self.generator.set_state(began[1])
            self.replay = first, self._made.get(first), self.makes.get() | {"rng": now}
        else:
            self._began, self._made = (now, self._now()), {}
        batches = type(self._base).__iter__(self._base)
        try:
            while True:
                if self._life != life:  # had it just ended, accelerate would count an epoch
                    raise SessionState("a batch of an iterator that was begun before session.resume(): the loader goes on elsewhere: iterate it anew")
                if at > first + 1:
                    self._tell()  # the first two are made when the first is asked for
                self._used = max(at, first + 1)
                try:
                    batch = next(batches)
                except StopIteration:
                    return
                at += 1
                yield batch
        except GeneratorExit:
            if self._life == life:  # an iterator is often dropped when the one after it was made
                self._used = 0  # the loop has left the epoch, and begins it anew
            raise

    def _tell(self) -> None:
        for hook in list(self._before.values()):
            hook(self)

    def state_dict(self) -> dict[str, Any]:
        """Where the loop is."""
        used = self.used  # 0 where the epoch is over
        began, made = (self._began, self._made.get(used)) if used else (None, None)
        return {"epoch": self._loader.iteration, "used": used, "of": len(self), "generator": self._now(), "began": began, "made": made}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes to where a loop was. :class:`replicad.Mismatch` for a loader with another number of batches."""
        if state["of"] != len(self) or (state["generator"] is None) != (self.generator is None):
            raise Mismatch(
                f"the copy is of a loader with {state['of']} batches for each rank, this one has {len(self)}, or shuffles otherwise: make it alike. replicad.data.Loader goes on "
                "in another world"
            )
        self._life += 1
        self._loader.iteration = self._epoch = state["epoch"]
        self._used, self._back, self._began, self._made = state["used"], state["used"] > 0, state["began"], {state["used"]: state["made"]}
        if self.generator is not None:
            self.generator.set_state(torch.as_tensor(state["generator"]))
        open_, self._loader.end_of_dataloader = self._loader.gradient_state, False
        while any(x is self._loader for x in open_.dataloader_references):  # of an epoch that was broken off
            open_._remove_dataloader(self._loader)


class _Indices:
    """The batches of indices of a sampler, which the place of its loader sees."""

    def __init__(self, sampler: Any, place: Place) -> None:
        self._sampler, self._place = sampler, place

    def __getattr__(self, name: str) -> Any:
        if name == "_sampler":
            raise AttributeError(name)
        return getattr(self._sampler, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Changes the sampler: accelerate puts another one into it when it loads a checkpoint."""
        if name in ("_sampler", "_place"):
            object.__setattr__(self, name, value)
        else:
            setattr(self._sampler, name, value)

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[Any]:
        replay, self._place.replay = self._place.replay, None
        skip, then, now = replay or (0, None, None)
        for i, indices in enumerate(self._sampler):
            if i < skip:
                continue
            if now is not None and i == skip:
                self._place.makes.set(now if then is None else then)
            elif now is not None and i == skip + 1:
                self._place.makes.set(now)
                now = None
            self._place.note(i)
            yield indices
        if now is not None:
            self._place.makes.set(now)
