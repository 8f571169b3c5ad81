"""Recovery without leaving the process: a block of code that is run again in the next epoch.

::

    session = replicad.Session(model=model, optimizer=optimizer, data=loader)

    @replicad.inprocess.wrap(session)
    def train(call):
        session.resume()
        init_process_group(session)
        ddp = DistributedDataParallel(model)
        for step in session.steps(steps):
            ...

    train()

When a rank is lost, an exception is raised, a collective fails or the daemon closes the epoch, the block ends on every rank
(:class:`Restart`, which ``except Exception`` does not catch), what hangs on the old epoch is taken down, and the block runs
again: ``session.resume()`` finds the state in this process's own memory wherever that is good. What lives longer than an epoch
(model, optimizer, session) is made outside of the block; process groups and what wraps them inside.
"""

from .abort import AbortDataLoaders, AbortProcessGroups, AsyncSavers, Part, ResetGraphs, TransformerEngineAbort, default_abort
from .finalize import CollectGarbage, DropCaches, DropReducers, LightningCleanup, MegatronCleanup, default_finalize
from .health import CUDAHealth, FaultLimit, MemoryHealth, Unhealthy, default_health
from .wrap import Call, Restart, wrap

__all__ = [
    "AbortDataLoaders",
    "AbortProcessGroups",
    "AsyncSavers",
    "CUDAHealth",
    "Call",
    "CollectGarbage",
    "DropCaches",
    "DropReducers",
    "FaultLimit",
    "LightningCleanup",
    "MegatronCleanup",
    "MemoryHealth",
    "Part",
    "ResetGraphs",
    "Restart",
    "TransformerEngineAbort",
    "Unhealthy",
    "default_abort",
    "default_finalize",
    "default_health",
    "wrap",
]
