"""How a loop over DeepSpeed's engine trains under its adapter, for replicad.testing.conformance: dropout, a buffer, accumulation, clipping, a schedule, evaluations, and what the
engine's own monitor is told."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import deepspeed
import numpy as np
import torch
from deepspeed.utils import logger

import replicad
from replicad.data import Loader
from replicad.testing.conformance import Run, Subject

logger.setLevel(logging.ERROR)

STEPS = 8
EVALUATES = 2


class Mean(torch.nn.Module):
    """A buffer that follows what a rank has seen, as batch norm's do; that one wants buffers of the weights' type."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(n))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean.lerp_(x.detach().float().mean(0), 0.1)
        return x - self.mean.to(x.dtype)


class Monitor:
    """Knows of the run, and nothing of replicad: what the engine tells its monitor."""

    enabled = True

    def __init__(self, run: Run) -> None:
        self._run = run

    def write_events(self, events: list[tuple[str, Any, int]]) -> None:
        for name, value, samples in events:
            self._run.event(name, samples, value=value)


class Kept(Subject):
    name = "deepspeed"
    stage = 1
    dtype: str = ""
    config: Mapping[str, Any] = {}

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        torch.manual_seed(1)
        np.random.seed(1)
        self.module = self.model()
        generator = torch.Generator().manual_seed(2)
        samples = torch.utils.data.TensorDataset(torch.randn(96, 8, generator=generator), torch.randint(4, (96,), generator=generator))
        self.held = samples[:8]
        self.engine, self.optimizer, _, self.scheduler = deepspeed.initialize(
            model=self.module,
            optimizer=self.makes([p for p in self.module.parameters() if p.requires_grad]),
            lr_scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5),
            config=self.settings(),
        )
        self.engine.monitor = Monitor(run)
        self.loader = Loader(samples, 4, seed=3, rank=run.rank, world=run.world)
        if run.kept:
            self.engine = replicad.deepspeed.keep(self.engine, data=self.loader)
        run.watch(self.module, self.base, lambda: self.engine.global_steps + 1)

    def settings(self) -> dict[str, Any]:
        config = {
            "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2, "gradient_clipping": 0.5, "steps_per_print": 10**9,
            "zero_optimization": {"stage": self.stage, "stage3_param_persistence_threshold": 20},
        }  # fmt: skip
        return config | ({self.dtype: {"enabled": True}} if self.dtype else {}) | dict(self.config)

    def makes(self, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=0.01)

    def model(self) -> torch.nn.Module:
        nn = torch.nn
        return nn.Sequential(nn.Linear(8, 16), Mean(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))

    @property
    def base(self) -> torch.optim.Optimizer:
        """The optimizer below ZeRO's."""
        return getattr(self.optimizer, "optimizer", self.optimizer)

    @property
    def session(self) -> replicad.Session:
        return self.engine.session

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.engine(x.to(next(self.module.parameters()).dtype)).float(), y)

    def begin(self) -> None:
        if self.run.kept:
            self.session.resume()

    def after(self, step: int) -> None:
        """What else follows a step."""

    def train(self) -> None:
        engine = self.engine
        self.begin()
        batches = self.loader.endless()
        while engine.global_steps < STEPS:
            for last in (False, True):
                loss = self.loss(*next(batches))
                engine.backward(loss)
                if last or engine.managed_gradient_accumulation():
                    engine.step()
            step = engine.global_steps
            self.run.at("log", step)
            norm, counts = float(engine.get_global_grad_norm() or 0), (engine.global_samples, engine.micro_steps)
            self.run.event("step", step, loss=loss.item(), norm=norm, lr=engine.get_lr(), counts=counts)
            if step % EVALUATES == 0:
                engine.eval()
                with torch.no_grad():
                    self.run.event("evaluation", step, loss=self.loss(*self.held).item())
                self.run.at("evaluation", step)
                engine.train()
            self.after(step)
        if self.run.kept:
            self.session.leave()

    def digests(self) -> Mapping[str, Any]:
        state = {f"{i}.{key}": t for i, of in enumerate(self.base.state.values()) for key, t in of.items()}
        weights = {name: self.part(p, getattr(p, "ds_tensor", p)) for name, p in self.module.named_parameters()} | dict(self.module.named_buffers())
        return {"weights": weights, "masters": list(self.masters()), "optimizer": state, "scheduler": self.scheduler.state_dict()}

    def part(self, p: Any, t: torch.Tensor) -> torch.Tensor:
        """What a rank has of a parameter: what the last one has beyond its end nobody has written."""
        n = t.numel()
        return t.detach()[: max(0, min(n, p.ds_numel - self.run.rank * n))] if hasattr(p, "ds_tensor") else t.detach()

    def masters(self) -> Iterator[torch.Tensor]:
        if self.stage < 3:
            yield from (p.detach() for p in self.base.state)
            return
        for params, flat in zip(self.optimizer.fp16_groups, self.optimizer.fp32_partitioned_groups_flat, strict=True):
            yield from (self.part(p, t) for p, t in zip(params, flat.split([p.ds_tensor.numel() for p in params]), strict=True))


class Zero0(Kept):
    name, stage = "deepspeed, ZeRO 0", 0


class Zero1(Kept):
    name, stage, dtype = "deepspeed, ZeRO 1, bf16", 1, "bf16"


class Zero2(Kept):
    name, stage, dtype = "deepspeed, ZeRO 2, bf16", 2, "bf16"


class Zero3(Kept):
    name, stage, dtype = "deepspeed, ZeRO 3, bf16", 3, "bf16"


class Whole1(Kept):
    name, stage = "deepspeed, ZeRO 1, fp32", 1


class Whole2(Kept):
    name, stage = "deepspeed, ZeRO 2, fp32", 2


class Whole3(Kept):
    name, stage = "deepspeed, ZeRO 3, fp32", 3


class Copied(Kept):
    """16-bit weights without ZeRO."""

    name, stage, dtype = "deepspeed, ZeRO 0, bf16", 0, "bf16"


class Accumulates(Kept):
    """16-bit weights whose gradients add up in float32, in an optimizer of DeepSpeed's of its own."""

    name, stage, dtype, config = "deepspeed, ZeRO 1, bf16, fp32 gradients", 1, "bf16", {"data_types": {"grad_accum_dtype": "fp32"}}


class Frozen(Kept):
    """A layer that is not trained, in partitions; groups in parts."""

    name, stage, dtype = "deepspeed, ZeRO 3, frozen layer", 3, "bf16"
    config: Mapping[str, Any] = {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 20, "sub_group_size": 100}}

    def model(self) -> torch.nn.Module:
        model = super().model()
        model[4].requires_grad_(False)
        return model


class Offloads(Kept):
    """The optimizer's state in the host's memory."""

    name, stage, dtype = "deepspeed, ZeRO 2, offload_optimizer to cpu", 2, "bf16"
    config: Mapping[str, Any] = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}, "zero_force_ds_cpu_optimizer": False}


class Offloads3(Kept):
    name, stage, dtype = "deepspeed, ZeRO 3, offload_optimizer to cpu", 3, "bf16"
    config: Mapping[str, Any] = {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}, "zero_force_ds_cpu_optimizer": False}


class Saves2(Kept):
    """Leaves a checkpoint of DeepSpeed's own."""

    name, stage, dtype = "deepspeed, ZeRO 2, save_checkpoint", 2, "bf16"

    def after(self, step: int) -> None:
        if step == 2:
            self.engine.save_checkpoint(str(self.run.folder.parent / "checkpoints"), tag="first")


class Saves3(Saves2):
    name, stage = "deepspeed, ZeRO 3, save_checkpoint", 3


class FromCheckpoint(Kept):
    """From a checkpoint of DeepSpeed's own, which lies beside what the runs leave; and it writes some."""

    def load(self) -> int:
        assert self.engine.load_checkpoint(str(self.run.folder.parent / "checkpoints"), tag="first")[0] is not None
        return int(self.engine.global_steps)

    def begin(self) -> None:
        if self.run.kept:
            self.session.resume(otherwise=self.load)
        else:
            self.load()

    def after(self, step: int) -> None:
        if step == 4:
            self.engine.save_checkpoint(str(self.run.folder / "saves"))
            self.run.at("save", step)


class FromCheckpoint2(FromCheckpoint):
    name, stage, dtype = "deepspeed, ZeRO 2, load_checkpoint", 2, "bf16"


class FromCheckpoint3(FromCheckpoint):
    name, stage, dtype = "deepspeed, ZeRO 3, load_checkpoint", 3, "bf16"


class Unmanaged(Kept):
    """A loop that says by itself when to update."""

    name, stage, dtype, config = "deepspeed, ZeRO 2, unmanaged accumulation", 2, "bf16", {"managed_gradient_accumulation": False}


class Stale(Kept):
    """A control: the weights that the model computes with are not made anew."""

    name, stage, dtype = "deepspeed, control", 2, "bf16"

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        if run.kept:
            self.engine.step.func.__self__.weights.back = lambda: None
