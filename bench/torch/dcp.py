"""How long torch.distributed.checkpoint takes to save a state and to load it cold: what `replicad bench --only durable/` puts beside its own.

    python bench/torch/dcp.py FOLDER MIB     # prints {"save": seconds, "load": seconds}
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

TENSORS = 64


def state(mib: int) -> dict[str, torch.Tensor]:
    return {f"layer-{i}": torch.full((mib * (1 << 18) // TENSORS,), float(i)) for i in range(TENSORS)}


def cold(folder: Path) -> None:
    """Takes the files out of the page cache; they are synced."""
    for path in folder.iterdir():
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def main(folder: Path, mib: int) -> None:
    had = state(mib)
    began = time.perf_counter()
    dcp.save(had, storage_writer=dcp.FileSystemWriter(folder, sync_files=True), no_dist=True)
    save = time.perf_counter() - began
    cold(folder)
    began = time.perf_counter()
    dcp.load(had, storage_reader=dcp.FileSystemReader(folder), no_dist=True)
    load = time.perf_counter() - began
    shutil.rmtree(folder)
    print(json.dumps({"save": save, "load": load}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
