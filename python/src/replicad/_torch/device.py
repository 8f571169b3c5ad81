"""The accelerator that tensors lie on: all that replicad asks of one, in this place.

A device works off what it was given in its own time, each stream by itself. Two rules follow.

Nothing here waits for a device without asking whether the wait still makes sense (:meth:`Mark.wait`): a collective whose peer was lost never ends by
itself, and whoever waits for it must not keep its abort from being begun.

What a step has done on the device is known by its streams: those on which the program stood while the step was open, and where each of its optimizers ended (:class:`Streams`).
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import mmap
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ..errors import Canceled

__all__ = ["Mark", "Streams", "capturing", "device_bytes", "drop_cache", "graphs", "lies_on", "of", "own_bytes", "pinned", "ready", "relax", "synchronise", "used"]

log = logging.getLogger("replicad")

#: torch's words for the device (CUDA, and ROCm by the same names). Tests put a device made of threads in their place.
cuda: Any = torch.cuda
#: A wait looks again after so many seconds: first, and at most. The first ones cost a spinning thread little, as most waits are short.
FIRST, MOST = 50e-6, 1e-3
#: Where a stage begins in its block, in bytes: what copy engines like.
ALIGNED = 256
#: Modes of a thread beside a graph that another captures, as the CUDA runtime numbers them.
RELAXED = 2


def lies_on(t: torch.Tensor) -> bool:
    """Whether a tensor lies on an accelerator."""
    return t.device.type == "cuda"


def of(tensors: Iterable[torch.Tensor]) -> list[torch.device]:
    """The accelerators that tensors lie on."""
    return sorted({t.device for t in tensors if lies_on(t)}, key=lambda d: d.index or 0)


def ready() -> bool:
    """Whether the process has begun to use an accelerator. Asking begins nothing."""
    return bool(cuda.is_initialized())


def used() -> list[int]:
    """The accelerators of which this process holds a context."""
    if not ready():
        return []
    holds = getattr(cuda, "holds_context", None) or getattr(torch._C, "_cuda_hasPrimaryContext", None)
    return [i for i in range(cuda.device_count()) if holds is None or holds(i)]


def device_bytes(index: int) -> tuple[int, int]:
    """How many bytes of an accelerator's memory are free, and how many it has."""
    free, total = cuda.mem_get_info(index)
    return int(free), int(total)


def own_bytes(index: int) -> tuple[int, int]:
    """How many bytes of an accelerator's memory this process's tensors take, and how many torch holds there for them and for tensors to come."""
    return int(cuda.memory_allocated(index)), int(cuda.memory_reserved(index))


def synchronise(index: int) -> None:
    """Waits, for as long as that takes, until an accelerator is through with all that it was given. ``RuntimeError`` where it has failed."""
    with cuda.device(index):  # a new thread stands on device 0, and would wait for that one
        cuda.synchronize(index)


def graphs() -> type | None:
    """The class of captured graphs, where the process may have any."""
    return getattr(cuda, "CUDAGraph", None) if ready() else None


def drop_cache() -> None:
    """Gives memory that torch keeps for later back to the device."""
    if ready():
        cuda.empty_cache()


def capturing() -> bool:
    """Whether this thread captures a graph: what it asks of the device now would be part of the graph, or break it."""
    return ready() and bool(cuda.is_current_stream_capturing())


def relax() -> None:
    """Lets this thread ask a device while another thread captures a graph, which the CUDA runtime refuses otherwise, and breaks the graph by."""
    mode = ctypes.c_int(RELAXED)
    with contextlib.suppress(OSError, AttributeError, StopIteration):
        libraries = Path("/proc/self/maps").read_text()
        runtime = next(re.finditer(r"/\S*libcudart[^\s/]*", libraries))[0]
        ctypes.CDLL(runtime).cudaThreadExchangeStreamCaptureMode(ctypes.byref(mode))


@contextmanager
def on(stream: Any) -> Iterator[None]:
    """What is launched inside goes to a stream, on its device. It is none that a step is known by."""
    with cuda.device(stream.device), cuda.stream(stream):
        yield


def side(device: torch.device) -> Any:
    """A stream of one's own."""
    return cuda.Stream(device)


class Mark:
    """What some streams were given until now."""

    def __init__(self, streams: Iterable[Any]) -> None:
        events = []
        for stream in streams:
            with cuda.device(stream.device):  # a new thread stands on device 0, where an event would begin a context
                event = cuda.Event()
                event.record(stream)
            events.append(event)
        self._events = tuple(events)

    def passed(self) -> bool:
        """Whether the streams are through with it. ``RuntimeError`` where the device has failed. Any thread may ask."""
        return all(e.query() for e in self._events)

    def wait(self, given_up: Callable[[], str]) -> None:
        """Returns once it has passed; :class:`Canceled` as soon as ``given_up`` says why that is not waited for."""
        pause = FIRST
        while not self.passed():
            if why := given_up():
                raise Canceled(f"the device has not finished what it was given: {why}")
            time.sleep(pause)
            pause = min(2 * pause, MOST)


#: What notes the streams of the step that is open, if one is. One thread trains.
_noting: Streams | None = None


class Streams:
    """The streams that a step is done on."""

    def __init__(self, devices: list[torch.device]) -> None:
        self._devices, self._thread = devices, 0
        self._seen: dict[Any, None] = {}
        if devices:
            _note_switches()

    def begin(self) -> None:
        """The step begins."""
        global _noting
        self._seen, self._thread = {}, threading.get_ident()
        _noting = self if self._devices else None

    def note(self) -> None:
        """The program has launched something."""
        for d in self._devices:
            self._seen[cuda.current_stream(d)] = None

    def end(self) -> Mark:
        """The step is over on the host."""
        global _noting
        _noting = None
        self.note()
        return Mark(self._seen)

    def switched(self, stream: Any) -> None:
        """The program goes on with another stream. Other threads, the worker's too, have their own."""
        if stream is not None and threading.get_ident() == self._thread:
            self._seen[stream] = None


def _note_switches() -> None:
    """From now on a step knows each stream that the program switches to: what an optimizer launches on one of its own may be waited for only later."""
    inner = cuda.set_stream
    if hasattr(inner, "replicad"):
        return

    def set_stream(stream: Any) -> None:
        if _noting is not None:
            _noting.switched(stream)
        inner(stream)

    set_stream.replicad = True  # type: ignore[attr-defined]
    set_stream.__doc__ = inner.__doc__
    cuda.set_stream = set_stream


def pinned(sizes: list[int]) -> list[torch.Tensor]:
    """Memory of these many bytes each that a device copies to and from by itself. It is cut from one block, as torch's own allocator rounds each piece up to a power of two."""
    starts, end = [], 0
    for n in sizes:
        starts.append(end)
        end += -(-n // ALIGNED) * ALIGNED
    if not end:
        return [torch.empty(0, dtype=torch.uint8) for _ in sizes]
    block = torch.frombuffer(mmap.mmap(-1, end), dtype=torch.uint8)
    if not _register(block):
        return [torch.empty(n, dtype=torch.uint8, pin_memory=True) for n in sizes]
    return [block[at : at + n] for at, n in zip(starts, sizes, strict=True)]


def _register(block: torch.Tensor) -> bool:
    """Has the device know memory as its own to copy, until nobody holds it."""
    runtime, address = cuda.cudart(), block.data_ptr()
    try:
        code = int(runtime.cudaHostRegister(address, block.numel(), 0))
    except RuntimeError as err:
        code = -1
        log.debug("replicad: cudaHostRegister: %s", err)
    if code:
        log.warning("replicad: %d bytes of host memory can't be registered with the device (%d): stages take up to twice their size", block.numel(), code)
        return False
    # At the process's end the driver does it; a call then would wait for a device that may hang.
    weakref.finalize(block.untyped_storage(), runtime.cudaHostUnregister, address).atexit = False
    return True
