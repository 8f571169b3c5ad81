"""Megatron-core on a CPU: it names CUDA where it means "the device", and takes only CUDA's tensors. Inside of :class:`OnCPU` these names mean the CPU, so that its own
optimizers, its wrapper and its groups run over gloo. Nothing of Megatron's own is replaced."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class Stream:
    """There is one order on a CPU."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def wait_stream(self, other: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass


_NAMES: dict[str, Any] = {
    "Stream": Stream,
    "current_device": lambda: 0,
    "current_stream": lambda *_: Stream(),
    "default_stream": lambda *_: Stream(),
    "stream": lambda _: contextlib.nullcontext(),
    "set_device": lambda _: None,
    "synchronize": lambda *_: None,
    "empty_cache": lambda: None,
}


class OnCPU(TorchFunctionMode):
    """While it is entered, in the thread that did."""

    def __enter__(self) -> OnCPU:
        self._before = {name: getattr(torch.cuda, name) for name in _NAMES}
        for name, stub in _NAMES.items():
            setattr(torch.cuda, name, stub)
        return super().__enter__()

    def __exit__(self, *of: Any) -> None:
        super().__exit__(*of)
        for name, value in self._before.items():
            setattr(torch.cuda, name, value)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if _names_cuda(kwargs.get("device")):
            kwargs["device"] = "cpu"
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.to and len(args) > 1 and _names_cuda(args[1]):
            args = (args[0], "cpu", *args[2:])
        out = func(*args, **kwargs)
        if func is torch.Tensor.type and len(args) == 1 and not kwargs:
            return out if out.startswith("torch.cuda.") else out.replace("torch.", "torch.cuda.")
        return out


def _names_cuda(device: Any) -> bool:
    return isinstance(device, int) or str(device).partition(":")[0] == "cuda"
