"""What replicad.data.Loader costs a sample in the training process, beside torch's DataLoader in the same run: CPU time of this process, at num_workers=0.

    .venv/bin/python bench/torch/loader.py [--samples 8192] [--rounds 5]

The dataset draws three random numbers and adds noise, as an augmentation does. The ratio of the medians is what counts: both run by turns, so that a busy
machine slows both.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python" / "src"))

import random

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from replicad.data import Loader


class Augmented(Dataset[Any]):
    """Samples as an augmentation makes them."""

    def __init__(self, n: int) -> None:
        self.x = torch.randn(n, 256)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> Any:
        x = self.x[i]
        if random.random() < 0.5:
            x = x.flip(0)
        return x * float(np.random.rand()) + 0.1 * torch.randn(256), i


def microseconds(batches: Iterable[Any], samples: int) -> float:
    """CPU time of this process for each sample."""
    began = time.process_time()
    for _ in batches:
        pass
    return (time.process_time() - began) / samples * 1e6


def main() -> None:
    """Prints a line for each batch size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=5)
    o = parser.parse_args()
    torch.set_num_threads(1)
    data = Augmented(o.samples)
    print("batch   torch us/sample   replicad us/sample   ratio")
    for batch in (4, 8, 32, 128):
        theirs, ours = [], []
        for _ in range(o.rounds):
            theirs.append(microseconds(DataLoader(data, batch, shuffle=True, drop_last=True), o.samples))
            ours.append(microseconds(Loader(data, batch, rank=0, world=1), o.samples))
        a, b = statistics.median(theirs), statistics.median(ours)
        print(f"{batch:5}   {a:15.1f}   {b:18.1f}   {b / a:5.2f}")


if __name__ == "__main__":
    main()
