"""How torchtitan's Trainer trains under its adapter, for replicad.testing.conformance: a llama with two layers, sharded by FSDP2, with accumulation, clipping, a schedule,
validations, saves and a log of every step. Only what a CPU has not is another one's: the device, the tokenizer and the texts."""

from __future__ import annotations

import json
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed.fsdp
import torchtitan.tools.utils

from replicad.testing.conformance import Run, Subject


class Cpu(types.ModuleType):
    """torch.cpu, with what torchtitan asks of a device besides."""

    def __getattr__(self, name: str) -> Any:
        if name in ("set_device", "synchronize", "reset_peak_memory_stats", "empty_cache"):
            return lambda *_: None
        return getattr(torch.cpu, name)

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def get_device_name(self, *_: Any) -> str:
        return "CPU"

    def get_device_properties(self, *_: Any) -> Any:
        return types.SimpleNamespace(total_memory=1 << 34)

    def memory_stats(self, *_: Any) -> dict[str, int]:
        return {}


torchtitan.tools.utils.device_type, torchtitan.tools.utils.device_module = "cpu", Cpu("cpu")

import torchtitan.models.llama3 as llama
from torchtitan.components.checkpointer import CheckpointManager
from torchtitan.components.dataloader import ParallelAwareDataloader
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.components.validate import Validator
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.models.common import ScaledDotProductAttention
from torchtitan.protocols.model_spec import ModelSpec
from torchtitan.trainer import Trainer

import replicad

WORDS = 64


class Words(BaseTokenizer):  # type: ignore[misc]
    """The texts are numbers already."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):  # type: ignore[misc]
        pass

    def __init__(self, config: Config, **_: Any) -> None:
        super().__init__()

    def encode(self, *_: Any, **__: Any) -> list[int]:
        return []

    def decode(self, *_: Any, **__: Any) -> str:
        return ""

    def get_vocab_size(self) -> int:
        return WORDS


class Texts(torch.utils.data.IterableDataset):  # type: ignore[misc]
    """Of each rank others, with a tail that is kept for the next sample, as of torchtitan's own."""

    def __init__(self, rank: int, length: int) -> None:
        self._rank, self._length, self._next, self._tail = rank, length, 0, list[int]()

    def __iter__(self) -> Iterator[Any]:
        while True:
            g = torch.Generator().manual_seed(1000 * self._next + self._rank)
            self._tail += torch.randint(WORDS, (self._length + self._next % 5,), generator=g).tolist()
            self._next += 1
            while len(self._tail) > self._length:
                text, self._tail = torch.tensor(self._tail[: self._length + 1]), self._tail[self._length :]
                yield {"input": text[:-1]}, text[1:]

    def state_dict(self) -> dict[str, Any]:
        return {"next": self._next, "tail": self._tail}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._next, self._tail = state["next"], state["tail"]


class Loader(ParallelAwareDataloader):  # type: ignore[misc]
    @dataclass(kw_only=True, slots=True)
    class Config(ParallelAwareDataloader.Config):  # type: ignore[misc]
        infinite: bool = True

    def __init__(self, config: Config, *, dp_world_size: int, dp_rank: int, tokenizer: Any, seq_len: int, local_batch_size: int, snapshot_every_n_steps: int = 1) -> None:
        more = {"batch_size": local_batch_size, "snapshot_every_n_steps": snapshot_every_n_steps, "num_workers": config.num_workers}
        super().__init__(Texts(dp_rank, seq_len), dp_rank=dp_rank, dp_world_size=dp_world_size, **more)


#: Of this process: what torchtitan builds by itself knows it by this.
_run: list[Run] = []


class Metrics(MetricsProcessor):  # type: ignore[misc]
    """What torchtitan logs. Times are none of it."""

    @dataclass(kw_only=True, slots=True)
    class Config(MetricsProcessor.Config):  # type: ignore[misc]
        pass

    def log(self, step: int, global_avg_loss: float, global_max_loss: float, grad_norm: float, extra_metrics: Any = None) -> None:
        _run[0].at("log", step)
        super().log(step, global_avg_loss, global_max_loss, grad_norm, extra_metrics)
        _run[0].event("log", step, loss=global_avg_loss, most=global_max_loss, norm=grad_norm, more=json.dumps(extra_metrics))

    def log_validation(self, loss: float, step: int, **more: Any) -> None:
        super().log_validation(loss, step, **more)
        _run[0].at("validated", step)
        _run[0].event("validation", step, loss=loss)


class Validates(Validator):  # type: ignore[misc]
    @dataclass(kw_only=True, slots=True)
    class Config(Validator.Config):  # type: ignore[misc]
        pass

    def validate(self, model_parts: Any, step: int) -> None:
        _run[0].at("validation", step)
        super().validate(model_parts, step)


class Saves(CheckpointManager):  # type: ignore[misc]
    """The one that writes to disk."""

    @dataclass(kw_only=True, slots=True)
    class Config(CheckpointManager.Config):  # type: ignore[misc]
        pass

    def _save(self, curr_step: int, last_step: bool = False) -> bool:
        saved = bool(super()._save(curr_step, last_step))
        if saved:
            _run[0].at("save", curr_step)
            _run[0].event("save", curr_step, last=last_step)
        return saved


def spec() -> ModelSpec:
    dim, heads = 32, 4
    of = llama.model_registry("debugmodel")
    rope = llama.ComplexRoPE.Config(dim=dim // heads, max_seq_len=64, theta=10000, scaling="none")
    layers = llama._build_llama3_layers(n_layers=2, dim=dim, n_heads=heads, hidden_dim=64, rope=rope, attn_backend="flex")
    for layer in layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()  # the others are compiled, for a GPU
    of.model = llama.Llama3Model.Config(
        dim=dim, vocab_size=WORDS, layers=layers, norm=llama.RMSNorm.Config(normalized_shape=dim, param_init=llama._NORM_INIT),
        tok_embeddings=llama.Embedding.Config(num_embeddings=WORDS, embedding_dim=dim, param_init=llama._EMBEDDING_INIT),
        lm_head=llama.Linear.Config(in_features=dim, out_features=WORDS, param_init=llama._output_linear_init(dim)),
    )  # fmt: skip
    of.parallelize_fn = parallelized
    return of


def parallelized(model: Any, **how: Any) -> Any:
    model = llama.parallelize_llama(model, **how)
    for m in model.modules():
        if isinstance(m, torch.distributed.fsdp.FSDPModule):
            m.set_force_sum_reduction_for_comms(True)  # Gloo multiplies nothing
    return model


class Kept(Subject):
    """FSDP2, over all ranks."""

    name = "torchtitan"
    steps = 8
    flags: tuple[str, ...] = ("--groups", "auto")
    parallel: Mapping[str, int] = {}
    checkpoint: Mapping[str, Any] = {"interval": 3, "last_save_model_only": False}
    workers = 0

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        _run[:] = [run]
        np.random.seed(1)  # torchtitan does not
        self.trainer = self.config().build()
        run.watch(self.trainer.model_parts[0], self.trainer.optimizers.optimizers[0], lambda: self.trainer.step)

    def config(self) -> Any:
        run = self.run
        inner = Saves.Config(enable=True, keep_latest_k=0, folder=str(run.folder / "saves"), **self.checkpoint)
        config = Trainer.Config(
            model_spec=spec(), dump_folder=str(run.folder), tokenizer=Words.Config(), dataloader=Loader.Config(num_workers=self.workers), loss=CrossEntropyLoss.Config(),
            optimizer=default_adamw(lr=1e-2), lr_scheduler=LRSchedulersContainer.Config(warmup_steps=2), metrics=Metrics.Config(log_freq=1),
            training=TrainingConfig(
                local_batch_size=2, global_batch_size=4 * run.world, seq_len=16, steps=self.steps, disable_cuda_graphs=True, mixed_precision_param="float32", max_norm=0.5
            ),
            parallelism=ParallelismConfig(**self.parallel), validator=Validates.Config(enable=True, freq=2, steps=2, dataloader=Loader.Config()),
            checkpoint=replicad.torchtitan.Checkpoint.Config(inner=inner) if run.kept else inner,
        )  # fmt: skip
        config.debug.seed, config.optimizer.implementation = 1, "for-loop"
        return config

    @property
    def session(self) -> replicad.Session:
        return self.trainer.checkpointer.session

    def forget(self) -> None:
        """A step is over as soon as it is made."""
        from replicad.adapters.torchtitan import _Feed

        _Feed.before_a_batch = None

    def train(self) -> None:
        try:  # as torchtitan.train does
            self.trainer.train()
        except Exception:
            self.trainer.close()
            raise
        self.trainer.close()

    def digests(self) -> Mapping[str, Any]:
        t = self.trainer
        # A load from disk leaves the names of a group in another order.
        optimizers = [{"state": s["state"], "groups": [dict(sorted(g.items())) for g in s["param_groups"]]} for s in (o.state_dict() for o in t.optimizers)]
        weights = [dict(m.named_parameters()) | dict(m.named_buffers()) for m in t.model_parts]
        found = {"weights": local(weights), "optimizer": local(optimizers), "scheduler": t.lr_schedulers.state_dict(), "train": t.state_dict()}
        torch.distributed.destroy_process_group()
        return found


def local(tree: Any) -> Any:
    """This rank's own part of each tensor."""
    return torch.utils._pytree.tree_map(lambda x: x.to_local() if isinstance(x, torch.distributed.tensor.DTensor) else x, tree)


class Replicated(Kept):
    """Each rank has the whole model."""

    name = "torchtitan, replicated"
    flags = ()
    parallel: Mapping[str, int] = {"data_parallel_replicate_degree": 2, "data_parallel_shard_degree": 1}


class Workers(Kept):
    """Batches come from processes."""

    name = "torchtitan, workers"
    workers = 1


class Off(Kept):
    """The manager is there, and keeps nothing."""

    def config(self) -> Any:
        config = super().config()
        config.checkpoint = replicad.torchtitan.Checkpoint.Config(inner=config.checkpoint, enable=False)
        return config


class From(Kept):
    """From a checkpoint on disk."""

    name = "torchtitan, from a checkpoint"

    def __init__(self, run: Run) -> None:
        self.checkpoint = {**type(self).checkpoint, "initial_load_path": str(run.folder.parent / "Off-2-1" / "saves" / "step-3"), "initial_load_model_only": False}
        super().__init__(run)
