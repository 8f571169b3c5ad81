"""The parts of TransformerEngine's, Lightning's and Megatron's, over module trees of these libraries' names that behave as they do: none is installed here.

Names and behaviour are those of NVIDIA/TransformerEngine (transformer_engine/pytorch/module/base.py, fp8.py, and since pull request 2256 quantization.py),
NVIDIA/Megatron-LM (megatron/training/async_utils.py and global_vars.py, megatron/core/parallel_state.py, num_microbatches_calculator.py,
rerun_state_machine.py, dist_checkpointing/strategies/async_utils.py) and Lightning-AI/pytorch-lightning (core/module.py).
"""

from __future__ import annotations

import multiprocessing
import sys
import time
import types
from collections import deque
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")

from replicad.inprocess import AsyncSavers, LightningCleanup, MegatronCleanup, TransformerEngineAbort, default_abort, default_finalize


class Libraries:
    """Modules in sys.modules, and which of their functions were called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch, self.called = monkeypatch, list[str]()

    def load(self, name: str, **content: Any) -> Any:
        """A module, in its packages."""
        module = types.ModuleType(name)
        for key, value in content.items():
            setattr(module, key, value)
        self._monkeypatch.setitem(sys.modules, name, module)
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules.get(parent) or self.load(parent), last, module)
        return module

    def says(self, name: str) -> Any:
        return lambda: self.called.append(name)


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> Libraries:
    return Libraries(monkeypatch)


def test_nothing_is_done_where_no_library_is() -> None:
    before = set(sys.modules)
    for part in (AsyncSavers(), TransformerEngineAbort(), LightningCleanup(), MegatronCleanup()):
        part()
    assert not {name.partition(".")[0] for name in set(sys.modules) - before} & {"transformer_engine", "megatron", "lightning", "pytorch_lightning"}


@pytest.mark.parametrize("home", ["fp8", "quantization"])
def test_transformer_engine(libraries: Libraries, home: str) -> None:
    class FP8GlobalStateManager:
        FP8_ENABLED = True
        FP8_DISTRIBUTED_GROUP: Any = object()

        @classmethod
        def reset(cls) -> None:
            libraries.called.append("reset")
            cls.FP8_ENABLED, cls.FP8_DISTRIBUTED_GROUP = False, None

    libraries.load(f"transformer_engine.pytorch.{home}", FP8GlobalStateManager=FP8GlobalStateManager)
    if home == "quantization":
        libraries.load("transformer_engine.pytorch.fp8")  # since pull request 2256: it hands on what users call, not the manager
    libraries.load("transformer_engine.pytorch.module.base", destroy_ub=libraries.says("destroy_ub"))
    for _ in range(2):
        TransformerEngineAbort()()
    assert libraries.called == ["destroy_ub", "reset"] * 2
    assert (FP8GlobalStateManager.FP8_ENABLED, FP8GlobalStateManager.FP8_DISTRIBUTED_GROUP) == (False, None)


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_lightning(libraries: Libraries, package: str) -> None:
    class LightningModule(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self._trainer: Any = None

    class Net(LightningModule):
        pass

    libraries.load(package, LightningModule=LightningModule)
    net, other = Net(), torch.nn.Linear(1, 1)
    net._trainer, other._trainer = object(), "not Lightning's"
    LightningCleanup()()
    assert (net._trainer, other._trainer) == (None, "not Lightning's")


def test_megatrons_globals(libraries: Libraries) -> None:
    """The parallel state goes first: its groups are over, and nothing that follows asks for them. Each is there or not by itself."""
    wanted = {
        "megatron.core.parallel_state": "destroy_model_parallel",
        "megatron.core.num_microbatches_calculator": "destroy_num_microbatches_calculator",
        "megatron.core.rerun_state_machine": "destroy_rerun_state_machine",
        "megatron.training.global_vars": "destroy_global_vars",
    }
    libraries.load("megatron.core.parallel_state")  # an old one, without the function
    MegatronCleanup()()
    for module, function in wanted.items():
        libraries.load(module, **{function: libraries.says(function)})
    MegatronCleanup()()
    assert libraries.called == list(wanted.values())


class Caller:
    """TemporalAsyncCaller and PersistentAsyncCaller: what writes, in a process of its own. Without ``abort`` closing it waits for the write; either asks for the rank."""

    def __init__(self) -> None:
        self.process: Any = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(10000,), daemon=True)
        self.process.start()

    def close(self, abort: bool = False) -> None:
        torch.distributed.get_rank()
        if not abort:
            pytest.fail("waits for the write")


class Active(NamedTuple):
    """_ActiveAsyncRequest."""

    idx: int
    async_caller: Any
    async_request: Any


class AsyncCallsQueue:
    """What Megatron's has: closing it without ``abort`` adds up over the ranks."""

    def __init__(self, persistent: bool) -> None:
        caller = Caller()
        self.async_calls = deque([Active(0, caller, None)])
        self.persistent, self.persistent_caller = persistent, caller if persistent else None

    def close(self, abort: bool = False) -> None:
        if not abort:
            torch.distributed.all_reduce(torch.zeros(1))
        if self.persistent and self.persistent_caller:
            self.persistent_caller.close(abort=abort)


@pytest.mark.parametrize("persistent", [False, True])
def test_megatrons_savers(libraries: Libraries, persistent: bool) -> None:
    queue = AsyncCallsQueue(persistent)
    process = queue.async_calls[0].async_caller.process
    libraries.load("megatron.training.async_utils", _async_calls_queue=queue)
    AsyncSavers()()
    process.join(60)
    assert process.exitcode == -9
    assert not queue.async_calls  # else the next run would ask the ranks whether all have written them
    assert queue.persistent_caller is None  # and hand the next write to what was killed
    AsyncSavers()()


def test_megatron_without_a_save(libraries: Libraries) -> None:
    libraries.load("megatron.training.async_utils", _async_calls_queue=None)
    AsyncSavers()()


def test_order() -> None:
    """Savers end while there are groups: what they leave behind asks for its rank when it is collected. Aborts of groups end once graphs are gone."""
    down, clean = ([type(p).__name__ for p in parts] for parts in (default_abort(), default_finalize()))
    assert down == ["AbortDataLoaders", "AsyncSavers", "ResetGraphs", "AbortProcessGroups", "TransformerEngineAbort"]
    assert clean == ["DropReducers", "LightningCleanup", "MegatronCleanup", "CollectGarbage", "DropCaches"]
