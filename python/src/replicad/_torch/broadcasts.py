"""Whether DDP begins its next forward with rank 0's buffers. It does if the one before had a gradient, and a DDP that is made anew always does: behind an evaluation under
``no_grad`` a new process would spread buffers (BatchNorm's statistics) that the undisturbed run does not. So it is kept with the step."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from .hooks import Hook

__all__ = ["Broadcasts"]


class Broadcasts:
    """Of the wrappers around a session's models, which are found when a forward goes through them: a program may make them outside of the session, and behind ``resume()``."""

    def __init__(self) -> None:
        self._around: dict[str, weakref.ref[DistributedDataParallel]] = {}  # the wrapper of each model, by the model's name
        self._loaded: dict[str, bool] = {}  # what wrappers are to have that were not called since
        self._models: Mapping[str, torch.nn.Module] = {}
        self._hook: RemovableHandle | None = None

    def forward(self, models: Mapping[str, torch.nn.Module], module: torch.nn.Module) -> None:
        """A model is called, by its wrapper or as it is."""
        ddp = module if isinstance(module, DistributedDataParallel) else getattr(DistributedDataParallel, "_active_ddp_module", None)
        if ddp is not None and (name := _name(models, ddp)):
            self._around[name] = weakref.ref(ddp)

    def value(self) -> dict[str, bool]:
        """By the model's name; nothing of one that no wrapper was seen around."""
        seen = {name: ddp.require_forward_param_sync for name, ref in self._around.items() if (ddp := ref()) is not None}
        return seen | self._loaded

    def set(self, models: Mapping[str, torch.nn.Module], value: Mapping[str, bool]) -> None:
        """The inverse of :meth:`value`: each wrapper has it from before its first forward on, until :meth:`trained`."""
        self.trained()
        self._around, self._loaded, self._models = {}, {name: on for name, on in value.items() if name in models}, models
        if self._loaded:
            self._hook = register_module_forward_pre_hook(Hook(self._called))

    def trained(self) -> None:
        """A step begins: what has no wrapper by now gets none."""
        self._loaded = {}
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _called(self, module: torch.nn.Module, *_: Any) -> None:
        """Some module of the process is called, perhaps a compiled wrapper."""
        ddp = getattr(module, "_orig_mod", module)
        if isinstance(ddp, DistributedDataParallel) and (name := _name(self._models, ddp)) in self._loaded:
            ddp.require_forward_param_sync = self._loaded.pop(name)
            self._around[name] = weakref.ref(ddp)
            if not self._loaded:
                self.trained()


def _name(models: Mapping[str, torch.nn.Module], ddp: DistributedDataParallel) -> str:
    """The model that a wrapper is around, or that is the wrapper."""
    inner = getattr(ddp.module, "_orig_mod", ddp.module)
    return next((name for name, m in models.items() if m is ddp or getattr(m, "_orig_mod", m) in (inner, ddp)), "")
