"""A job of `make gpu-test`: a small net, trained in one of many ways, hit where a plan says so. What it comes to is printed as digests.

    replicad run --dev --job a --world 1 --min-copies 1 -- python train.py --inprocess --plan raise:backward:5,kill:window:8 --folder F
    python train.py --undisturbed                        the same training without replicad

A plan is a list of WHAT:PLACE:STEP or WHAT:PLACE:FIRST-LAST, each fault once in the life of the job, on the last rank. Places: ``forward`` (before it), ``backward`` (behind it,
before the step), ``window`` (inside of the step, behind the update), ``after`` (behind the step). What: ``raise``, ``kill``, ``assert`` (a kernel fails, and the device with it),
``oom``, ``abort`` (the program aborts its process groups).
"""

from __future__ import annotations

import argparse
import copy
import ctypes
import functools
import hashlib
import os
import signal
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import device as dev
import torch
import torch.distributed as dist
from facts import age
from rows import parsed
from torch import nn

import replicad
from replicad.parallel import ddp
from replicad.store import init_process_group

BATCH, INPUTS = 32, 16
#: The step in which GradScaler meets a gradient that is no number, and from which on a graph is replayed.
OVERFLOW, GRAPHED = 7, 4


# -- what is trained ----------------------------------------------------------------------------------------------------------


class Net(nn.Module):
    """Layers with dropout, a buffer that each forward changes, and noise where it is asked for: both are drawn on the device."""

    def __init__(self, width: int, depth: int, noise: bool) -> None:
        super().__init__()
        inner = [m for _ in range(depth) for m in (nn.Linear(width, width), nn.GELU(), nn.Dropout(0.1))]
        self.layers = nn.Sequential(nn.Linear(INPUTS, width), nn.BatchNorm1d(width), nn.GELU(), *inner, nn.Linear(width, 1))
        self.noise = noise

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        """The loss."""
        if self.noise:
            x = x + 0.1 * torch.randn_like(x)
        return (self.layers(x) - y).float().pow(2).mean()


class Side(torch.optim.AdamW):
    """Its update runs on a stream of its own; the program waits for it before it reads a weight."""

    def __init__(self, params: Iterable[nn.Parameter], **options: Any) -> None:
        super().__init__(params, **options)
        self.stream = torch.cuda.Stream()

    def step(self, closure: Any = None) -> Any:
        """Launches the update."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            return super().step(closure)

    def wait(self) -> None:
        """What the program launches from now on comes behind the update."""
        torch.cuda.current_stream().wait_stream(self.stream)


adamw, sgd = functools.partial(torch.optim.AdamW, lr=1e-3), functools.partial(torch.optim.SGD, lr=1e-2, momentum=0.9)
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": adamw, "adamw-fused": functools.partial(adamw, fused=True), "adamw-capturable": functools.partial(adamw, capturable=True),
    "adamw-capturable-fused": functools.partial(adamw, capturable=True, fused=True), "adamw-foreach": functools.partial(adamw, foreach=True),
    "adamw-single": functools.partial(adamw, foreach=False), "sgd": functools.partial(sgd, foreach=False), "sgd-foreach": functools.partial(sgd, foreach=True),
    "sgd-fused": functools.partial(sgd, fused=True), "side": functools.partial(Side, lr=1e-3, fused=True),
}  # fmt: skip


class Graph:
    """Forward and backward as one graph, with the gradients that it writes."""

    def __init__(self, model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
        """It does not wait for the device, as ``torch.cuda.graph`` does: so the worker asks the device for the step before while the graph is captured. In this mode a forbidden
        call of any thread breaks the capture."""
        self.x, self.y, self.parameters = torch.zeros_like(x), torch.zeros_like(y), list(model.parameters())
        for p in self.parameters:
            p.grad = None
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        self.graph = torch.cuda.CUDAGraph()
        with replicad.rng.preserved(), torch.cuda.stream(stream):
            self.graph.capture_begin(capture_error_mode="global")
            model(self.x, self.y).backward()
            self.graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)
        self.gradients = [p.grad for p in self.parameters]

    @staticmethod
    def warm(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
        """Has libraries get what they want at their first use, which a capture forbids, on a copy of the model."""
        like, stream = copy.deepcopy(model), torch.cuda.Stream()
        with replicad.rng.preserved(), torch.cuda.stream(stream):
            for _ in range(3):
                like(x, y).backward()
        torch.cuda.synchronize()

    def replay(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """A forward and a backward."""
        self.x.copy_(x)
        self.y.copy_(y)
        for p, g in zip(self.parameters, self.gradients, strict=True):
            p.grad = g  # a resume takes gradients away
        self.graph.replay()


# -- faults -------------------------------------------------------------------------------------------------------------------


class Faults:
    """Breaks this rank where the plan says so, each fault once in the life of the job: the folder remembers."""

    def __init__(self, plan: list[tuple[str, str, int]], folder: Path, device: torch.device, emit: dev.Events) -> None:
        self._plan, self._folder, self._device, self._emit = plan, folder, device, emit

    def at(self, place: str, step: int, epoch: int) -> None:
        """What is due there happens."""
        for what, where, when in self._plan:
            mark = self._folder / f"{what}-{where}-{when}"
            if (where, when) == (place, step) and not mark.exists():
                mark.touch()
                self._emit("fault", what=what, place=place, step=step, epoch=epoch)
                getattr(self, f"_{what}")()

    def _raise(self) -> None:
        raise ValueError("raised as planned")

    def _kill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def _assert(self) -> None:
        torch.zeros(4, device=self._device)[torch.full((1,), 9, device=self._device)].sum().item()

    def _oom(self) -> None:
        torch.empty(2 * torch.cuda.mem_get_info(self._device)[1], dtype=torch.uint8, device=self._device)

    def _abort(self) -> None:
        group = dist.group.WORLD
        assert group is not None
        (group if hasattr(group, "abort") else group._get_backend(self._device)).abort()


# -- training -----------------------------------------------------------------------------------------------------------------


class Job:
    """The objects that are trained, and how a step is done with them."""

    def __init__(self, args: argparse.Namespace, rank: int, world: int, emit: dev.Events) -> None:
        self.args, self.rank, self.world, self.emit = args, rank, world, emit
        self.device = dev.of(args.device, rank)
        torch.manual_seed(1)
        self.model = Net(args.width, args.depth, args.noise).to(self.device, torch.bfloat16 if args.bfloat16 else torch.float32)
        self.optimizer = OPTIMIZERS[args.optimizer](self.model.parameters())
        self.half = torch.float16 if self.device.type == "cuda" else torch.bfloat16
        self.scaler = torch.amp.GradScaler(self.device.type, init_scale=1024.0, growth_interval=4) if args.scaler else None
        torch.manual_seed(1000 + rank)  # what is drawn differs from rank to rank
        self.faults = Faults(parsed(args.plan) if rank == world - 1 else [], args.folder, self.device, emit)
        self.graph: Graph | None = None
        self.batches = [self.batch(step) for step in range(args.steps + 1)]  # there beforehand: to bring one to the device waits for the device
        if args.graph:
            Graph.warm(self.model, *self.batches[0])

    def group(self, session: replicad.Session | None) -> nn.Module:
        """The model over a process group, if there is one."""
        if self.world == 1 and self.args.backend == "gloo":
            return self.model
        if session is None:
            dist.init_process_group(self.args.backend, init_method=f"file://{self.args.folder}/store", rank=self.rank, world_size=self.world)
        else:
            init_process_group(session, self.args.backend, timeout=timedelta(seconds=60))
        return ddp(self.model, broadcast_buffers=False)

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The samples of a step, by its number."""
        draw = torch.Generator().manual_seed(step * self.world + self.rank)
        x, y = torch.randn(BATCH, INPUTS, generator=draw), torch.randn(BATCH, 1, generator=draw)
        dtype = next(self.model.parameters()).dtype
        return x.to(self.device, dtype), y.to(self.device, dtype)

    def gradients(self, model: nn.Module, step: int) -> None:
        """Forward and backward."""
        x, y = self.batches[step]
        if self.args.graph and step >= GRAPHED:
            if self.graph is None:
                self.graph = Graph(self.model, x, y)
                self.emit("graph", step=step)
            return self.graph.replay(x, y)
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.device.type, self.half) if self.scaler else nullcontext():
            loss = model(x, y)
        if self.scaler and step == OVERFLOW:
            loss = loss * float("inf")
        (self.scaler.scale(loss) if self.scaler else loss).backward()
        return None

    def update(self) -> None:
        """What a step changes."""
        if self.scaler:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()

    def steps(self, session: replicad.Session | None) -> None:
        """Trains from where the session stands to the end."""
        model, epoch, last = self.group(session), session.order.epoch if session else 0, self.args.steps
        if self.args.graph == "anew":
            self.graph = None
        first = True
        for step in session.steps(last) if session else range(1, last + 1):
            if self.args.behind:
                dev.behind(self.device)
            self.faults.at("forward", step, epoch)
            self.gradients(model, step)
            self.faults.at("backward", step, epoch)
            with session.step() if session else nullcontext():
                self.update()
                self.faults.at("window", step, epoch)
            if isinstance(self.optimizer, Side):
                self.optimizer.wait()
            self.faults.at("after", step, epoch)
            if first:
                dev.sync(self.device)
                first = False
            self.emit("step", step=step, epoch=epoch)
        if dist.is_initialized():
            dist.barrier()
        self.emit("done", digests=self.digests())

    def digests(self) -> dict[str, str]:
        """What the training came to, by part, and what is drawn next on host and device."""
        state = self.optimizer.state_dict()["state"]
        own: dict[str, list[tuple[str, torch.Tensor]]] = {
            "parameters": list(self.model.named_parameters()), "buffers": list(self.model.named_buffers()),
            "optimizer": [(f"{i}.{k}", v) for i, s in state.items() for k, v in s.items() if isinstance(v, torch.Tensor)],
            "generators": [("host", torch.rand(8)), ("device", torch.rand(8, device=self.device))],
        }  # fmt: skip
        if self.scaler:
            own["scaler"] = [(k, torch.tensor(float(v))) for k, v in self.scaler.state_dict().items()]
        return {part: digest(tensors) for part, tensors in own.items()}


def digest(tensors: Iterable[tuple[str, torch.Tensor]]) -> str:
    """One for all of them, by name."""
    h = hashlib.sha256()
    for name, t in sorted(tensors, key=lambda at: at[0]):
        host = t.detach().cpu().contiguous()
        h.update(name.encode() + ctypes.string_at(host.data_ptr(), host.nbytes))  # without numpy, which this torch may lack
    return h.hexdigest()[:16]


def replicated(job: Job) -> None:
    """Trains under replicad."""
    args = job.args
    kept: dict[str, Any] = {"scaler": job.scaler} if job.scaler else {}
    with replicad.Session(model=job.model, optimizer=job.optimizer, keep_rng=not args.lose_generators, **kept) as session:

        @replicad.inprocess.wrap(session, enabled=args.inprocess, hard=30, trace=str(args.folder / f"trace-{job.rank}"))
        def block(_: Any) -> None:
            session.resume()
            job.emit("memory", **dev.memory(job.device))
            job.steps(session)
            session.leave()

        block()


def arguments() -> argparse.Namespace:
    """Of the command."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    p.add_argument("--steps", type=int, default=12)
    p.add_argument("--width", type=int, default=256)
    p.add_argument("--depth", type=int, default=3)
    p.add_argument("--optimizer", choices=OPTIMIZERS, default="adamw")
    p.add_argument("--backend", default="gloo", help="of process groups; one rank has a group only if it is not gloo")
    p.add_argument("--graph", choices=["anew", "kept"], help=f"capture forward and backward in step {GRAPHED}, in each run of the block or once in a process")
    p.add_argument("--noise", action="store_true", help="draw on the device in each forward")
    p.add_argument("--scaler", action="store_true", help=f"float16 with a GradScaler, which overflows in step {OVERFLOW}")
    p.add_argument("--bfloat16", action="store_true", help="parameters of this type")
    p.add_argument("--behind", action="store_true", help="keep the device behind the host")
    p.add_argument("--inprocess", action="store_true", help="go on in this process")
    p.add_argument("--lose-generators", action="store_true", help="a control: the session keeps none")
    p.add_argument("--plan", default="")
    p.add_argument("--folder", type=Path, required=True, help="remembers which faults have come, for as long as the job lives")
    p.add_argument("--undisturbed", action="store_true", help="train without replicad; RANK and WORLD_SIZE say as whom")
    return p.parse_args()


def main() -> None:
    """A rank, or an undisturbed process in its place."""
    args = arguments()
    if args.undisturbed:
        args.plan = ""
        rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    else:
        rank, world = replicad.place()
    torch.use_deterministic_algorithms(True)
    job = Job(args, rank, world, dev.Events(rank))
    dev.sync(job.device)
    job.emit("start", age=round(age(), 3))
    if args.undisturbed:
        job.steps(None)
    else:
        replicated(job)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
