"""A job on the device of :mod:`fakecuda`: two ranks whose gradients meet in a collective on the device, with faults, checked at every resume against what the state must be.

    SEED=3 OUT=folder HOW=inproc|process KIND=ddp|sharded replicad run ... -- python device_job.py PLAN

PLAN is a list of WHAT@STEP, once each: where the step is (``bwd``, ``win``, ``after``) and what happens there on rank 1: ``kill-win@5``,
``raise-bwd@6``, ``lost@7`` (its part of the collective is lost, and its process dies when its device is through), ``watchdog@8`` (and torch's
watchdog aborts rank 0's communicator, whose collective hangs), ``abort@8`` (and the program aborts it), ``fault@9`` (the device fails),
``stop@9`` (its device stands still, and it dies). ``item`` in HOW reads a value of the device in each step.
"""

from __future__ import annotations

import os
import pathlib
import signal
import sys
import threading
import time

import numpy as np
import torch

import fakecuda as fc
import replicad
from replicad._core.life import Life
from replicad._torch.communicators import Communicators
from replicad._torch.device import Streams
from replicad._torch.live import Live

fc.install()
OUT, HOW, KIND = pathlib.Path(os.environ["OUT"]), os.environ.get("HOW", "process"), os.environ.get("KIND", "ddp")
STEPS, N, SIDE = int(os.environ.get("STEPS", "12")), 1 << 12, os.environ.get("SIDE", "")
PLAN = [(w.partition("@")[0], int(w.partition("@")[2])) for w in sys.argv[1:]]
replicad.wait_rank()
rank, world = replicad.place()


#: What was wrong once, to be found again: nobody asks the communicators; a device is waited for whatever happens; only the stream that is current at the end counts.
CONTROL = os.environ.get("CONTROL", "")
if CONTROL == "communicators":
    Communicators.fault = lambda self, since: None
elif CONTROL == "waits":
    Live.given_up = lambda self: ""
    Life.changing = property(lambda self: self.in_step)
elif CONTROL == "streams":
    Streams.note = lambda self: self._seen.setdefault(fc.current_stream(0))
    Streams.switched = lambda self, stream: None


def part(step: int, of: int) -> np.float32:
    """What a rank has to give to a step's gradients."""
    return np.float32((step * 37 + of * 11) % 17 - 8)


def state(step: int) -> tuple[np.float32, np.float32, np.float32]:
    """Weight, momentum and buffer after a step, of this rank."""
    w, m, b = np.float32(0), np.float32(0), np.float32(0)
    scale = np.float32(1 + rank if KIND == "sharded" else 1)
    for s in range(1, step + 1):
        b = b * np.float32(0.5) + np.float32(s + rank)
        g = np.float32(0)
        for r in range(world):
            g = g + part(s, r)
        m = m * np.float32(0.5) + g * scale
        w = w - np.float32(0.25) * m
    return w, m, b


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self._parameters["w"] = fc.parameter(torch.zeros(N))
        if os.environ.get("BUFFER", "1"):
            self._buffers["mean"] = fc.fake(torch.zeros(64))

    def forward(self, step: int) -> None:
        if "mean" in self._buffers:
            mean = fc.raw(self.mean).numpy()

            def kernel() -> None:
                mean[:] = mean * np.float32(0.5) + np.float32(step + rank)

            fc.launch(kernel, self.mean)
        fc.cuda.default_generators[0].offset += 4


class Momentum(torch.optim.Optimizer):
    """On the current stream, or on one of its own that the program waits for later."""

    def __init__(self, params) -> None:
        super().__init__(params, {"lr": 0.25})
        self.own = fc.Stream(name="optimizer") if SIDE else None

    def step(self, closure=None) -> None:
        if self.own is None:
            self._launch()
        else:
            self.own.wait_stream(fc.current_stream())
            with fc.cuda.stream(self.own):
                self._launch()

    def _launch(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                if not self.state[p]:
                    self.state[p]["m"] = torch.zeros_like(p)
                w, m, g = (fc.raw(t).numpy() for t in (p, self.state[p]["m"], p.grad))
                scale = np.float32(1 + rank if KIND == "sharded" else 1)

                def kernel(w=w, m=m, g=g, scale=scale) -> None:
                    for i in range(0, N, N // 4):  # torn if it is read meanwhile
                        part = slice(i, i + N // 4)
                        m[part] = m[part] * np.float32(0.5) + g[part] * scale
                        w[part] = w[part] - np.float32(0.25) * m[part]
                        time.sleep(0.0005)

                fc.launch(kernel, p, self.state[p]["m"])


def say(*what: object) -> None:
    os.write(1, (" ".join(map(str, (f"{time.time() % 1000:7.3f} rank {rank}", *what))) + "\n").encode())  # one write: ranks share the pipe


def first(what: str, step: int) -> bool:
    """Whether a fault of the plan is due, which comes once."""
    if (what, step) not in PLAN:
        return False
    try:
        (OUT / f"done-{what}-{step}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


net = Net()
grad = fc.fake(torch.zeros(N))
net._parameters["w"].grad = None
optimizer = Momentum(net.parameters())
session = replicad.Session(net, optimizer)
nccl: fc.NCCL


def happen(where: str, step: int) -> None:
    if rank == 1:
        if first(f"kill-{where}", step):
            say("DIES", where, step)
            os.kill(os.getpid(), signal.SIGKILL)
        if first(f"raise-{where}", step):
            raise ValueError(f"raised in {where} {step}")


def dies_later(step: int, after: float) -> None:
    def die() -> None:
        time.sleep(after)
        (OUT / f"dead-{step}").touch()
        say("DIES at", step)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=die, daemon=True).start()


def watchdog(step: int) -> None:
    """Torch's, on rank 0: some time after its peer died."""
    while not (OUT / f"dead-{step}").exists():
        time.sleep(0.002)
    time.sleep(float(os.environ.get("WATCHDOG", "0.05")))
    say("WATCHDOG aborts")
    nccl.watchdog()


def check(step: int) -> None:
    fc.synchronize()
    fc.waited.clear()
    w, m, b = state(step)
    got = fc.raw(net.w).numpy(), fc.raw(optimizer.state[net.w]["m"]).numpy()
    wrong = [f"{x[0]} .. {x[-1]} for {want}" for x, want in zip(got, (w, m), strict=True) if not (x == want).all()]
    if "mean" in net._buffers and not (fc.raw(net.mean).numpy() == b).all():
        wrong.append(f"mean {fc.raw(net.mean).numpy()[0]} for {b}")
    if fc.cuda.default_generators[0].offset != 4 * step:
        wrong.append(f"generator {fc.cuda.default_generators[0].offset} for {4 * step}")
    say("AT", step, "WRONG BITS: " + ", ".join(wrong) if wrong else "right", "epoch", session.order.epoch, "from", session.order.source)


def block(call: object = None) -> None:
    global nccl
    start = session.resume()
    replicad.store.init_process_group(session)
    nccl = fc.NCCL(OUT, session.order.epoch, rank, world)
    check(start)
    gradients = fc.raw(grad).numpy()
    for step in range(start + 1, STEPS + 1):
        net(step)

        def mine(step=step) -> None:
            gradients[:] = sum((part(step, r) for r in range(world)), np.float32(0))

        def ends(garbage: float | None, step=step) -> None:
            if garbage is not None:
                gradients[:] = garbage
                say("DEVICE: the collective of step", step, "was aborted")

        lost = rank == 1 and (first("lost", step) or first("watchdog", step) or first("abort", step))
        if lost:
            dies_later(step, 0.3)
        elif rank == 1 and first("stop", step):
            fc.launch(lambda: time.sleep(30))
            dies_later(step, 0.3)
        if rank == 0 and ("watchdog", step) in PLAN and not (OUT / f"dead-{step}").exists():
            threading.Thread(target=watchdog, args=(step,), daemon=True).start()
        nccl.all_reduce(step, mine, ends, sent=not lost)
        net.w.grad = grad
        happen("bwd", step)
        if rank == 1 and first("fault", step):
            fc.fail()
        with session.step():
            optimizer.step()
            happen("win", step)
        if SIDE:
            fc.current_stream().wait_stream(optimizer.own)  # what reads the weights next does
        happen("after", step)
        if "item" in HOW:
            fc.current_stream().synchronize()
        if lost:
            time.sleep(2)
        if rank == 0 and ("abort", step) in PLAN and (OUT / f"dead-{step}").exists() and not (OUT / "aborted").exists():
            (OUT / "aborted").touch()
            say("the program ABORTS")
            nccl.abort()
        time.sleep(float(os.environ.get("PACE", "0.02")))
    waited = list(fc.waited)
    session.leave()
    check(STEPS)  # until it has left with it a rank may go on with what a broken collective has left, which nobody vouches for
    say("WAITED", len(waited), waited[:3])
    say("END", STEPS, "noticed", {k: v[:200] for k, v in session.noticed.items()})


if "inproc" in HOW:
    replicad.inprocess.wrap(session, hard=float(os.environ.get("HARD", "20")), trace=str(OUT / f"trace-{rank}"))(block)()
else:
    block()
session.close()
