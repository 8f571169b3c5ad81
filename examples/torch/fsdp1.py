"""The small GPT of gpt.py, sharded by FSDP1 (FullyShardedDataParallel), under replicad.

    replicad run --job fsdp1 --world 2 --groups auto -- python fsdp1.py                 fully sharded: each rank has its own shard
    replicad run --job hsdp1 --world 4 --groups auto -- python fsdp1.py --shards 2     two replicas of two shards

With --use-orig-params 1 the optimizer sees the model's own parameters, which are views of this rank's flat shards. What is kept
are the flat shards either way, and what the optimizer has of them. `state_dict` is never asked, so its type does not matter.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from typing import Any

import common
import gpt
import sharded
import torch
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from replicad.store import connections


class FSDP1(sharded.Layout):
    """Each block a flat parameter of its own."""

    def spread(self, args: argparse.Namespace, world: int, model: gpt.GPT) -> tuple[Any, Any, Any]:
        mesh = sharded.mesh(args, world)
        with connections():
            wrapped = FullyShardedDataParallel(
                model,
                device_mesh=mesh,
                sharding_strategy=ShardingStrategy.FULL_SHARD if mesh.ndim == 1 else ShardingStrategy.HYBRID_SHARD,
                auto_wrap_policy=ModuleWrapPolicy({gpt.Block}),
                use_orig_params=bool(args.use_orig_params),
                device_id=torch.device("cpu"),
            )
        return wrapped, wrapped, gpt.adamw(args, wrapped)

    def clip(self, model: Any) -> None:
        model.clip_grad_norm_(1.0)

    def whole(self, model: Any) -> list[tuple[str, torch.Tensor]]:
        with FullyShardedDataParallel.summon_full_params(model, writeback=False):
            return [(k, p.detach().clone()) for k, p in model.named_parameters()]


if __name__ == "__main__":
    p = sharded.arguments(__doc__)
    p.add_argument("--use-orig-params", type=int, choices=(0, 1), default=0)
    sys.exit(common.main(partial(sharded.train, FSDP1()), p.parse_args()))
