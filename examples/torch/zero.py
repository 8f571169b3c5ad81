"""The small GPT of gpt.py with data parallelism, its optimizer's state spread over the ranks by ZeroRedundancyOptimizer, under replicad.

    replicad run --job zero --world 2 --groups auto -- python zero.py

Each rank updates its part of the parameters and sends them to the others, inside of `optimizer.step()`. The state of a part is on one
rank alone, so each rank is a replica group of its own and the daemons mirror it to other nodes every step. A rank that dies in the
middle of the update leaves the others with parameters of two steps; they go back to the step before.
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
from torch.distributed.optim import ZeroRedundancyOptimizer

from replicad.parallel import ddp


class ZeRO(sharded.Layout):
    """Whole models, and an optimizer for a part of the parameters on each rank."""

    def spread(self, args: argparse.Namespace, world: int, model: gpt.GPT) -> tuple[Any, Any, Any]:
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=3e-3, weight_decay=0.1)
        return model, ddp(model), optimizer

    def part(self, optimizer: Any) -> Any:
        return optimizer.optim


if __name__ == "__main__":
    sys.exit(common.main(partial(sharded.train, ZeRO()), gpt.arguments(__doc__, micro=1, workers=0).parse_args()))
