"""What is cleaned up once nothing of the old epoch runs any more: idempotent, in order, without touching registered state."""

from __future__ import annotations

import gc
import sys
from typing import Any

from .parts import Part, accelerator, live

__all__ = ["CollectGarbage", "DropCaches", "DropReducers", "LightningCleanup", "MegatronCleanup", "default_finalize"]


class DropReducers:
    """Takes DDP's gradient hooks off parameters and frees the reducer with its buckets, so that the model can be wrapped anew."""

    def __call__(self) -> None:
        """Does it, or nothing where there is nothing to do."""
        torch = sys.modules.get("torch")
        if torch is None:
            return
        for ddp in live(torch.nn.parallel.DistributedDataParallel):
            if getattr(ddp, "reducer", None) is not None:
                ddp.reducer._remove_autograd_hooks()
                ddp.reducer = ddp.logger = None
                for p in ddp.module.parameters():
                    p.grad = None  # a gradient may be a view of a bucket


class DropCaches:
    """Empties torch's cache of device memory where a device of this process has less than ``free`` bytes outside of it: new communicators allocate there,
    up to some hundred MiB each, and a job has a few. Where there is room the cache stays, as the next step would have to allocate all of it anew."""

    def __init__(self, free: int = 1 << 30) -> None:
        self.free = free

    def __call__(self) -> None:
        """Does it, or nothing where there is nothing to do."""
        device = accelerator()
        if device is not None and any(device.device_bytes(i)[0] < self.free for i in device.used()):
            device.drop_cache()


class LightningCleanup:
    """Takes the trainer off Lightning modules, whose loops hold process groups and loaders."""

    def __call__(self) -> None:
        """Does it, or nothing where there is nothing to do."""
        for name in ("lightning.pytorch", "pytorch_lightning"):
            if (pl := sys.modules.get(name)) is None:
                continue
            for module in live(pl.LightningModule):
                module._trainer = None


class MegatronCleanup:
    """Destroys Megatron's global and parallel state, where it is loaded, and lets go of models that the next run makes anew: RoPE caches its results by module, and the hooks of a
    module hold all of its model; and their buffers of gradients are emptied, as a session holds the model until it has the new one."""

    def __call__(self) -> None:
        """Does it, or nothing where there is nothing to do."""
        for module, functions in (
            ("megatron.core.parallel_state", ("destroy_model_parallel",)),
            ("megatron.core.num_microbatches_calculator", ("destroy_num_microbatches_calculator",)),
            ("megatron.core.rerun_state_machine", ("destroy_rerun_state_machine",)),
            ("megatron.training.global_vars", ("destroy_global_vars",)),
        ):
            mod: Any = sys.modules.get(module)
            for f in functions:
                if mod is not None and hasattr(mod, f):
                    getattr(mod, f)()
        self._groups()
        self._caches()
        self._gradients()

    @staticmethod
    def _groups() -> None:
        """Megatron's own function leaves some of 0.16 and 0.19."""
        state: Any = sys.modules.get("megatron.core.parallel_state")
        group: Any = getattr(sys.modules.get("torch.distributed"), "ProcessGroup", None)
        for name, value in list(vars(state).items()) if state is not None and group is not None else ():
            if isinstance(value, group):
                setattr(state, name, None)

    @staticmethod
    def _caches() -> None:
        """What a method caches holds the object that it is of."""
        for name in [n for n in sys.modules if n.startswith("megatron.core.models.common.embeddings")]:
            for kind in [k for k in vars(sys.modules[name]).values() if isinstance(k, type)]:
                for method in vars(kind).values():
                    if callable(clear := getattr(method, "cache_clear", None)):
                        clear()

    @staticmethod
    def _gradients() -> None:
        """The memory goes although tensors still hold it, so that a backward that ran now would write where something else lies. None of the block's runs: the thread that called
        ``backward()`` has left the block, and ``abort`` lies between, which ends collectives; autograd's own threads begin nothing for a caller that is gone, and had that time for
        the node that they were at. What other threads of the program do is not known here: docs/inprocess.md tells them to end with the block."""
        wrapper: Any = getattr(sys.modules.get("megatron.core.distributed.distributed_data_parallel"), "DistributedDataParallel", None)
        for ddp in live(wrapper) if wrapper is not None else ():
            for buffer in (*getattr(ddp, "buffers", ()), *getattr(ddp, "expert_parallel_buffers", ())):
                buffer.grad_data.untyped_storage().resize_(0)


class CollectGarbage:
    """Collects until nothing more is found: cycles hold process groups, workers and device memory."""

    def __call__(self) -> None:
        """Does it, or nothing where there is nothing to do."""
        for _ in range(10):
            if gc.collect() == 0:
                return


def default_finalize() -> list[Part]:
    """DDP reducers, Lightning, Megatron, garbage, caches."""
    return [DropReducers(), LightningCleanup(), MegatronCleanup(), CollectGarbage(), DropCaches()]
