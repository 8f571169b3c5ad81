"""How a program trains with Megatron-core under its adapter, for replicad.testing.conformance: an iteration as in megatron.training's train_step and train, with Megatron's own
wrapper, optimizers, scheduler, groups, calculator of micro-batches and rerun machine, on a CPU."""

from __future__ import annotations

import contextlib
import inspect
import logging
import types
import warnings
from collections.abc import Mapping
from typing import Any

warnings.filterwarnings("ignore", module="megatron.*")

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import num_microbatches_calculator as batches
from megatron.core import parallel_state, rerun_state_machine, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.transformer import TransformerConfig

import replicad
from oncpu import OnCPU
from replicad.testing.conformance import Break, Run, Subject

logging.getLogger("megatron").setLevel(logging.ERROR)

ITERATIONS, MICRO, EVALUATE = 12, 2, 4
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Network(torch.nn.Module):
    """Dropout, a buffer that each forward moves, Megatron's rotary embedding, and sizes that no world divides."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.body = torch.nn.Sequential(torch.nn.Linear(8, 17), torch.nn.GELU(), torch.nn.Dropout(0.2), torch.nn.Linear(17, 3))
        self.rope = RotaryEmbedding(8, 1.0, use_cpu_initialization=True)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.seen += 1
        return self.body(x * self.rope(len(x))[:, 0, 0].cos().to(x.dtype))


class Kept(Subject):
    """bf16 with the distributed optimizer, whose shards are of one rank each."""

    name = "megatron"
    flags: tuple[str, ...] = ("--groups", "auto", "--collective-window")
    dtype = torch.bfloat16
    sharded, overlap, instances = True, False, 1
    made: Any = None
    parts: Any = None
    model: Any = None
    #: A step each.
    raised = (Break("forward", 1), Break("step", 4, 1), Break("second forward", 7, 1), Break("backward", 10), Break("forward", 12))
    killed = (Break("backward", 3, 1), Break("step", EVALUATE + 1), Break("evaluation", 2 * EVALUATE, 1), Break("forward", 12, 1))

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        np.random.seed(1)  # Megatron imports it, and its own programs seed it

    @property
    def session(self) -> Any:
        return self.made

    def forget(self) -> None:
        """Takes out what makes the 16-bit weights anew."""
        replicad.megatron.Objects.rebuild = lambda self: None

    def config(self) -> dict[str, Any]:
        return {"bf16": self.dtype == torch.bfloat16, "fp16": self.dtype == torch.float16, "params_dtype": self.dtype}

    def make(self) -> tuple[Network, Any, Any, Any]:
        """What initialize_megatron() and setup_model_and_optimizer() make."""
        world, rank = self.run.world, self.run.rank
        parallel_state.initialize_model_parallel(num_distributed_optimizer_instances=self.instances)
        batches.init_num_microbatches_calculator(**self._growing(), rank=rank, global_batch_size=3 * MICRO * world, micro_batch_size=MICRO, data_parallel_size=world)
        rerun_state_machine.initialize_rerun_state_machine(mode=rerun_state_machine.RerunMode.VALIDATE_RESULTS)
        torch.manual_seed(1)
        config = TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=1, **self.config())
        how = {"overlap_grad_reduce": self.overlap, "overlap_param_gather": self.overlap} | {"use_distributed_optimizer": self.sharded}
        net = Network(config).to(DEVICE, self.dtype)
        model = DistributedDataParallel(config, DistributedDataParallelConfig(grad_reduce_in_fp32=True, num_distributed_optimizer_instances=self.instances, **how), net)
        options = {"overlap_param_gather": self.overlap, "use_distributed_optimizer": self.sharded, "loss_scale_window": 3.0, "initial_loss_scale": 2.0**24}
        optimizer = get_megatron_optimizer(OptimizerConfig(optimizer="adam", lr=0.02, min_lr=1e-4, clip_grad=1.0, **self.config(), **options), [model])
        scheduler = OptimizerParamScheduler(
            optimizer, init_lr=0.0, max_lr=0.02, min_lr=1e-4, lr_warmup_steps=8, lr_decay_steps=150, lr_decay_style="cosine",
            start_wd=0.0, end_wd=0.1, wd_incr_steps=100, wd_incr_style="linear",
        )  # fmt: skip
        return net, model, optimizer, scheduler

    def train(self) -> None:
        with OnCPU() if DEVICE == "cpu" else contextlib.nullcontext():
            self._train()

    def _train(self) -> None:
        if not dist.is_initialized():
            dist.init_process_group("gloo" if DEVICE == "cpu" else "nccl")
        net, model, optimizer, scheduler = self.make()
        world, rank = self.run.world, self.run.rank
        tracker = tensor_parallel.get_cuda_rng_tracker()
        if DEVICE == "cpu":
            tracker.set_states({"model-parallel-rng": torch.tensor([2719 + rank, 0]).view(torch.uint8)})
        else:
            tensor_parallel.model_parallel_cuda_manual_seed(1)
        counters = types.SimpleNamespace(iteration=0, consumed_train_samples=0, skipped_train_samples=0, consumed_valid_samples=0, eval_interval=EVALUATE, train_iters=ITERATIONS)
        if self.run.kept:
            self.made = replicad.megatron.keep([model], optimizer, scheduler, counters=counters, staging=True)
        iteration = counters.iteration
        inner = optimizer.chained_optimizers[0].optimizer
        self.run.watch(net, inner, lambda: iteration + 1)
        self.parts, self.model = (net, inner, scheduler, counters), model
        while iteration < ITERATIONS:
            batches.update_num_microbatches(counters.consumed_train_samples, consistency_check=False)
            rerun = rerun_state_machine.get_rerun_state_machine()
            model.zero_grad_buffer()
            optimizer.zero_grad()
            if self.run.kept and iteration == EVALUATE:
                self.made.commit()  # so that the fault goes back no further than behind the evaluation
            for micro in range(number := batches.get_num_microbatches()):
                first = counters.consumed_train_samples + (micro * world + rank) * MICRO
                x = torch.stack([_sample(first + i) for i in range(MICRO)]).to(DEVICE, self.dtype)
                with model.no_sync() if micro < number - 1 else contextlib.nullcontext():
                    loss = model(x).float().square().mean()
                    optimizer.scale_loss(loss / number).backward()
            model.finish_grad_sync()
            rerun.max_values["loss"] = max(loss.item(), rerun.max_values.get("loss", 0.0))
            drawn = self._tracked(tracker)
            updated, norm, _ = optimizer.step()
            if updated:
                scheduler.step(increment=number * MICRO * world)
            iteration += 1
            counters.consumed_train_samples += batches.get_current_running_global_batch_size()
            self.run.event(
                "iteration", iteration, loss=loss.item(), norm=norm, updated=updated, rate=inner.param_groups[0]["lr"], decay=inner.param_groups[0]["weight_decay"],
                samples=counters.consumed_train_samples, micro=number, scale=optimizer.get_loss_scale().item(), seen=net.seen.item(), drawn=drawn, most=rerun.max_values["loss"],
            )  # fmt: skip
            if iteration % EVALUATE == 0:
                self._evaluate(iteration, model, counters)
        if self.overlap:
            model.start_param_sync(force_sync=True)
        if self.run.kept:
            self.made.leave()

    def _evaluate(self, iteration: int, model: Any, counters: Any) -> None:
        """As megatron.training's evaluate(): each batch moves the place in the validation samples."""
        model.eval()
        with torch.no_grad():
            for _ in range(2):
                x = torch.stack([_sample(10_000 + counters.consumed_valid_samples + i) for i in range(MICRO)]).to(DEVICE, self.dtype)
                loss = model(x).float().square().mean().item()
                counters.consumed_valid_samples += MICRO * self.run.world
                self.run.at("evaluation", iteration)
        model.train()
        self.run.event("evaluation", iteration, loss=loss, samples=counters.consumed_valid_samples)

    def _growing(self) -> dict[str, Any]:
        """A rank has one micro-batch in the first iterations, then two, then three, as this release of Megatron is told so."""
        least = MICRO * self.run.world
        if "step_batch_size_schedule" in inspect.signature(batches.init_num_microbatches_calculator).parameters:
            return {"step_batch_size_schedule": f"0:{least} {3 * least}:{2 * least} {9 * least}:{3 * least}"}
        return {"rampup_batch_size": [least, least, 9 * least]}

    def _tracked(self, tracker: Any) -> float:
        """A number of Megatron's tracker. A state of a device's generator is a seed and an offset; drawing moves that."""
        if DEVICE != "cpu":
            with tracker.fork():
                return torch.rand((), device=DEVICE).item()
        seed, offset = tracker.get_states()["model-parallel-rng"].view(torch.int64).tolist()
        tracker.set_states({"model-parallel-rng": torch.tensor([seed, offset + 4]).view(torch.uint8)})
        return torch.rand((), generator=torch.Generator().manual_seed(seed + offset)).item()

    def digests(self) -> Mapping[str, Any]:
        net, inner, scheduler, counters = self.parts
        return {
            "weights": {k: v.float() for k, v in net.state_dict().items()},
            "fp32": [p.detach().clone() for g in inner.param_groups for p in g["params"]],
            "optimizer": [dict(s) for s in inner.state.values()],
            "scheduler": scheduler.state_dict(),
            "samples": counters.consumed_train_samples,
        }


class Instances(Kept):
    """Two instances of the distributed optimizer: each shard is two ranks'. The groups are given, and would be refused if they put other ranks together than the adapter does."""

    name = "megatron, 2 instances"
    flags = ("--groups", "0,0", "--collective-window")
    instances = 2


class Four(Instances):
    """Two shards of two ranks each."""

    flags = ("--groups", "0,1,0,1", "--collective-window")
    killed = (Break("backward", 5, 3),)


class Overlap(Kept):
    """Parameters are gathered in the next forward."""

    name = "megatron, overlap_param_gather"
    overlap = True


class Half(Kept):
    """fp16, whose first iterations overflow."""

    name = "megatron, fp16"
    dtype = torch.float16
    raised = (Break("forward", 1), Break("second forward", 7, 1), Break("step", 10, 1), Break("forward", 12))
    killed = (Break("backward", 3, 1), Break("step", 10), Break("forward", 12, 1))


class Whole(Kept):
    """bf16 without the distributed optimizer: each rank has all fp32 weights."""

    name = "megatron, not distributed"
    sharded = False


class Single(Kept):
    """fp32 with the distributed optimizer, whose shards are parts of the weights."""

    name = "megatron, fp32"
    dtype = torch.float32


class FusedAdam(torch.optim.Optimizer):
    """AdamW with state and groups as TransformerEngine's and apex's have them: the count is in the group, from the first step on."""

    def __init__(self, groups: Any) -> None:
        super().__init__(groups, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["step"] = n = group.get("step", 0) + 1
            a, b = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state |= {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
                p.mul_(1 - group["lr"] * group["weight_decay"])
                state["exp_avg"].lerp_(p.grad, 1 - a)
                state["exp_avg_sq"].mul_(b).addcmul_(p.grad, p.grad, value=1 - b)
                p.sub_(group["lr"] * (state["exp_avg"] / (1 - a**n)) / ((state["exp_avg_sq"] / (1 - b**n)).sqrt() + group["eps"]))


class Fused(Kept):
    """An optimizer that is none of torch's, and makes its state in its first step."""

    name = "megatron, FusedAdam"

    def make(self) -> tuple[Network, Any, Any, Any]:
        made = super().make()
        for o in made[2].chained_optimizers:
            o.optimizer = FusedAdam(o.optimizer.param_groups)
        return made


class FusedSGD(torch.optim.Optimizer):
    """SGD as TransformerEngine and apex have it: Megatron has no function that makes its state."""

    def __init__(self, groups: Any) -> None:
        super().__init__(groups, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(p)
                state["momentum_buffer"].mul_(0.9).add_(p.grad + group["weight_decay"] * p)
                p.sub_(group["lr"] * state["momentum_buffer"])


class Momentum(Kept):
    """An optimizer that is none of torch's, and whose state nobody makes before its first step."""

    name = "megatron, FusedSGD"

    def make(self) -> tuple[Network, Any, Any, Any]:
        made = super().make()
        for o in made[2].chained_optimizers:
            o.optimizer, o.init_state_fn = FusedSGD(o.optimizer.param_groups), None
        return made


def _sample(n: int) -> torch.Tensor:
    return torch.randn(8, generator=torch.Generator().manual_seed(n))
