"""One rank of a data-parallel job that is kept by one of several systems: what each costs a training step.

Two copies of a model train in turn, in blocks of steps: one under plain DDP, one kept by the system, in the same processes and so at the
same time of the machine. The last line of rank 0 is a JSON object. Two figures say what a step loses:

- `stall_ms` is the median step with the system less the median step without.
- `held_ms` is the time that the system holds the training thread in a step: its calls and its hooks, without the optimizer's own step.

`peers.py` starts this program; by hand:

    replicad daemon --dev &
    replicad run --dev --job cost --world 2 --min-copies 1 -- python bench/torch/cost.py --system replicad
    torchrun --nproc-per-node 2 bench/torch/cost.py --system dcp
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "torch"))
from gpt import GPT, sized

VOCABULARY, LENGTH = 128, 64


class Held:
    """How long a system holds the training thread in a step: the stretches from each `enter` to the `leave` behind it."""

    def __init__(self) -> None:
        self.seconds, self.since = 0.0, 0.0

    def enter(self, *_: Any) -> None:
        self.since = time.perf_counter()

    def leave(self, *_: Any) -> None:
        self.seconds += time.perf_counter() - self.since


class Kept:
    """A model under a system: ``ddp`` is what is called, ``begin`` opens a step, ``update`` ends it with the optimizer's step and a copy."""

    name = "none"

    def __init__(self, model: GPT, optimizer: torch.optim.Optimizer, folder: Path) -> None:
        self.model, self.optimizer, self.folder = model, optimizer, folder
        self.step = 0
        self.held = Held()
        model.register_forward_pre_hook(self.held.enter)  # what the system adds to the model and the optimizer runs between these hooks and those below
        optimizer.register_step_post_hook(self.held.enter)
        self.ddp: torch.nn.Module = self.wrap()
        model.register_forward_pre_hook(self.held.leave)
        optimizer.register_step_pre_hook(self.held.leave)

    def wrap(self) -> torch.nn.Module:
        return DistributedDataParallel(self.model, gradient_as_bucket_view=spare)

    def begin(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    def update(self) -> None:
        self.optimizer.step()
        self.step += 1

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optim": self.optimizer.state_dict()}

    def copies(self) -> int:
        """How many steps have a complete copy."""
        return self.step

    def close(self) -> None: ...


class Replicad(Kept):
    """A copy behind the next forward, verified chunk by chunk and committed on the whole job."""

    name = "replicad"

    def wrap(self) -> torch.nn.Module:
        import replicad

        self.session = replicad.Session(model=self.model, optimizer=self.optimizer, connection=connection)
        self.session.resume()
        return super().wrap()

    def update(self) -> None:
        with self.session.step():
            self.optimizer.step()
        self.step += 1

    def copies(self) -> int:
        s = self.session.stats()
        return s.captures - s.canceled

    def close(self) -> None:
        self.session.leave()
        self.session.close()


class DCP(Kept):
    """`async_save` to memory (tmpfs), a thread a save; the next save waits for the one before."""

    name = "dcp"
    future: Any = None

    def wrap(self) -> torch.nn.Module:
        self.group = dist.new_group(backend="gloo")  # its thread's collectives must not meet those of the training
        return super().wrap()

    def update(self) -> None:
        import torch.distributed.checkpoint as dcp

        super().update()
        if self.future is not None:
            self.future.result()
        self.future = dcp.async_save(self.state(), checkpoint_id=str(self.folder / f"dcp-{self.step % 2}"), process_group=self.group)

    def close(self) -> None:
        if self.future is not None:
            self.future.result()


class LMResiliency(Kept):
    """GEMINI: a copy in host memory, and one at the peer."""

    name = "lm-resiliency"

    def wrap(self) -> torch.nn.Module:
        from lm_resiliency.checkpointing.config import InMemoryCkptConfig
        from lm_resiliency.checkpointing.manager import InMemoryCheckpointManager

        config = InMemoryCkptConfig(interval=1, replication_jump=1, pin_memory=False, disk_flush_interval=0, disk_folder=str(self.folder / "lm"), run_id="cost")
        self.manager = InMemoryCheckpointManager(config)
        return super().wrap()

    def update(self) -> None:
        super().update()
        tensors = [*self.model.parameters(), *(v for s in self.optimizer.state.values() for v in s.values() if isinstance(v, torch.Tensor))]
        self.manager.save_tensors([t.detach() for t in tensors], self.step)

    def close(self) -> None:
        self.manager.finalize_replication(timeout_s=60)


class DLRover(Kept):
    """Flash checkpoint to shared memory."""

    name = "dlrover"
    saved = 0

    def wrap(self) -> torch.nn.Module:
        from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer

        self.checkpointer = DdpCheckpointer(str(self.folder / "dlrover"), comm_backend="gloo")
        return super().wrap()

    def update(self) -> None:
        from dlrover.trainer.torch.flash_checkpoint.checkpointer import StorageType

        super().update()
        self.checkpointer.save_checkpoint(self.step, self.state(), storage_type=StorageType.MEMORY)
        self.saved += self.checkpointer._engine._cached_step == self.step  # it skips a save while its saver holds the memory

    def copies(self) -> int:
        return self.saved

    def close(self) -> None:
        if saver := self.checkpointer._engine.saver_proc:  # outlives its trainer
            saver.kill()
            self.checkpointer._engine._shm_handler.shared_memory.unlink()
            shutil.rmtree(Path("/tmp/ckpt_sock") / os.environ["TORCHELASTIC_RUN_ID"], ignore_errors=True)


class Torchft(Kept):
    """No copies: each rank is a replica, a quorum and a vote a step."""

    name = "torchft"

    def wrap(self) -> torch.nn.Module:
        import torchft
        from torchft.ddp import DistributedDataParallel as Managed
        from torchft.process_group import ProcessGroupGloo

        store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        self.keep = store
        self.manager = torchft.Manager(
            pg=ProcessGroupGloo(timeout=timedelta(seconds=60)), min_replica_size=2, load_state_dict=self.load, state_dict=self.state,
            replica_id=f"cost-{rank}", store_addr="localhost", store_port=store.port, rank=0, world_size=1, lighthouse_addr=os.environ["TORCHFT_LIGHTHOUSE"],
        )  # fmt: skip
        return Managed(self.manager, self.model)

    def load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optim"])

    def begin(self) -> None:
        self.manager.start_quorum()
        super().begin()

    def update(self) -> None:
        if self.manager.should_commit():
            super().update()

    def close(self) -> None:
        self.manager.shutdown(wait=False)


SYSTEMS: dict[str, type[Kept]] = {s.name: s for s in (Kept, Replicad, DCP, LMResiliency, DLRover, Torchft)}


def quantile(values: list[float], q: float) -> float:
    values = sorted(values)
    return values[min(len(values) - 1, int(q * len(values)))]


def arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--system", choices=SYSTEMS, required=True)
    p.add_argument("--state-mb", type=int, default=0, help="MiB of parameters and AdamW state of each model: sets --width")
    p.add_argument("--width", type=int, default=512)
    p.add_argument("--layers", type=int, default=4)
    p.add_argument("--batch", type=int, default=4, help=f"runs of {LENGTH} tokens")
    p.set_defaults(length=LENGTH)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--blocks", type=int, default=6, help="of each kind")
    p.add_argument("--block", type=int, default=10, help="steps of a block")
    return p.parse_args()


def timed(kept: Kept, x: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
    """Seconds of a step, and those of them in which the system held the training thread."""
    dist.barrier()
    held, kept.held.seconds = kept.held, 0.0
    began = time.perf_counter()
    held.enter()
    kept.begin()
    held.leave()
    kept.ddp(x, y).backward()
    held.enter()
    kept.update()  # the optimizer's own step leaves, and enters again
    held.leave()
    return time.perf_counter() - began, held.seconds


def by_kind(times: dict[Kept, list[float]], plain: Kept, q: float, digits: int) -> dict[str, float]:
    """A quantile in milliseconds, without and with the system."""
    return {("without" if k is plain else "with"): round(quantile(v, q) * 1e3, digits) for k, v in times.items()}


def measure(args: argparse.Namespace, plain: Kept, kept: Kept) -> dict[str, Any]:
    x, y = (torch.randint(VOCABULARY, (args.batch, LENGTH)) for _ in range(2))
    times: dict[Kept, list[float]] = {plain: [], kept: []}
    held: dict[Kept, list[float]] = {plain: [], kept: []}
    for which in (plain, kept, plain, kept):
        timed(which, x, y)
    first = kept.copies()
    for _ in range(args.blocks):
        for which in (plain, kept):
            timed(which, x, y)  # finds, or lacks, the copy of the block before
            for _ in range(args.block):
                took, of_it = timed(which, x, y)
                times[which].append(took)
                held[which].append(of_it)
    state = sum(t.numel() * t.element_size() for t in kept.model.parameters()) * 3
    p50, p99 = (by_kind(times, plain, q, 1) for q in (0.5, 0.99))
    held50, held99 = (by_kind(held, plain, q, 3) for q in (0.5, 0.99))
    return {
        "system": kept.name, "world": dist.get_world_size(), "threads": args.threads, "cores": os.cpu_count(), "torch": torch.__version__, "state_mb": round(state / 1e6),
        "step_ms_p50": p50, "step_ms_p99": p99, "overhead_p50": round(p50["with"] / p50["without"] - 1, 4), "stall_ms": round(p50["with"] - p50["without"], 1),
        "held_ms_p50": held50, "held_ms_p99": held99, "load": os.getloadavg()[0],
        "copies": kept.copies() - first, "steps": args.blocks * (args.block + 1),
    }  # fmt: skip


def job(args: argparse.Namespace, folder: Path) -> None:
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    model = sized(args, VOCABULARY) if args.state_mb else GPT(VOCABULARY, LENGTH, args.width, args.layers, heads=8, dropout=0.0)
    models = model, copy.deepcopy(model)
    make: Callable[[torch.nn.Module], torch.optim.Optimizer] = lambda m: torch.optim.AdamW(m.parameters(), lr=1e-4, fused=args.state_mb > 0 or None)  # noqa: E731
    plain, kept = Kept(models[0], make(models[0]), folder), SYSTEMS[args.system](models[1], make(models[1]), folder)
    figures = measure(args, plain, kept)
    if rank == 0:
        print(json.dumps(figures), flush=True)
    dist.barrier()
    kept.close()


if __name__ == "__main__":
    arguments_ = arguments()
    spare = arguments_.state_mb > 0  # a second copy of large gradients
    rank = int(os.environ.get("REPLICAD_RANK") or os.environ["RANK"])
    connection: Any = None
    if arguments_.system == "replicad":
        import replicad
        from replicad.store import init_process_group

        connection = replicad.connect()
        init_process_group(connection)
    else:
        dist.init_process_group("gloo")
    where = Path("/dev/shm") / f"replicad-cost-{os.environ.get('MASTER_PORT', os.getppid())}"
    where.mkdir(exist_ok=True)
    try:
        job(arguments_, where)
    finally:
        shutil.rmtree(where, ignore_errors=True)
    sys.stdout.flush()
    os._exit(0)  # some systems leave threads behind that nothing ends
