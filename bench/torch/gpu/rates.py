"""Rates of `make gpu-test`, of one rank in a session: what a copy takes beside the copy engine's own rate, and what it costs a step.

    replicad run --dev --job a --world 1 --min-copies 1 --slots 2 -- python rates.py capture --state-mb 1536
    replicad run --dev --job a --world 1 --min-copies 1 -- python rates.py busy --buffer

``capture``: two equal models in one process, one of them in a session, blocks of steps by turns; a step takes half as long again as a copy, which so has the time it needs.
``busy``: the device has 50 ms to do in a step, and the host launches for 20 of them; a program that waits for the device in each step leaves it idle meanwhile. With ``--buffer``
each forward changes a buffer on it.
"""

from __future__ import annotations

import argparse
import copy
import math
import statistics
import time
from pathlib import Path
from typing import Any

import device as dev
import torch
from facts import age
from torch import nn

import replicad
from replicad._torch.staging import Staging

#: Layers; rows of a batch; pairs of blocks, and steps of a block.
LAYERS, ROWS, BLOCKS, BLOCK = 8, 256, 6, 5
#: Of ``busy``: seconds of a step on the device, and of those that the host launches; steps.
WORK, LAUNCH, STEPS = 0.05, 0.02, 40


class Net(nn.Module):
    """Layers, and a buffer that each forward changes where that is asked for."""

    def __init__(self, width: int, buffer: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(width, width) for _ in range(LAYERS)))
        if buffer:
            self.seen: torch.Tensor
            self.register_buffer("seen", torch.zeros(width))
        self.buffer = buffer

    def forward(self, x: torch.Tensor) -> Any:
        """The loss."""
        if self.buffer:
            self.seen.add_(x.mean(0))
        return self.layers(x).pow(2).mean()


class Trained:
    """A model with its optimizer; a step has so many micro-batches as fill its time on the device."""

    def __init__(self, model: nn.Module, device: torch.device, width: int) -> None:
        self.model, self.device = model.to(device), device
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.x = torch.randn(ROWS, width, device=device)
        self.micro = 1
        self.micro_batches(1)
        self.optimizer.step()
        dev.sync(device)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """What of it is kept, on the device."""
        of_optimizer = (v for s in self.optimizer.state.values() for v in s.values() if isinstance(v, torch.Tensor))
        return [t for t in (*self.model.parameters(), *self.model.buffers(), *of_optimizer) if t.device == self.device]

    @property
    def nbytes(self) -> int:
        """Their bytes."""
        return sum(t.numel() * t.element_size() for t in self.tensors)

    def micro_batches(self, count: int) -> None:
        """Gradients."""
        self.optimizer.zero_grad(set_to_none=False)
        for _ in range(count):
            self.model(self.x).backward()

    def fill(self, want: float) -> None:
        """Has a step take so many seconds of the device."""
        one = dev.seconds(self.device, lambda: self.micro_batches(1), 3)
        self.micro = max(1, math.ceil(want / one))

    def step(self, session: replicad.Session | None, launch: float = 0.0) -> None:
        """A step; the host is busy for ``launch`` seconds beside the device."""
        self.micro_batches(self.micro)
        time.sleep(launch)
        if session is None:
            self.optimizer.step()
            return
        with session.step():
            self.optimizer.step()


def engine(nbytes: int, device: torch.device) -> float:
    """Seconds in which as many bytes are copied to pinned memory by themselves."""
    source = torch.empty(nbytes, dtype=torch.uint8, device=device)
    to = torch.empty(nbytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
    times = [dev.seconds(device, lambda: to.copy_(source, non_blocking=True)) for _ in range(6)]
    return statistics.median(times[1:])


def timed_stages() -> list[float]:
    """Seconds of each copy of a step to its stages, from now on, after the device was through with the step."""
    took: list[float] = []
    window = Staging.window

    def timed(self: Staging, *args: Any) -> None:
        began = time.perf_counter()
        window(self, *args)
        took.append(time.perf_counter() - began)

    Staging.window = timed  # type: ignore[assignment, method-assign]
    return took


def session_of(t: Trained) -> replicad.Session:
    """In host memory there is a stage only for who asks."""
    return replicad.Session(model=t.model, optimizer=t.optimizer, staging=t.device.type == "cpu")


def capture(args: argparse.Namespace, device: torch.device, emit: dev.Events) -> None:
    """Rates of a copy, and what it costs."""
    width = max(16, int(math.sqrt((args.state_mb << 20) / (12 * LAYERS))))
    torch.manual_seed(1)
    model = Net(width, False)
    plain, kept = Trained(copy.deepcopy(model), device, width), Trained(model, device, width)
    stages, before = timed_stages(), dev.mapped()
    with session_of(kept) as session:
        mapped, made = dev.mapped() - before, session._kept.staging.stages
        pinned = max(mapped, sum({s.untyped_storage().data_ptr(): s.untyped_storage().nbytes() for s in made}.values()))  # torch's own pinned memory may be mapped otherwise
        all_pinned = device.type == "cuda" and all(s.is_pinned() for s in made)
        rate = engine(kept.nbytes, device)
        session.resume()
        for _ in range(3):
            kept.step(session)
            session.commit()
        stats = session.stats()
        arena = stats.capture_seconds / stats.captures
        for t in (plain, kept):
            t.fill(args.step or 1.5 * (arena + statistics.median(stages)))
        plain.micro = kept.micro
        times: dict[bool, list[float]] = {False: [], True: []}
        copied, stages[:] = stats.captures - stats.canceled, []
        for _ in range(BLOCKS):
            for t, of in ((plain, None), (kept, session)):
                t.step(of)  # finds, or lacks, the copy of the block before
                times[of is not None].append(dev.seconds(device, lambda t=t, of=of: t.step(of), BLOCK))  # type: ignore[misc]
        session.commit()
        stats = session.stats()
        emit(
            "capture", device=device.type, bytes=kept.nbytes, engine=rate, stage=statistics.median(stages), arena=arena, pinned=pinned, all_pinned=all_pinned,
            steps=BLOCKS * (BLOCK + 1), copied=stats.captures - stats.canceled - copied,
            **{name: statistics.median(times[k]) for k, name in ((False, "without"), (True, "with"))},
        )  # fmt: skip
        session.leave()


def busy(args: argparse.Namespace, device: torch.device, emit: dev.Events) -> None:
    """How busy the device is."""
    width = 512
    torch.manual_seed(1)
    t = Trained(Net(width, args.buffer), device, width)
    t.fill(args.step or WORK)
    work = dev.seconds(device, lambda: t.step(None), 10)
    with session_of(t) as session:
        session.resume()
        for _ in range(3):
            t.step(session)
        step = dev.seconds(device, lambda: t.step(session, work * LAUNCH / WORK), STEPS)
        emit("busy", device=device.type, work=work, step=step)
        session.leave()


def main() -> None:
    """One rank."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=["capture", "busy"])
    p.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    p.add_argument("--state-mb", type=int, default=1536)
    p.add_argument("--step", type=float, default=0.0, help="seconds of a step on the device, if another time is wanted")
    p.add_argument("--buffer", action="store_true")
    p.add_argument("--folder", type=Path, help="not used")
    args = p.parse_args()
    rank, _ = replicad.place()
    device, emit = dev.of(args.device, rank), dev.Events(rank)
    emit("start", age=round(age(), 3))
    {"capture": capture, "busy": busy}[args.what](args, device, emit)


if __name__ == "__main__":
    main()
