"""What wrappers of models do to the names of parameters and to where they lie: DDP, torch.compile, checkpointing, FSDP."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from ..errors import SessionState, StaleProcessGroup

__all__ = ["clean", "flat_parameters", "fsdp1", "on_groups", "reshard", "sharded_by_fsdp", "stale", "taken_down", "whole", "within_fsdp"]


def clean(model: torch.nn.Module, name: str) -> str:
    """The name of a parameter, buffer or submodule of ``model`` without what wrappers put into it (DDP, torch.compile, activation checkpointing, FSDP)."""
    kept, at = [], model
    for part in name.split("."):
        if part not in ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module") and not (part == "module" and _wraps(at)):
            kept.append(part)
        if part in at._modules and (inner := at._modules[part]) is not None:  # the last part may be a tensor's; a scripted module's have no get()
            at = inner
    return ".".join(kept)


def _wraps(module: torch.nn.Module) -> bool:
    """Whether its ``module`` is all that it has, as in DDP, AveragedModel and other frameworks' wrappers: a layer may have one beside other things."""
    return list(module._modules) == ["module"] and not module._parameters


def _of(module: str, kind: str, model: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """The submodules of a class, by name. Where the class's module was never imported, there are none."""
    if (found := getattr(sys.modules.get(module), kind, None)) is not None:
        yield from ((name, m) for name, m in model.named_modules() if isinstance(m, found))


def fsdp1(model: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """FSDP1's wrappers in a model, the outermost first, by name."""
    return _of("torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel", model)


def _fsdp2(model: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    return _of("torch.distributed.fsdp", "FSDPModule", model)


def reshard(models: Iterable[torch.nn.Module]) -> None:
    """Has models that FSDP shards consist of their shards alone, as between two steps.

    A forward leaves the root's whole parameters behind (without sharding after the forward, and without a backward, those of all
    modules): the next one would go on with them, whatever was loaded into the shards meanwhile, and a list of the parameters would
    have them in the place of the shards. FSDP1 also settles at its first forward where its shards lie, since the
    model could be moved until then; that is done now. There are no collectives in this.
    """
    for model in models:
        for name, wrapper in fsdp1(model):
            if wrapper.training_state.name != "IDLE":
                where, doing = clean(model, name) or "the model", wrapper.training_state.name
                raise SessionState(f"{where}: FSDP is in {doing}: leave summon_full_params first; where a forward or backward was broken off, make the model anew")
            wrapper.check_is_root()  # of the outermost first: it makes those inside ready too
            if (handle := wrapper._handle) is not None:
                handle.reshard(handle.uses_sharded_strategy)
                handle.post_reshard()
        for _, wrapper in _fsdp2(model):
            wrapper.reshard()


def sharded_by_fsdp(model: torch.nn.Module) -> bool:
    """Whether FSDP shards any part of it."""
    return any(True for found in (fsdp1(model), _fsdp2(model)) for _ in found)


def within_fsdp(model: torch.nn.Module) -> set[int]:
    """The ids of the parameters of modules that FSDP shards."""
    return {id(p) for found in (fsdp1(model), _fsdp2(model)) for _, m in found for p in m.parameters()}


def whole(now: torch.Tensor | None, shard: torch.Tensor) -> bool:
    """Whether FSDP has put a whole parameter in a shard's place, as it does from forward to backward, and leaves it where none follows:
    FSDP1 a tensor that is no parameter, FSDP2 a parameter that is not spread over the shard's mesh."""
    return now is not None and (not isinstance(now, torch.nn.Parameter) or getattr(now, "device_mesh", None) != getattr(shard, "device_mesh", None))


def on_groups(model: torch.nn.Module) -> bool:
    """Whether a model's own parameters hang on process groups: FSDP, or laid over a mesh. DDP does not count, which can be made anew
    around the module that it holds."""
    return sharded_by_fsdp(model) or any(hasattr(p, "device_mesh") for p in model.parameters())


def stale(what: str) -> StaleProcessGroup:
    """The error of a model whose process groups are gone."""
    return StaleProcessGroup(
        f"{what} uses process groups that were taken down when the block ended. Make it inside of the block, "
        "in a session with staging=True, and call session.rebind() before resume(). DDP can also be made inside, "
        "around the plain model that the session has. This process ends, and a new one takes its place"
    )


def taken_down(module: torch.nn.Module) -> bool:
    """Whether it is a DDP whose reducer a restart in the process has taken away."""
    return isinstance(module, torch.nn.parallel.DistributedDataParallel) and module.reducer is None


def flat_parameters(model: torch.nn.Module) -> Iterator[tuple[str, Any, set[int]]]:
    """FSDP1's flat parameters: name, wrapper (its ``_handle.flat_param`` is the parameter), and the ids of the parameter and of the
    original ones, which with ``use_orig_params=True`` are views of the shard between two steps, and empty where nothing of them lies on this rank."""
    for name, wrapper in fsdp1(model):
        if wrapper._handle is not None:
            p = wrapper._handle.flat_param
            yield clean(model, f"{name}._flat_param".removeprefix(".")), wrapper, {id(q) for q in (p, *(p._params or ()), *(p._shared_params or ()))}
