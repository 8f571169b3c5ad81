"""A session under Megatron-core's optimizers, for Megatron-LM's ``pretrain`` and loops of one's own::

    model, optimizer, opt_param_scheduler = setup_model_and_optimizer(...)
    session = replicad.megatron.keep(model, optimizer, opt_param_scheduler)
    ...make the data loaders from args.consumed_train_samples, and train...
    session.leave()

An iteration is a step: it begins where ``optimizer.step()`` is about to change weights, and ends behind ``opt_param_scheduler.step()``. It is over when the next one calls
``optimizer.zero_grad()``: an evaluation and a save belong to it, and are done again with it where they were interrupted. One that an overflow skips is a step without an update.
fp32 shards and the state of the optimizer are a rank's own; 16-bit weights follow from them, and are in no copy.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.hooks import RemovableHandle

from .._torch.groups import Spread
from .._torch.layout import laid
from .._torch.marked import moves
from .._torch.objects import by_name
from .._torch.wrappers import clean
from ..errors import Invalid, Mismatch, Unsupported
from ..session import Resumed, Session, current
from ._loop import Attributes, want

__all__ = ["keep"]

log = logging.getLogger("replicad")

#: The oldest and the newest release that were tried.
LEAST, MOST = "0.16", "0.19"
#: Optimizers whose parts are known.
_KNOWN = ("ChainedOptimizer", "DistributedOptimizer", "Float16OptimizerWithFloat16Params", "FP32Optimizer")
#: At which iterations Megatron stands still: it evaluates, or saves, or has ended.
_INTERVALS = ("eval_interval", "save_interval", "train_iters")
#: Options that this can't keep, with why, on the optimizer's, the wrapper's or the model's configuration.
_REFUSED = {
    "use_precision_aware_optimizer": "fp32 weights are inside of FusedAdam, in part as remainders of the 16-bit ones",
    "optimizer_cpu_offload": "parts of the optimizer are made anew on the CPU",
    "optimizer_cuda_graph": "a graph replays optimizer.step(), and no step would be seen",
    "use_megatron_fsdp": "its buffers are not looked into: use the distributed optimizer, or FSDP2 with replicad.Session",
    "fp8_param_gather": "weights in FP8 do not follow from fp32 ones alone",
    "fp4_param_gather": "weights in FP4 do not follow from fp32 ones alone",
    "reuse_grad_buf_for_mxfp8_param_ag": "weights in FP8 do not follow from fp32 ones alone",
    "fp8": "TransformerEngine's scales are in no tensor that could be copied",
    "fp4": "TransformerEngine's scales are in no tensor that could be copied",
}

_last: Kept | None = None  # the session that keep() made last, with its objects


def keep(model: Any, optimizer: Any, opt_param_scheduler: Any = None, *, counters: Any = None, longest: float = 3600.0, **options: Any) -> Session:
    """A session of what Megatron's ``setup_model_and_optimizer`` returned, with the newest state in it. Call it before data loaders are made: Megatron makes them begin at
    ``consumed_train_samples``, which it sets, with ``iteration``, on ``counters`` (by default Megatron's arguments; any object with these attributes, or with ``step``).
    A checkpoint that Megatron has loaded counts where neither memory nor the durable tier has a state.

    ``longest`` is how many seconds an evaluation or a save may take that ``counters``, or else Megatron's arguments, have at an iteration (``eval_interval``, ``save_interval``,
    ``train_iters``), before a rank in it counts as one that hangs. Where neither has one of these, a warning says so.

    Called again in the process (a block of :mod:`replicad.inprocess` that makes the model anew), it puts the new objects into the session that there is. ``options`` are those of
    :class:`replicad.Session`, at the first call. :class:`replicad.Unsupported` for what can't be kept, by name."""
    global _last
    objects = Objects(_core(), model, optimizer, opt_param_scheduler, counters)
    if _last is None or _last.session._closed or _last.session is not current():
        _last = Kept(objects, longest, options)
    else:
        _last.take(objects)
    session = _last.session
    at = objects.iteration()
    session.resume(otherwise=None if not at else lambda: at)
    return session


def _core() -> Any:
    """Megatron-core, of a version that was tried. A source tree on the path has no entry in the list of packages."""
    try:
        import megatron.core as core
    except ModuleNotFoundError as err:
        if (err.name or "").partition(".")[0] != "megatron":
            raise
        want("megatron-core", LEAST, most=MOST)
        raise
    want("megatron-core", LEAST, core.__version__, MOST)
    return core


class Objects:
    """What one run of a program has made."""

    def __init__(self, core: Any, model: Any, optimizer: Any, scheduler: Any, counters: Any) -> None:
        self.core, self.optimizer, self.scheduler = core, optimizer, scheduler
        self.chunks = list(model) if isinstance(model, (list, tuple, torch.nn.ModuleList)) else [model]
        self.inner = list(_inner(optimizer))
        args = getattr(sys.modules.get("megatron.training.global_vars"), "_GLOBAL_ARGS", None)
        self.counters = args if counters is None else counters
        self.intervals = next((o for o in (self.counters, args) if any(hasattr(o, n) for n in _INTERVALS)), None)
        self._refuse()
        for o in self.inner:
            for p in (p for group in o.optimizer.param_groups for p in group["params"]):
                p.requires_grad_()  # a session takes what asks for no gradient to be frozen. Megatron reads the flag of weights alone, and writes with none recorded
            if o.init_state_fn is not None and not type(o.optimizer).__module__.startswith("torch."):  # SGD has none
                o.init_state_fn(o.optimizer, o.config)  # as Megatron does before it loads a checkpoint

    def _refuse(self) -> None:
        configs = [c for o in self.inner for c in (o.config, getattr(o, "ddp_config", None))] + [getattr(m, n, None) for m in self.chunks for n in ("config", "ddp_config")]
        for name, why in _REFUSED.items():
            if any(getattr(c, name, None) for c in configs):
                raise Unsupported(f"Megatron with {name}: {why}: leave it out")
        for o in (*_chains(self.optimizer), *self.inner):
            if type(o).__name__ not in _KNOWN:  # a subclass may gather weights at another place
                raise Unsupported(f"Megatron with {type(o).__name__}: known are {', '.join(_KNOWN)}: choose adam or sgd")
        if self.counters is not None and self.calculator() is None:
            raise Invalid("replicad.megatron.keep: counters without a calculator of micro-batches: call init_num_microbatches_calculator() before, as initialize_megatron() does")

    def optimizers(self) -> list[Any]:
        """The optimizers that hold tensors. Their parameters are fp32 shards."""
        return [o.optimizer for o in self.inner]

    def scalers(self) -> list[Any]:
        """The loss scalers of fp16."""
        return [o.grad_scaler for o in self.inner if getattr(o, "grad_scaler", None) is not None]

    def calculator(self) -> Any:
        """What says of how many micro-batches the next iteration is."""
        module = sys.modules.get("megatron.core.num_microbatches_calculator")
        return getattr(module, "_GLOBAL_NUM_MICROBATCHES_CALCULATOR", None)

    def rerun(self) -> Any:
        """The machine that runs an iteration again whose result is suspicious."""
        return getattr(sys.modules.get("megatron.core.rerun_state_machine"), "_GLOBAL_RERUN_STATE_MACHINE", None)

    def iteration(self) -> int:
        """Where Megatron's own checkpoint has brought the program."""
        return int(getattr(self.counters, _step(self.counters), 0) or 0)

    def following(self) -> list[str]:
        """The names of weights that follow from fp32 ones."""
        follow = {id(p) for o in self.inner for p in _copies(o)}
        return [f"{name}.{clean(m, key)}" for name, m in by_name("model", self.chunks).items() for key, p in m.named_parameters() if id(p) in follow]

    @torch.no_grad()
    def rebuild(self) -> None:
        """Makes this rank's part of the weights that follow. The others have theirs: :meth:`gather`."""
        for o in self.inner:
            if next(_copies(o), None) is not None:
                o._copy_main_params_to_model_params()

    @torch.no_grad()
    def gather(self) -> None:
        """Brings together what each rank has made. With ``overlap_param_gather`` the next forward would, but an evaluation may come first."""
        for m in self.chunks:
            if not getattr(getattr(m, "ddp_config", None), "use_distributed_optimizer", False):
                continue
            for group in (*m.bucket_groups, *m.expert_parallel_bucket_groups):
                group.param_gather_handle = None  # of an epoch that is gone
            m.start_param_sync(force_sync=True)

    def spread(self) -> Spread | None:
        """Which ranks have the same shards: those of other instances of the distributed optimizer, or all data-parallel ranks where there is none. None for a rank alone."""
        if not (dist.is_initialized() and dist.get_world_size() > 1):
            return None
        of: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(of, self._share())
        return tuple(of)

    def _share(self) -> tuple[Any, ...]:
        """What tells this rank's state from that of others: its place in the parallel model, and in what each optimizer is sharded over."""
        state = self.core.parallel_state
        if not state.model_parallel_is_initialized():
            return ("rank", dist.get_rank())  # groups of one are always right
        place = (
            state.get_tensor_model_parallel_rank(),
            state.get_pipeline_model_parallel_rank(),
            state.get_expert_model_parallel_rank(),
            state.get_expert_tensor_parallel_rank(),
        )
        return *place, *(dist.get_rank(o.data_parallel_group) if _distributed(o) else 0 for o in self.inner)


def _chains(optimizer: Any) -> Iterator[Any]:
    """The optimizers that consist of others."""
    if hasattr(optimizer, "chained_optimizers"):
        yield optimizer
        for o in optimizer.chained_optimizers:
            yield from _chains(o)


def _inner(optimizer: Any) -> Iterator[Any]:
    """The optimizers that these consist of, but for those without parameters."""
    if hasattr(optimizer, "chained_optimizers"):
        for o in optimizer.chained_optimizers:
            yield from _inner(o)
    elif not getattr(optimizer, "is_stub_optimizer", False):
        yield optimizer


def _distributed(o: Any) -> bool:
    return type(o).__name__ == "DistributedOptimizer"


def _copies(o: Any) -> Iterator[torch.nn.Parameter]:
    """The weights that an optimizer makes from the fp32 ones that it steps."""
    if _distributed(o):
        yield from (p for buffer in o.buffers for bucket in buffer.buckets for p in bucket.params_list)
    else:
        yield from (p for group in getattr(o, "float16_groups", ()) for p in group)


def _step(counters: Any) -> str:
    return "iteration" if hasattr(counters, "iteration") else "step"


class Kept:
    """A session, and the objects that are in it now."""

    def __init__(self, objects: Objects, longest: float, options: Mapping[str, Any]) -> None:
        self.objects, self._longest = objects, longest
        self._pause = contextlib.ExitStack()  # of what Megatron does between two iterations
        self._mark: object = None  # of the step that is open
        self._now: dict[str, Any] = {}  # the counts that are kept with the newest step
        self._next: dict[str, Any] = {}  # those of the step that is open
        self._hooks: OrderedDict[int, Callable[[Any], None]] = OrderedDict()
        self._lay()
        extra: dict[str, Any] = {"scalers": moves(Scalers(self)), "rerun": moves(Rerun(self))}
        if objects.counters is not None:
            options = {**options, "data": _with(self, options.get("data"))}
        if taken := {"model", "optimizer", "scheduler", "scaler", "derived"} & options.keys():
            raise Invalid(f"replicad.megatron.keep: {sorted(taken)[0]}= is what keep() finds by itself: leave it out")
        follow = objects.following()
        derived: dict[str, Callable[[], None]] = dict.fromkeys(follow, _nothing) | {name: lambda: self.objects.rebuild() for name in follow[:1]}
        self.session = Session(
            model=objects.chunks,
            optimizer=objects.optimizers(),
            scheduler=Scheduler(self) if objects.scheduler is not None else (),
            derived=derived,
            **{**options, "extra": extra | dict(options.get("extra") or {})},
        )
        self.session.on_resumed(self._resumed)
        self._patch()
        if self.session.enabled and objects.intervals is None:
            log.warning(
                "replicad.megatron.keep: nothing says at which iterations this program evaluates and saves: a long evaluation counts as a hang. Set eval_interval, save_interval "
                "and train_iters on counters=, or do it in `with session.pause(most=SECONDS)`"
            )

    def take(self, objects: Objects) -> None:
        """Puts objects that were made anew in the place of those that there were."""
        before, self.objects = self.objects, objects
        self._mark, self._now, self._next = None, {}, {}
        self._pause.close()
        self._lay()
        try:
            self.session.rebind(model=objects.chunks, optimizer=objects.optimizers())
        except BaseException:
            self.objects = before
            raise
        self._patch()

    def _lay(self) -> None:
        if (spread := self.objects.spread()) is not None:
            for o in self.objects.optimizers():
                laid(o, spread)

    def _resumed(self, resumed: Resumed) -> None:
        if resumed.source not in ("fresh", "otherwise"):
            self.objects.gather()

    # -- an iteration is a step ----------------------------------------------------------------------------------------

    def _patch(self) -> None:
        """Has the calls that Megatron makes in an iteration begin and end a step. They are this optimizer's and this scheduler's alone."""
        optimizer, scheduler = self.objects.optimizer, self.objects.scheduler
        step, ready, zero = optimizer.step, optimizer.step_with_ready_grads, optimizer.zero_grad

        @functools.wraps(zero)
        def begins(*args: Any, **kwargs: Any) -> Any:
            self._pause.close()
            if self._alive():
                for hook in list(self._hooks.values()):
                    hook(self)
            return zero(*args, **kwargs)

        @functools.wraps(step)
        def whole(*args: Any, **kwargs: Any) -> Any:
            self._end()  # some other rank's update failed, and the scheduler was not stepped
            at = self.session.at
            done = step(*args, **kwargs)
            if self._alive() and self.session.at == at and self.session.life.inside is None:  # skipped: an overflow
                self._begin(updated=False)
                self._end()
            if scheduler is None:
                self._end()
            return done

        @functools.wraps(ready)
        def update(*args: Any, **kwargs: Any) -> Any:
            if self._alive() and self.session.life.inside is None:
                self._begin()
            return ready(*args, **kwargs)

        optimizer.step, optimizer.step_with_ready_grads, optimizer.zero_grad = whole, update, begins
        if scheduler is not None:
            plain = scheduler.step

            @functools.wraps(plain)
            def stepped(increment: int) -> None:
                plain(increment)
                self._end(increment)

            scheduler.step = stepped

    def _alive(self) -> bool:
        return not self.session._closed and not self.session.life.left

    def _begin(self, updated: bool = True) -> None:
        self.session.step_begin(updated=updated)
        self._mark = self.session.life.inside
        if self.objects.counters is not None:
            c, batches = self.objects.counters, self.objects.calculator()
            left_out = batches.get_current_global_batch_size() - batches.get_current_running_global_batch_size()
            self._next = {n: getattr(c, n) for n in ("consumed_train_samples", "skipped_train_samples") if hasattr(c, n)}
            self._next["iteration"] = self.session.at + 1
            self._next["consumed_train_samples"] += batches.get_current_running_global_batch_size()
            if "skipped_train_samples" in self._next:
                self._next["skipped_train_samples"] += left_out

    def _end(self, increment: int | None = None) -> None:
        """Ends the step if it is open. The loop counts the iteration after this, so that what is kept is a step ahead of it."""
        if self._mark is None or self.session.life.inside is not self._mark:
            return
        if increment is not None and self._next:
            batches = self.objects.calculator()
            self._next["consumed_train_samples"] += increment - batches.get_current_running_global_batch_size()
        self._now, self._mark = self._next, None
        at = self.session.step_end()
        if any(every and at % every == 0 for every in (getattr(self.objects.intervals, n, None) for n in _INTERVALS)):
            self._pause.enter_context(self.session.pause(self._longest))  # until the next iteration begins: no hook tells of an evaluation

    # -- what the loop counts, which says which samples come next ---------------------------------------------------------

    def before_a_batch(self, hook: Callable[[Any], None]) -> RemovableHandle:
        """As of replicad.data.Loader."""
        handle = RemovableHandle(self._hooks)
        self._hooks[handle.id] = hook
        return handle

    def state_dict(self) -> dict[str, Any]:
        """Iteration and samples, as they are when the iteration has been counted; those of evaluations as they are."""
        c = self.objects.counters
        if self._now:
            return self._now | {n: getattr(c, n) for n in ("consumed_valid_samples",) if hasattr(c, n)}
        names = [n for n in ("consumed_train_samples", "skipped_train_samples", "consumed_valid_samples") if hasattr(c, n)]
        return {n: getattr(c, n) for n in names} | {"iteration": self.objects.iteration()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Puts them back, and has the number of micro-batches follow."""
        c = self.objects.counters
        self._now = dict(state)
        for name, value in state.items():
            setattr(c, _step(c) if name == "iteration" else name, value)
        self.objects.calculator().update(state["consumed_train_samples"], False)


def _with(counters: Any, data: Any) -> dict[str, Any]:
    """The counters, and loaders that were given."""
    return {name.removeprefix("data."): o for name, o in by_name("data", data).items()} | {"Megatron's counters": counters}


def _nothing() -> None:
    """Made with the first of them."""


class Scheduler:
    """Megatron's scheduler adds what it loads to what it has."""

    def __init__(self, kept: Kept) -> None:
        self._kept = kept

    def state_dict(self) -> Any:
        """That of Megatron's."""
        return self._kept.objects.scheduler.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads it into one that has counted nothing. No step ends by it."""
        scheduler = self._kept.objects.scheduler
        scheduler.num_steps = 0
        scheduler.load_state_dict(dict(state))


class Scalers:
    """The loss scalers of fp16, whose scales are tensors on the device."""

    def __init__(self, kept: Kept) -> None:
        self._kept = kept

    def state_dict(self) -> dict[str, Any]:
        """Each's."""
        return {"scalers": [{k: v.item() if isinstance(v, torch.Tensor) else v for k, v in s.state_dict().items()} for s in self._kept.objects.scalers()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Puts them back. :class:`replicad.Mismatch` for another number of them."""
        scalers = self._kept.objects.scalers()
        if len(scalers) != len(state["scalers"]):
            raise Mismatch(f"the copy has {len(state['scalers'])} loss scalers, this program {len(scalers)}: use the same --fp16 or --bf16")
        for s, kept in zip(scalers, state["scalers"], strict=True):
            s.load_state_dict(kept | {"scale": torch.tensor([kept["scale"]])} if "scale" in kept else kept)


class Rerun:
    """What the rerun machine has seen of results. What a rerun is under way of lies between two steps."""

    NAMES = ("current_iteration", "first_iteration_complete", "large_value_counts", "max_values")

    def __init__(self, kept: Kept) -> None:
        self._kept = kept

    def state_dict(self) -> dict[str, Any]:
        """Its statistics; nothing where there is no machine."""
        machine = self._kept.objects.rerun()
        return {} if machine is None else Attributes(machine, *(n for n in self.NAMES if hasattr(machine, n))).state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Puts them back, where there is one."""
        if (machine := self._kept.objects.rerun()) is not None and state:
            Attributes(machine, *state).load_state_dict(state)
