"""Host memory between device tensors and the arena.

The C client copies from host memory. A tensor that lies on a device gets a pinned host tensor, its stage, which is what is
registered. At the end of a step the worker copies device to stage on a stream of its own, behind the next forward and backward,
and then stage to arena; the next optimizer step waits until both are done. What may change between steps is small and is copied
at once. After a load the stages are copied back.

A host tensor whose copies have another type (:mod:`replicad._torch.conversion`) has a stage of that type: copying to and from it converts.

With ``always`` host tensors are staged too: then the registered memory does not depend on which tensors are live, and a model that
is made anew in the same process can take the place of the old one (:meth:`replicad.Session.rebind`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from .state import Leaf

__all__ = ["Staging"]


class Staging:
    """The stages of a session, in the order of its leaves."""

    def __init__(self, leaves: Iterable[Leaf], always: bool, kept: Mapping[str, torch.dtype]) -> None:
        """``kept`` has the types of stages, by name, that are not the tensors' own."""
        self.leaves: list[Leaf] = []  # what to register: stages, and host tensors that need none
        self.fixed: list[Leaf] = []  # those that need none: they must stay where they are
        self._live: list[Leaf] = []
        self._stage: list[torch.Tensor] = []
        self._streams: dict[torch.device, Any] = {}
        self._events: list[Any] = []
        self.step = -1  # the step whose window tensors the stages hold
        made: dict[tuple[Any, ...], torch.Tensor] = {}  # weights that two models share have one stage, as they are registered once without
        for leaf in leaves:
            t = leaf.local
            if t.device.type == "cpu" and not always and leaf.name not in kept:
                self.leaves.append(leaf)
                self.fixed.append(leaf)
                continue
            pinned = t.device.type == "cuda"
            dtype = kept.get(leaf.name, t.dtype)
            same = (t.device, t.data_ptr() or leaf.name, t.dtype, t.shape, t.stride(), dtype, leaf.changes, leaf.private)
            stage = made.get(same)
            if stage is None:
                stage = made[same] = torch.empty_strided(t.shape, t.stride(), dtype=dtype, device="cpu", pin_memory=pinned)
            self._live.append(leaf)
            self._stage.append(stage)
            self.leaves.append(replace(leaf, tensor=stage))

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
        return any(x.local.device.type == "cuda" for x in self._live)

    @property
    def whole(self) -> bool:
        """Whether every tensor has a stage, so that others may take the place of the live ones."""
        return bool(self._live) and not self.fixed

    def bind(self, leaves: Iterable[Leaf]) -> None:
        """Others, of the same names, shapes and types, take the place of the tensors that are staged."""
        by_name = {x.name: x for x in leaves}
        self._live = [by_name[old.name] for old in self._live]

    def _copy(self, changes: tuple[str, ...], to_stage: bool) -> None:
        with torch.no_grad():
            for leaf, stage in zip(self._live, self._stage, strict=True):
                if leaf.changes in changes:
                    if to_stage:
                        stage.copy_(leaf.local, non_blocking=stage.is_pinned())
                    else:
                        leaf.local.copy_(stage, non_blocking=stage.is_pinned())

    def _wait(self) -> None:
        for device in {x.local.device for x in self._live if x.local.device.type == "cuda"}:
            torch.cuda.synchronize(device)

    def all(self) -> None:
        """Copies everything to the stages, now: before the initial state is sealed."""
        self._copy(("window", "any", "never"), True)
        self._wait()

    def small(self) -> None:
        """Copies what may change at any time to the stages, now."""
        if any(x.changes == "any" for x in self._live):
            self._copy(("any",), True)
            self._wait()

    def mark(self) -> None:
        """The step has ended on the host: what was launched so far is what :meth:`window` has to wait for."""
        self._events = []
        for device in {x.local.device for x in self._live if x.local.device.type == "cuda"}:
            event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(device))
            self._events.append((device, event))

    def window(self, step: int) -> None:
        """Copies the window tensors of a step to the stages, on the worker's thread and streams of its own; returns when they
        are there."""
        for device, event in self._events:
            stream = self._streams.get(device)
            if stream is None:
                stream = self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            stream.wait_event(event)
        if self._events:
            with torch.no_grad():
                for leaf, stage in zip(self._live, self._stage, strict=True):
                    if leaf.changes == "window":
                        stream = self._streams.get(leaf.local.device)
                        if stream is None:
                            stage.copy_(leaf.local)
                            continue
                        with torch.cuda.stream(stream):
                            stage.copy_(leaf.local, non_blocking=True)
            for device, _ in self._events:
                self._streams[device].synchronize()
        else:
            self._copy(("window",), True)
        self.step = step

    def back(self, step: int) -> None:
        """Copies everything that was loaded from the stages to the live tensors."""
        self._copy(("window", "any", "never"), False)
        self._wait()
        self.step = step
