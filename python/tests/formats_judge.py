"""Compares what this torch loads of a `.pt` file and of a DCP folder with what it loads of the original: names, types, shapes and bytes. It needs torch
alone, so that another one can run it: ``python formats_judge.py WANT.pt STATE.pt FOLDER``."""

import sys

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save


def judge(original: str, file: str, folder: str) -> None:
    want = torch.load(original, weights_only=True)
    for mmap in (False, True):
        same(torch.load(file, weights_only=True, mmap=mmap), want, f"torch.load, mmap={mmap}")
    dcp_to_torch_save(folder, folder + ".pt")
    same(torch.load(folder + ".pt", weights_only=True), want, "dcp_to_torch_save")
    state = {k: torch.zeros_like(v) for k, v in want.items()}
    dcp.load(state, storage_reader=dcp.FileSystemReader(folder))
    same(state, want, "dcp.load")


def same(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor], what: str) -> None:
    assert got.keys() == want.keys(), (what, got.keys() ^ want.keys())
    for k, v in want.items():
        g = got[k]
        assert (g.dtype, g.shape) == (v.dtype, v.shape), (what, k, g.dtype, g.shape)
        assert not v.numel() or torch.equal(raw(g), raw(v)), (what, k)


def raw(t: torch.Tensor) -> torch.Tensor:
    return t.contiguous().reshape(-1).view(torch.uint8)


if __name__ == "__main__":
    judge(*sys.argv[1:])
    print("judged by torch", torch.__version__)
