"""Data parallelism whose sums come out bit for bit the same before and after a restart."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

__all__ = ["ddp", "divides_alike", "unsent"]


def ddp(model: torch.nn.Module, **options: Any) -> DistributedDataParallel:
    """``DistributedDataParallel(model, **options)`` for a state that replicad keeps. Two defaults differ from torch's.

    ``find_unused_parameters=True``. A ring adds an element's terms in an order that depends on where the element lies in its
    bucket, and floating-point sums depend on the order as soon as three ranks add. DDP lays its buckets out anew after its first
    step, in the order in which gradients came: a process that was started again would add its first step as an undisturbed run
    added step 1 alone, and differ from it in the last bits ever after. With this option the buckets stay as they were
    first laid out, by the order of the parameters, in every process and epoch. It costs a walk over the graph in each forward (and
    a warning of torch's that nothing was unused). A static graph would bring the second layout back and is refused
    (``ValueError``), and so is a hook of PowerSGD's, which needs ``find_unused_parameters=False``.

    ``init_sync=False``. DDP would send rank 0's parameters and buffers to all when it is made. ``session.resume()`` has put verified
    state into each of them, and buffers that are a rank's own (BatchNorm's statistics) would be overwritten. A model that is
    made for the first time must come out equal on all ranks, by its seed; the job says which tensor differs where it does not.
    Older torch (2.6) always sends. Parameters are equal; buffers come out as they were if DDP sends them before the next forward
    as well, which it does not behind an evaluation without gradients: make it before ``session.resume()`` there.

    With ``gradient_as_bucket_view=True``, and ranks that are no power of two, gradients are divided by a communication hook (torch's own ``allreduce``), unless the
    program registers one before the first forward. DDP itself multiplies a gradient by 1/world where it copies it into the bucket, as in a
    process's first step, and divides it by world where it lies there already, as ``zero_grad(set_to_none=False)`` leaves it: the two round differently.
    """
    if options.get("static_graph"):
        raise ValueError(
            "static_graph=True makes DDP lay out its buckets again after the first step of each process, so a restarted run would not be bit-equal: "
            "leave it out, or use torch's DistributedDataParallel if bits don't matter"
        )
    made = DistributedDataParallel(model, **{"find_unused_parameters": True} | unsent() | options)
    if not divides_alike(made):
        _Divides(made)
    if made.find_unused_parameters:
        made.register_comm_hook = partial(_register, made)  # type: ignore[method-assign]
    return made


def _register(made: DistributedDataParallel, state: object, hook: Callable[..., Any]) -> None:
    """DDP's ``register_comm_hook``. PowerSGD goes on with collectives of its own where the first one has ended, while DDP reduces which parameters were used, in no order that
    ranks would agree on: Gloo ends the process."""
    if _is_powersgd(hook):
        name = getattr(hook, "__name__", "the hook")
        raise ValueError(
            f"register_comm_hook: {name} with find_unused_parameters=True, which ddp() gives DDP by default: both have collectives under way, in another order on each rank, and "
            "Gloo ends the process. Make it with ddp(model, find_unused_parameters=False): three ranks or more then add in another order in the first step after a restart"
        )
    DistributedDataParallel.register_comm_hook(made, state, hook)


def _is_powersgd(hook: Any) -> bool:
    """Whether it is one of torch's, or a wrapper around one (``fp16_compress_wrapper``)."""
    inner = [c.cell_contents for c in getattr(hook, "__closure__", None) or () if callable(getattr(c, "cell_contents", None))]
    return str(getattr(hook, "__module__", "")).endswith("powerSGD_hook") or any(map(_is_powersgd, inner))


def unsent() -> dict[str, Any]:
    """The option of DDP with which it sends nothing when it is made, where torch has that."""
    return {"init_sync": False} if "init_sync" in inspect.signature(DistributedDataParallel).parameters else {}


class _Divides:
    """Has gradients divided in one way in every step of a process, from the first forward on: until then the program may register a hook of its own, as DDP takes one hook."""

    def __init__(self, made: DistributedDataParallel) -> None:
        self._hook = made.register_forward_pre_hook(self)

    def __call__(self, made: DistributedDataParallel, *_: Any) -> None:
        self._hook.remove()
        if not divides_alike(made):
            made._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)  # type: ignore[no-untyped-call, attr-defined]


def divides_alike(made: DistributedDataParallel) -> bool:
    """Whether DDP scales gradients in the first step of a process as it does in later ones, to the bit, whatever ``zero_grad`` leaves."""
    world = dist.get_world_size(made.process_group)
    if not made.gradient_as_bucket_view or world & (world - 1) == 0 or made._comm_hooks:  # a hook scales, and DDP does not
        return True
    logged: dict[str, Any] = made._get_ddp_logging_data()  # type: ignore[no-untyped-call]
    return "comm_hook" in logged or any(isinstance(h, _Divides) for h in made._forward_pre_hooks.values())
