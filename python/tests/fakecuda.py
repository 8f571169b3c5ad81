"""A device made of threads: what it is given is done later, in an order that a seed draws, and what fails there fails as on a GPU.

:func:`install` puts it in the place of ``torch.cuda`` in replicad's one module that asks a device (``replicad._torch.device``). A stream is a thread, a kernel a function that
runs there some time later. Whoever reads a tensor's memory before the stream has come to it finds what was there before. A collective (:class:`NCCL`) meets its peers by files;
aborted, it ends with garbage in its place, as NCCL's kernels do. An error sticks to the device (:func:`fail`).
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import queue
import random
import threading
import time
import traceback
import types

import torch
import torch.distributed.distributed_c10d as c10d

#: Seconds that a kernel takes, and a copy: each is drawn up to this much.
KERNEL, COPY = 0.002, 0.001
rng = random.Random(int(os.environ.get("SEED", "1")))
error: str | None = None
waited: list[str] = []  #: where the main thread has waited for a stream
host_memory = True  # whether the device takes host memory as its own to copy
_now = threading.local()
_streams: list[Stream] = []


def fail(text: str = "CUDA error: an illegal memory access was encountered") -> None:
    """From now on every word to the device raises, and what it was given is not done."""
    global error
    error = text


def check() -> None:
    if error:
        raise RuntimeError(error)


class Stream:
    def __init__(self, device=None, name: str = "side") -> None:
        self.device = torch.device("cuda", getattr(device, "index", device) or 0)
        self.name, self._queue, self._launched, self._done = name, queue.SimpleQueue(), 0, 0
        self._news = threading.Condition()
        _streams.append(self)
        threading.Thread(target=self._run, daemon=True, name=f"fake-stream-{name}").start()

    def _run(self) -> None:
        while True:
            kernel = self._queue.get()
            if error is None:
                kernel()
            with self._news:
                self._done += 1
                self._news.notify_all()

    def launch(self, kernel) -> None:
        check()
        with self._news:
            self._launched += 1
        self._queue.put(kernel)

    def query(self) -> bool:
        check()
        return self._done >= self._launched

    def synchronize(self) -> None:
        if threading.current_thread() is threading.main_thread():
            waited.append("".join(traceback.format_stack(limit=6)[:-1]))
        with self._news:
            until = self._launched
            self._news.wait_for(lambda: self._done >= until or error)
        check()

    def wait_event(self, event: Event) -> None:
        self.launch(event.fired.wait)

    def wait_stream(self, other: Stream) -> None:
        event = Event()
        event.record(other)
        self.wait_event(event)


class Event:
    def __init__(self) -> None:
        self.fired = threading.Event()

    def record(self, stream: Stream | None = None) -> None:
        self.fired.clear()
        (stream or current_stream()).launch(self.fired.set)

    def query(self) -> bool:
        check()
        return self.fired.is_set()


_default = [Stream(i, f"default-{i}") for i in range(2)]


def current_device() -> int:
    return getattr(_now, "device", 0)


def current_stream(device=None) -> Stream:
    index = getattr(device, "index", device)
    index = current_device() if index is None else index
    stream = getattr(_now, "stream", None)
    return stream if stream is not None and stream.device.index == index else _default[index]


def set_stream(stream: Stream) -> None:
    _now.stream, _now.device = stream, stream.device.index


class stream:  # noqa: N801
    def __init__(self, to: Stream) -> None:
        self.to = to

    def __enter__(self) -> None:
        self.before = current_stream(current_device())
        cuda.set_stream(self.to)

    def __exit__(self, *_: object) -> None:
        cuda.set_stream(self.before)


class device:  # noqa: N801
    def __init__(self, to) -> None:
        self.to = getattr(to, "index", to) or 0

    def __enter__(self) -> None:
        self.before, _now.device = current_device(), self.to

    def __exit__(self, *_: object) -> None:
        _now.device = self.before


def synchronize(of=None) -> None:
    """The training thread must not come here from a step: replicad's words are :class:`Event`."""
    index = getattr(of, "index", of)
    index = current_device() if index is None else index
    contexts.add(index)
    for s in list(_streams):
        if s.device.index == index:
            s.synchronize()


class Generator:
    def __init__(self) -> None:
        self.seed = self.offset = 0

    def get_state(self) -> torch.Tensor:
        return torch.tensor([self.seed, self.offset], dtype=torch.int64).view(torch.uint8)

    def set_state(self, state: torch.Tensor) -> None:
        self.seed, self.offset = state.clone().view(torch.int64).tolist()


class _Runtime:
    def __init__(self) -> None:
        self.registered: dict[int, int] = {}

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:  # noqa: N802
        if not host_memory:
            return 2
        self.registered[address] = nbytes
        return 0

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
        return 0 if self.registered.pop(address, None) else 1


runtime = _Runtime()
#: By device: free and all bytes, which a test may set.
memory = {0: [60 << 30, 80 << 30], 1: [60 << 30, 80 << 30]}
contexts = {0}
#: By device: bytes of tensors, and bytes that are kept for them and for others to come.
held = {0: [0, 0], 1: [0, 0]}
emptied: list[int] = []  # by device, what each call of empty_cache gave back
capture = False


def mem_get_info(of=0) -> tuple[int, int]:
    check()
    index = getattr(of, "index", of) or 0
    contexts.add(index)
    free, total = memory[index]
    return free, total


def empty_cache() -> None:
    for i, (allocated, reserved) in held.items():
        emptied.append(reserved - allocated)
        memory[i][0] += reserved - allocated
        held[i][1] = allocated


class CUDAGraph:
    """What was captured."""

    def __init__(self) -> None:
        self.resets = 0

    def reset(self) -> None:
        self.resets += 1


cuda = types.SimpleNamespace(
    Event=Event, Stream=Stream, stream=stream, device=device, current_stream=current_stream, set_stream=set_stream, synchronize=synchronize, current_device=current_device,
    is_initialized=lambda: True, is_available=lambda: True, device_count=lambda: 2, empty_cache=empty_cache, CUDAGraph=CUDAGraph, is_current_stream_capturing=lambda: capture,
    cudart=lambda: runtime, mem_get_info=mem_get_info, holds_context=lambda i: i in contexts,
    memory_allocated=lambda i=0: held[i][0], memory_reserved=lambda i=0: held[i][1], default_generators=[Generator(), Generator()],
    set_rng_state=lambda state, i: cuda.default_generators[i].set_state(state), get_rng_state=lambda i=0: cuda.default_generators[i].get_state(),
)  # fmt: skip


def install() -> types.SimpleNamespace:
    """From now on this is the device that replicad knows."""
    from replicad._torch import device as of_replicad

    of_replicad.cuda = cuda
    return cuda


# -- tensors -----------------------------------------------------------------------------------------------------------------

#: What asks a tensor about itself, and touches no memory of the device.
_METADATA = {
    "data_ptr", "stride", "storage_offset", "is_contiguous", "numel", "element_size", "dim", "size", "detach", "detach_", "view", "as_strided", "untyped_storage", "requires_grad_",
    "is_complex", "is_floating_point", "is_inference", "__get__", "__set__", "as_subclass", "nelement", "is_pinned", "retain_grad", "is_conj", "is_neg", "__hash__",
    "register_hook",
    "resolve_conj", "resolve_neg", "is_same_size", "__getitem__", "expand", "view_as", "reshape", "__len__", "_is_view", "is_set_to", "dense_dim",
}  # fmt: skip


class Fake(torch.Tensor):
    """Memory of the device: host memory that only kernels touch."""

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", 0)

    @property
    def is_cuda(self) -> bool:
        return True

    @property
    def is_cpu(self) -> bool:
        return False

    @classmethod
    def __torch_function__(cls, f, types, args=(), kwargs=None):
        kwargs, name = dict(kwargs or {}), getattr(f, "__name__", "")
        if name == "copy_":
            return _copy(*args, **kwargs)
        if name in _METADATA:
            return super().__torch_function__(f, types, args, kwargs)
        if name.endswith("_") and not name.endswith("__") and isinstance(args[0], Fake):
            raw_args = [raw(a) if isinstance(a, Fake) else a for a in args]
            launch(lambda: f(*raw_args, **kwargs), args[0])
            return args[0]
        current_stream().synchronize()
        if name in ("cpu", "item", "tolist", "numpy", "to") and (name != "to" or any(str(a).startswith("cpu") for a in (*args[1:], kwargs.get("device")))):
            return f(*(raw(a).clone() if isinstance(a, Fake) else a for a in args), **kwargs)
        return super().__torch_function__(f, types, args, kwargs)


def _copy(to: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    a, b, now = raw(to), raw(source), current_stream()

    def kernel() -> None:
        time.sleep(rng.random() * COPY)
        a.copy_(b)

    torch.autograd.graph.increment_version(to)
    now.launch(kernel)
    if not non_blocking:
        now.synchronize()
    return to


def fake(t: torch.Tensor) -> Fake:
    """A tensor of the device."""
    return t.detach().as_subclass(Fake)


def parameter(t: torch.Tensor) -> Fake:
    """A parameter of the device, to be put into a module's ``_parameters``."""
    p = fake(t).requires_grad_(True)
    p._is_param = True
    return p


def raw(t: torch.Tensor) -> torch.Tensor:
    """The memory itself. To write there is no change that torch counts."""
    return (t.detach().as_subclass(torch.Tensor) if isinstance(t, Fake) else t.detach()).data


def launch(kernel, *writes: torch.Tensor, on: Stream | None = None) -> None:
    """Has something done on the current stream, or on another, which changes these tensors."""
    for t in writes:
        torch.autograd.graph.increment_version(t)

    def later() -> None:
        time.sleep(rng.random() * KERNEL)
        with torch.no_grad():
            kernel()

    (on or current_stream()).launch(later)


# -- collectives -------------------------------------------------------------------------------------------------------------


class NCCL(c10d.ProcessGroup):
    """A communicator of one epoch. It is known to torch.distributed as a process group of the device."""

    def __init__(self, folder: pathlib.Path, epoch: int, rank: int, world: int) -> None:
        super().__init__(rank, world)
        self._folder, self._epoch, self._rank, self._world = folder, epoch, rank, world
        self._aborted, self._error = threading.Event(), 0
        c10d._world.pg_names[self], c10d._world.pg_map[self] = f"fake-nccl-{epoch}", ("nccl", None)

    _device_types = (torch.device("cuda"),)

    def _get_backend(self, device: torch.device) -> NCCL:
        return self

    def name(self) -> str:
        return "nccl"

    def get_error(self) -> int:
        return self._error

    def abort(self) -> None:
        with contextlib.suppress(RuntimeError):  # it has no backend of torch's
            super().abort()  # which is counted
        self._aborted.set()

    def watchdog(self) -> None:
        """As torch's own, which notes an error before it aborts."""
        self._error = 2
        self._aborted.set()

    def all_reduce(self, step: int, mine, ends, sent: bool = True) -> None:
        """Queues a collective: ``mine()`` is computed first, ``ends(None)`` runs when all peers have met, ``ends(777.0)`` if it was aborted. Without ``sent`` what this rank
        sends is lost on its way, and its own part ends."""
        name = f"c-{self._epoch}-{step}"

        def kernel() -> None:
            mine()
            if sent:
                (self._folder / f"{name}-{self._rank}").touch()
            garbage = None
            while sent and garbage is None and not all((self._folder / f"{name}-{r}").exists() for r in range(self._world)):
                garbage = 777.0 if self._aborted.wait(0.001) or error else None
            ends(garbage)

        launch(kernel)
