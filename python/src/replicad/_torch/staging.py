"""Host memory between device tensors and the arena.

The C client copies from host memory. A tensor that lies on a device gets a host tensor that the device copies to by itself, its stage, which is what is
registered. At the end of a step the worker copies device to stage on a stream of its own, behind the next forward and backward,
and then stage to arena; the next optimizer step waits until both are done. What the next forward may change (buffers) is copied to its stage on the program's own
stream before that; the stage then changes with the step alone, and is registered so. After a load the stages are copied back.

A host tensor whose copies have another type (:mod:`replicad._torch.conversion`) has a stage of that type: copying to and from it converts.

With ``always`` host tensors are staged too: then the registered memory does not depend on which tensors are live, and a model that
is made anew in the same process can take the place of the old one (:meth:`replicad.Session.rebind`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from . import device
from .state import Leaf

__all__ = ["Staging"]


def _never() -> str:
    return ""


class Staging:
    """The stages of a session, in the order of its leaves."""

    def __init__(self, leaves: Iterable[Leaf], always: bool, kept: Mapping[str, torch.dtype]) -> None:
        """``kept`` has the types of stages, by name, that are not the tensors' own."""
        self.leaves: list[Leaf] = []  # what to register: stages, and host tensors that need none
        self.fixed: list[Leaf] = []  # those that need none: they must stay where they are
        self._live: list[Leaf] = []
        self._stage: list[torch.Tensor] = []
        self._streams: dict[torch.device, Any] = {}
        self.step = -1  # the step whose window tensors the stages hold
        leaves = list(leaves)
        staged = [x for x in leaves if device.lies_on(x.tensor) or always or x.name in kept]
        made = _stages(staged, kept)
        for leaf in leaves:
            if (stage := made.get(leaf.name)) is None:
                self.leaves.append(leaf)
                self.fixed.append(leaf)
                continue
            self._live.append(leaf)
            self._stage.append(stage)
            changes = "window" if device.lies_on(leaf.tensor) and leaf.changes == "any" else leaf.changes
            self.leaves.append(replace(leaf, tensor=stage, changes=changes))
        self.devices = device.of(x.tensor for x in self._live)

    def __bool__(self) -> bool:
        return bool(self._live)

    @property
    def nbytes(self) -> int:
        """What the stages take of host memory."""
        return sum({id(s): s.numel() * s.element_size() for s in self._stage}.values())

    @property
    def live(self) -> Sequence[Leaf]:
        """The tensors that have stages."""
        return self._live

    @property
    def stages(self) -> Sequence[torch.Tensor]:
        """Their stages, which are what is registered, in the same order."""
        return self._stage

    @property
    def converted(self) -> dict[tuple[torch.dtype, torch.dtype], list[str]]:
        """The names of tensors whose copies have another type, by that type and their own."""
        out: dict[tuple[torch.dtype, torch.dtype], list[str]] = {}
        for leaf, stage in zip(self._live, self._stage, strict=True):
            if stage.dtype != leaf.local.dtype:
                out.setdefault((stage.dtype, leaf.local.dtype), []).append(leaf.name)
        return out

    @property
    def overflown(self) -> dict[str, torch.dtype]:
        """The tensors that are infinite, or no number, where their copies have a number, one too large for the tensors' own type: that type, by name."""
        return {
            leaf.name: leaf.local.dtype
            for leaf, stage in zip(self._live, self._stage, strict=True)
            if stage.dtype != leaf.local.dtype and not bool((leaf.local.to("cpu", stage.dtype).isfinite() | ~stage.isfinite()).all())
        }

    @property
    def on_device(self) -> bool:
        """Whether the end of a step on the host is not its end on the device."""
        return bool(self.devices)

    @property
    def whole(self) -> bool:
        """Whether every tensor has a stage, so that others may take the place of the live ones."""
        return bool(self._live) and not self.fixed

    @property
    def at_once(self) -> bool:
        """Whether there is private state in host memory that the next forward may change: its copy can't wait for a device."""
        return any(x.private and x.changes == "any" for x in self.fixed)

    def bind(self, leaves: Iterable[Leaf]) -> None:
        """Others, of the same names, shapes and types, take the place of the tensors that are staged."""
        by_name = {x.name: x for x in leaves}
        self._live = [by_name[old.name] for old in self._live]

    def _copy(self, changes: tuple[str, ...], to_stage: bool, where: Callable[[Leaf], bool] = lambda leaf: True) -> None:
        with torch.no_grad():
            for leaf, stage in zip(self._live, self._stage, strict=True):
                if leaf.changes in changes and where(leaf):
                    if to_stage:
                        stage.copy_(leaf.local, non_blocking=device.lies_on(leaf.tensor))
                    else:
                        leaf.local.copy_(stage, non_blocking=device.lies_on(leaf.tensor))

    def all(self, given_up: Callable[[], str] = _never) -> None:
        """Copies everything to the stages, now: before the initial state is sealed. ``given_up`` is as in :meth:`replicad._torch.device.Mark.wait`."""
        self._copy(("window", "any", "never"), True)
        self.given().wait(given_up)

    def small(self) -> None:
        """Copies what may change at any time to the stages: now what lies in host memory, and on a device before what is launched next."""
        self._copy(("any",), True)

    def window(self, step: int, given_up: Callable[[], str]) -> None:
        """Copies the window tensors of a step that has passed to the stages, on streams of its own; returns when they are there."""
        self._copy(("window",), True, lambda leaf: not device.lies_on(leaf.tensor))
        for d in self.devices:
            stream = self._streams.get(d)
            if stream is None:
                stream = self._streams[d] = device.side(d)
            with device.on(stream):
                self._copy(("window",), True, lambda leaf, d=d: leaf.tensor.device == d)  # type: ignore[misc]
        device.Mark(self._streams[d] for d in self.devices).wait(given_up)
        self.step = step

    def given(self) -> device.Mark:
        """All that the devices were given so far, by this thread and by the worker."""
        return device.Mark([*(device.cuda.current_stream(d) for d in self.devices), *self._streams.values()])

    def back(self, step: int) -> None:
        """Copies everything that was loaded from the stages to the live tensors."""
        self._copy(("window", "any", "never"), False)
        self.given().wait(_never)  # nothing of a peer's is before it: groups of an epoch that is closed were aborted
        self.step = step


def _stages(staged: Iterable[Leaf], kept: Mapping[str, torch.dtype]) -> dict[str, torch.Tensor]:
    """A stage for each of these, by name. Weights that two models share have one, as they are registered once without."""
    first: dict[tuple[Any, ...], str] = {}
    of: dict[str, str] = {}
    wanted: dict[str, tuple[torch.Tensor, torch.dtype]] = {}
    for leaf in staged:
        t, dtype = leaf.local, kept.get(leaf.name, leaf.tensor.dtype)
        of[leaf.name] = name = first.setdefault((t.device, t.data_ptr() or leaf.name, t.dtype, t.shape, t.stride(), dtype, leaf.changes, leaf.private), leaf.name)
        wanted.setdefault(name, (t, dtype))
    out = {}
    of_devices = {name: w for name, w in wanted.items() if device.lies_on(w[0])}
    for (name, (t, dtype)), raw in zip(of_devices.items(), device.pinned([t.numel() * dtype.itemsize for t, dtype in of_devices.values()]), strict=True):
        out[name] = raw.view(dtype).as_strided(t.shape, t.stride())
    for name, (t, dtype) in wanted.items():
        if name not in out:
            out[name] = torch.empty_strided(t.shape, t.stride(), dtype=dtype, device="cpu")
    return {name: out[first] for name, first in of.items()}
