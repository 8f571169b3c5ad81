"""DeepSpeed's engine: ``engine = replicad.deepspeed.keep(engine)``, and the loop stays what it is.

An ``engine.step()`` that updates is a step of the session. Under ZeRO each rank has fp32 partitions of its own, and the base optimizer's state of them: those are kept. The weights
that the model computes with follow from the partitions, and are in no copy. Once all ranks have their partitions back, they gather the weights, as DeepSpeed does after an update.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ._builds import clear
from ._loop import Attributes, want

want("deepspeed", "0.19")
want("torch", "2.15")
clear()

import torch
import torch.distributed as dist
from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam
from deepspeed.runtime.bf16_optimizer import BF16_Optimizer
from deepspeed.runtime.engine import DeepSpeedEngine
from deepspeed.runtime.fp16.unfused_optimizer import FP16_UnfusedOptimizer
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

from .._torch.layout import partition
from .._torch.marked import moves
from .._torch.wrappers import clean
from ..errors import Invalid, SessionState, StaleProcessGroup, StaleProgram, Unsupported
from ..session import Session

__all__ = ["keep"]

log = logging.getLogger("replicad")

#: What an engine counts. The rest of its state is the model's and the optimizer's.
COUNTS = ("global_steps", "global_samples", "skipped_steps", "micro_steps")
#: What a loss scaler changes, where it has it.
SCALES = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")


def keep(engine: Any, *, data: Any = (), extra: Mapping[str, Any] | None = None, **session: Any) -> Any:
    """Keeps the training of the engine that ``deepspeed.initialize`` has returned, and returns it; its session is ``engine.session``. Call it once on all ranks, then
    ``engine.session.resume()``, before the first forward.

    ``data`` is what says which samples come next (:class:`replicad.data.Loader`). ``extra`` and the other arguments are those of :class:`replicad.Session`. Under ZeRO start the
    job with ``--groups auto``, as each rank has a part of its own. Where no launcher started the program, the engine trains as it did.
    :class:`replicad.Invalid` for what is no engine; :class:`replicad.Unsupported` for a version that this was not tested with, and for what can't be kept, by name, with what to do
    instead; :class:`replicad.SessionState` for an engine that is kept already.
    """
    if not isinstance(engine, DeepSpeedEngine):
        raise Invalid(f"keep: want the engine of deepspeed.initialize(), not {type(engine).__module__}.{type(engine).__qualname__}")
    if isinstance(vars(engine).get("session"), Session):
        raise SessionState("keep: this engine is kept already, as engine.session")
    if refused := _refused(engine, data):
        raise Unsupported(f"keep: {refused}")
    kept: Any = engine
    kept.session = _Keeper(kept, data, dict(extra or {}), session).session
    return kept


def _refused(engine: Any, data: Any) -> str:
    """What can't be kept of it, with what to do instead."""
    if type(engine) is not DeepSpeedEngine:
        return f"a {type(engine).__name__} has a schedule of its own, and stages with other weights on each rank: train with ZeRO, without pipeline or hybrid engine"
    if engine.optimizer is None:
        return "an engine without an optimizer trains nothing: give deepspeed.initialize() one"
    zero = engine._config.zero_config
    state, weights = _device(zero.offload_optimizer), _device(zero.offload_param)
    for given, text in (
        ("nvme" in (state, weights), "offload to NVMe: what lies in files has no memory to copy: leave device='nvme' out"),
        (weights, "offload_param: weights that come from the host for each layer were never tried: leave it out; offload_optimizer to the CPU is kept"),
        (engine.zenflow, "ZenFlow updates a part of the weights between steps: leave it out"),
        (engine.has_moe_layers, "experts of a mixture have partitions over other groups of ranks: train without expert parallelism"),
        (engine.mp_world_size > 1, "tensor parallelism: ranks with other weights have partitions over other groups: train with ZeRO alone"),
        (engine.zero_hpz_partition_size() > 1, "zero_hpz_partition_size: a second partition of the weights would be stale after a load: leave it out"),
        (zero.zero_quantized_weights or zero.zero_quantized_nontrainable_weights, "quantized weights do not follow from the partitions alone: leave zero_quantized_* out"),
        (engine.random_ltd_enabled() or engine.curriculum_learning_enabled(), "random-LTD and a curriculum count steps of their own: leave them out"),
        (
            hasattr(engine.optimizer, "muon_momentum_buffer_partitioned_groups_flat"),
            "save_muon_momentum_buffer_in_memory: ZeRO 3 has Muon's momentum outside of the optimizer's state then, where no copy has it: leave it out",
        ),
        (_scales(engine) or _scales(engine.optimizer), "torch_autocast to float16 has a scaler of its own: use bfloat16"),
        (
            engine.training_dataloader is not None and not data,
            "the loader of deepspeed.initialize(training_data=) has no place to keep: read with replicad.data.Loader, and give it as keep(engine, data=loader)",
        ),
    ):
        if given:
            return text
    if type(engine.optimizer) not in _KINDS and engine.optimizer is not engine.basic_optimizer:
        return f"{type(engine.optimizer).__name__} was never tried: use ZeRO of stage 1 to 3, or float32 or bfloat16 without it, and an optimizer of torch.optim"
    return ""


def _scales(of: Any) -> bool:
    """Whether torch's autocast scales a loss there."""
    return any(vars(of).get(name) is not None for name in ("torch_autocast_z0_gradscaler", "torch_autocast_gradscaler"))


def _device(offload: Any) -> str:
    """Where something is offloaded to; nowhere if it is not."""
    where = "none" if offload is None else getattr(offload.device, "value", offload.device)
    return "" if where == "none" else str(where)


# -- where an optimizer of DeepSpeed's has its weights ---------------------------------------------------------------------------


class _Plain:
    """The base optimizer over the model's own parameters, as in float32 without ZeRO: nothing follows from anything."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer, self.base = optimizer, getattr(optimizer, "optimizer", optimizer)

    def follow(self) -> Iterator[torch.Tensor]:
        """The model's parameters whose values follow from what is kept in another place."""
        return iter(())

    def partitions(self) -> Iterator[tuple[torch.Tensor, Any]]:
        """Tensors of which each rank of a group has a part of its own, with the group."""
        return iter(())

    def frozen(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The rank's parts of parameters that are not trained, where the model's own have no memory between steps."""
        return iter(())

    def back(self) -> None:
        """Has the model's parameters follow from what was loaded. All ranks are there."""


class _Copied(_Plain):
    """16-bit weights without ZeRO: each rank has all of them in float32, too."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer, self.base = optimizer, optimizer.optimizer

    def follow(self) -> Iterator[torch.Tensor]:
        return (p for group in self.optimizer.fp16_groups for p in group)

    def back(self) -> None:
        for half, whole in zip(self.follow(), (p for group in self.optimizer.fp32_groups for p in group), strict=True):
            half.data.copy_(whole.data)


class _Zero(_Copied):
    """ZeRO 1 and 2."""

    def follow(self) -> Iterator[torch.Tensor]:
        return (p for group in self.optimizer.bit16_groups for p in group)

    def partitions(self) -> Iterator[tuple[torch.Tensor, Any]]:
        return zip(self.optimizer.single_partition_of_fp32_groups, self.optimizer.real_dp_process_group, strict=True)

    def back(self) -> None:
        self.optimizer.update_lp_params()


class _Bf16(_Zero):
    """ZeRO 1 with bfloat16 weights and float32 gradients."""

    def follow(self) -> Iterator[torch.Tensor]:
        return (p for group in self.optimizer.bf16_groups for p in group)

    def partitions(self) -> Iterator[tuple[torch.Tensor, Any]]:
        return zip(self.optimizer.fp32_groups_flat_partition, self.optimizer.real_dp_process_group, strict=True)


class _Zero3(_Copied):
    """ZeRO 3. It puts its partitions into the base optimizer's groups only while that steps, and the session looks for them between steps: they stay there."""

    def __init__(self, optimizer: Any) -> None:
        super().__init__(optimizer)
        self._put()
        step = optimizer._optimizer_step
        optimizer._optimizer_step = functools.partial(self._step, step)
        optimizer._set_fp32_optimizer_param_groups = self._put
        optimizer._clear_fp32_optimizer_param_groups = self._put

    def _put(self) -> None:
        groups: list[list[torch.Tensor]] = [[] for _ in self.base.param_groups]
        for i, p in enumerate(self.optimizer.fp32_partitioned_groups_flat):
            groups[self.optimizer.sub_group_to_group_id[i]].append(p)
        for group, params in zip(self.base.param_groups, groups, strict=True):
            group["params"] = params

    def _step(self, step: Callable[[int], None], sub_group: int) -> None:
        for group in self.base.param_groups:  # the one that is stepped is put in by it
            group["params"] = []
        step(sub_group)
        self._put()

    def partitions(self) -> Iterator[tuple[torch.Tensor, Any]]:
        return zip(self.optimizer.fp32_partitioned_groups_flat, self.optimizer.sub_group_process_groups, strict=True)

    def follow(self) -> Iterator[torch.Tensor]:
        return iter(self.optimizer.module.parameters())

    def frozen(self) -> Iterator[tuple[str, torch.Tensor]]:
        ids = {id(p) for group in self.optimizer.fp16_groups for p in group}
        return ((name, p.ds_tensor) for name, p in self.optimizer.module.named_parameters() if id(p) not in ids)

    def back(self) -> None:
        zero = self.optimizer
        zero._partition_all_parameters()
        for i in range(len(zero.fp16_groups)):
            zero._reassign_or_swap_out_partitioned_parameters(i)
        if zero.persistent_parameters:  # small ones that every rank has whole
            zero.persistent_parameters[0].all_gather(zero.persistent_parameters)


_KINDS: dict[type, type[_Plain]] = {DeepSpeedZeroOptimizer: _Zero, DeepSpeedZeroOptimizer_Stage3: _Zero3, BF16_Optimizer: _Bf16, FP16_UnfusedOptimizer: _Copied}


# -- the engine --------------------------------------------------------------------------------------------------------------


class _Scaler:
    """The loss scaler of an optimizer, which is another object once a checkpoint was loaded."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer

    def _now(self) -> Attributes:
        scaler = getattr(self._optimizer, "loss_scaler", None) or getattr(self._optimizer, "loss_scale_config", None)
        return Attributes(scaler, *(name for name in SCALES if hasattr(scaler, name)))

    def state_dict(self) -> dict[str, Any]:
        """What it has changed."""
        return self._now().state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Puts it back."""
        self._now().load_state_dict(state)


class _Frozen(torch.nn.Module):
    """Parts of parameters that are not trained, as a session keeps what is frozen: once."""

    def __init__(self, parts: Iterable[tuple[str, torch.Tensor]]) -> None:
        super().__init__()
        for name, t in parts:
            self.register_parameter(name.replace(".", "/"), torch.nn.Parameter(t.detach(), requires_grad=False))


class _Keeper:
    """Makes the session of an engine, and has its updates be steps."""

    def __init__(self, engine: Any, data: Any, extra: dict[str, Any], given: dict[str, Any]) -> None:
        self.engine, self.world, self.resumed = engine, dist.group.WORLD, False
        self.weights = _KINDS.get(type(engine.optimizer), _Plain)(engine.optimizer)
        for t, group in self.weights.partitions():
            partition(t, _ranks(group))
        self.grads = [(p, p.grad) for p, _ in self.weights.partitions() if p.grad is not None]
        frozen = list(self.weights.frozen())
        ids = {id(p) for p in self.weights.follow()}
        whole = "model.module" if frozen else "model"
        names = [f"{whole}.{clean(engine.module, name)}" for name, p in engine.module.named_parameters() if id(p) in ids]
        self.session = Session(
            {"module": engine.module, "frozen": _Frozen(frozen)} if frozen else engine.module,
            self.weights.base,
            scheduler=() if engine.lr_scheduler is None else engine.lr_scheduler,
            data=data,
            extra={"engine": moves(Attributes(engine, *COUNTS)), "loss_scaler": moves(_Scaler(engine.optimizer))} | extra,
            derived=dict.fromkeys(names, _when_all_are_there) | dict(given.pop("derived", None) or {}),
            **given,
        )
        self.session.on_resumed(self._back)
        if engine.global_rank == 0:
            _name_inexact(self.weights.base)
        session: Any = self.session
        session.resume = functools.partial(self._resume, session.resume)
        engine.step = functools.partial(self._step, engine.step)

    def _resume(self, resume: Callable[..., Any], *args: Any, **more: Any) -> Any:
        if dist.group.WORLD is not self.world:
            raise StaleProcessGroup(
                "resume: DeepSpeed's engine, its optimizer and its modules hold process groups that were taken down when the block ended, and take no others. "
                "This process ends, and a new one takes its place"
            )
        if self.resumed and self.session.enabled:
            raise StaleProgram(
                "resume: DeepSpeed's engine has gradients of the step that was broken off, which the next one would count again. This process ends, and a new one takes its place"
            )
        found = resume(*args, **more)
        self.resumed = True
        return found

    def _back(self, _: Any) -> None:
        for p, grad in self.grads:  # offloaded: the optimizer adds gradients up there, and a resume takes gradients away
            p.grad = grad.zero_()
        self.weights.back()

    def _step(self, step: Callable[..., Any], *args: Any, **more: Any) -> Any:
        """``engine.step()``: an update is a step, a micro-batch before it is none."""
        updates = self.engine.is_gradient_accumulation_boundary() or not self.engine.managed_gradient_accumulation()
        if not updates or self.session.life.inside is not None or self.session._closed:
            return step(*args, **more)
        with self.session.step():
            return step(*args, **more)


def _name_inexact(optimizer: torch.optim.Optimizer) -> None:
    """A kernel of DeepSpeed's for the CPU multiplies powers of beta up from step to step, and raises them anew in a new process."""
    if isinstance(optimizer, (DeepSpeedCPUAdam, FusedAdam)) and any(p.device.type == "cpu" for group in optimizer.param_groups for p in group["params"]):
        log.warning(
            "replicad: %s keeps powers of beta in its process, where no copy has them: on a CPU a resumed run differs from an undisturbed one in last digits. "
            "torch.optim.AdamW does not ('torch_adam': true in the optimizer's params, 'zero_force_ds_cpu_optimizer': false where it is offloaded)",
            type(optimizer).__name__,
        )


def _ranks(group: Any) -> Sequence[int]:
    return dist.get_process_group_ranks(group)


def _when_all_are_there() -> None:
    """A load makes nothing yet: partitions are gathered by all ranks in an epoch that is open, where a rank that waits for one that is lost is freed."""
