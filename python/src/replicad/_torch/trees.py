"""Trees of plain values, tensors and arrays, as capsules hold them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

__all__ = ["differences"]


def differences(a: Any, b: Any, path: str) -> Iterator[str]:
    """The paths at which two trees of plain values and tensors differ."""
    if type(a) is not type(b):
        yield path
    elif isinstance(a, dict):
        for k in [*a, *(k for k in b if k not in a)]:
            at = f"{path}.{k}" if path else str(k)
            if k in a and k in b:
                yield from differences(a[k], b[k], at)
            else:
                yield at
    elif isinstance(a, (list, tuple)):
        if len(a) != len(b):
            yield path
        else:
            for i, (x, y) in enumerate(zip(a, b, strict=True)):
                yield from differences(x, y, f"{path}[{i}]")
    elif isinstance(a, torch.Tensor):
        if a.dtype != b.dtype or a.shape != b.shape or not torch.equal(a, b):
            yield path
    elif hasattr(a, "dtype") and hasattr(a, "tobytes"):
        if a.dtype != b.dtype or a.shape != b.shape or a.tobytes() != b.tobytes():
            yield path
    elif a != b and not (a != a and b != b):  # two NaN are no difference
        yield path
