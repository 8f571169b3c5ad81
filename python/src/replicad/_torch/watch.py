"""Noticing state that changes when its class says that it does not: such a change is not in the copy that a restart loads."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from .._core import capsule, rngcodec
from ..errors import Mismatch
from .beginning import Began
from .objects import Objects
from .rates import Rates
from .state import Capsule, Leaf
from .tensors import some
from .trained import Trained
from .trees import differences

__all__ = ["Watch", "digest"]

log = logging.getLogger("replicad")

#: So many steps without a new sample are a source of samples that does not count them.
STILL = 10
#: What may differ in a forward and be back when the step begins (a forward with adapters switched off); looked at then.
ELSEWHERE = "trained."
#: So many frozen tensors are looked at in a step, and so many bytes in the middle of each.
TURN, SAMPLE = 256, 64
#: So many names are in a copy's mark.
MOST = 32
#: After a step so many forwards of an evaluation look: the second one sees what the first one drew.
LOOKS = 2
#: How often torch has changed a tensor in place.
_VERSION: Callable[[torch.Tensor], int] = operator.attrgetter("_version")


class Counted:
    """Tensors by name, and how often torch has changed each in place: neither bytes nor a line of Python for a tensor. A change by way of ``.data`` is not counted, and neither
    are tensors of inference mode. What is made of other tensors is counted as a whole."""

    def __init__(self, named: Iterable[tuple[str, torch.Tensor]]) -> None:
        named = [(n, t) for n, t in named if not t.is_inference()]
        self._names, self._tensors = [n for n, _ in named], [t for _, t in named]

    def now(self) -> list[int]:
        """The counts."""
        with torch._C.DisableTorchFunctionSubclass():
            return list(map(_VERSION, self._tensors))

    def changed(self, since: list[int]) -> list[str]:
        """The names of those that were changed since these were the counts."""
        now = self.now()
        return [] if now == since else [n for n, was, is_ in zip(self._names, since, now, strict=True) if was != is_]


@dataclass(frozen=True)
class Exit:
    """A step that is over."""

    step: int
    known: bool  #: the loop has said so: what changes now is the next iteration's
    generators: bytes | None  #: that its copy has
    objects: bytes  #: what the user's own objects had, packed
    whole: bool = False  #: it is committed, so that nothing that changes now is in its copy
    early: bool = False  #: by a commit, with the rest of its iteration still to come

    def begun(self) -> Exit:
        """The next iteration has begun."""
        return replace(self, known=True, early=False)

    def drawn(self, generators: bytes | None) -> Exit:
        """The generators were looked at again."""
        return replace(self, generators=generators)


class Sampled:
    """Some bytes of registered tensors in host memory, for changes that torch does not count (``t.data.mul_()``). At each look it is the turn of so many tensors (:data:`TURN`)."""

    def __init__(self, leaves: Iterable[Leaf]) -> None:
        self._of = [(x.name, x.tensor, *_middle(x.tensor)) for x in leaves if x.tensor.device.type == "cpu" and x.tensor.numel()]
        self.reset()

    def reset(self) -> None:
        """They may have other values now."""
        self._was: list[bytes] = []
        self._turn = 0

    def changed(self) -> list[str]:
        """The names of those whose turn it is and that are not what they were when this was called first."""
        if not self._was:
            self._was = [ctypes.string_at(t.data_ptr() + at, n) for _, t, at, n in self._of]
            return []
        turn = slice(self._turn, self._turn + TURN)
        self._turn = turn.stop if turn.stop < len(self._of) else 0
        return [name for (name, t, at, n), was in zip(self._of[turn], self._was[turn], strict=True) if ctypes.string_at(t.data_ptr() + at, n) != was]


def _middle(t: torch.Tensor) -> tuple[int, int]:
    """Where some bytes in a tensor's middle begin, and how many they are."""
    nbytes = t.numel() * t.element_size()
    n = min(nbytes, SAMPLE)
    return (nbytes - n) // 2, n


class Watch:
    """Looks at small state from the end of a step to the next forward, at whether tensors were changed in place and, in debug mode, at every tensor's bytes.

    What changed is named once, in a warning, and kept in ``seen``; what is in no copy is in ``lacking`` too, and an error with ``strict``.
    """

    def __init__(self, debug: bool, strict: bool) -> None:
        self._debug, self._strict = debug, strict
        self.began, self.rates = Began(), Rates()
        self.seen: dict[str, str] = {}
        self.lacking: dict[str, None] = {}  #: what changed and is in no copy, by name, at most :data:`MOST` of them
        self._samples: dict[str, tuple[bytes, int]] = {}  # by source: its first state, and how many steps have begun with it

    def keep(self, shared: Capsule, objects: Objects, trained: Trained) -> None:
        """What is kept from now on. All tensors but buffers are hashed in debug mode."""
        self._shared, self._objects, self._generators = shared, objects.steady, objects.generators
        frozen, window = ([x for x in trained.tensors(of) if not objects.derived.has(x[0])] for of in (False, True))
        self._frozen, self._trained = Counted(frozen), Counted([*window, *(trained.moments() if self._debug else ())])
        self._sampled = Sampled(x for x in objects.leaves if x.changes == "never")
        self._renormalised = trained.renormalised
        self._leaves = [x for x in objects.leaves if x.changes != "any"] if self._debug else []
        self.rates.keep(objects)
        self.reset()

    def texts(self) -> dict[str, str]:
        """What goes with each rank's own copy."""
        return {"began": self.began.text, "rates": self.rates.text}

    def reset(self) -> None:
        """State was loaded, or is about to be: what was seen before says nothing about it."""
        self._at_exit: Exit | None = None
        self._looks = 0  # since then, by forwards that were none of training
        self._at_resume: bytes | None = None
        self._digests: dict[str, bytes] = {}
        self._kept: list[int] | None = None  # how often frozen tensors had been changed when the last step began
        self._left: list[int] | None = None  # and trained ones when it was over
        self._samples = {}
        self._sampled.reset()

    def resumed(self) -> None:
        """The loaded state is in place."""
        self._at_resume = self._generators() if self._debug else None

    def entering(self, step: int) -> None:
        """The next step begins: window and frozen tensors must be what they were."""
        self.look(f"the beginning of step {step}", step - 1)
        self._at_exit = None
        self._kept = self._frozen.now()
        for x in self._leaves:
            if self._digests and digest(x.local) != self._digests[x.name]:
                when = "never" if x.changes == "never" else "only inside `with session.step()`"
                self.say(x.name, f"{x.name} changed between steps {step - 1} and {step}, though it is taken to change {when}: the copy of step {step - 1} may be torn")

    def look(self, until: str, step: int) -> None:
        """Names the tensors that were changed in place since ``step`` ended."""
        if self._kept is not None:
            for name in self._frozen.changed(self._kept):
                self.lacks(
                    name,
                    f"{name} asks for no gradient and is kept once, but was changed before {until}: a restart would bring the first values back; "
                    "let it ask for a gradient while the session is made (an averaged model, say), and it is copied at every step",
                )
        if self._left is None or not (changed := [n for n in self._trained.changed(self._left) if n not in self.seen]):
            return
        torn = f"the copy of step {step} is made meanwhile, and has the change whole, in part or not at all; ranks that should be equal can be found to differ"
        if self._at_exit is not None and self._at_exit.whole:
            torn = f"session.commit() has copied step {step} before, so that a restart from it has none of the change unless it was put back"
        if own := [n for n in changed if n in self._renormalised]:
            self._say_all(
                own,
                f"{some(own)}: forwards renormalise it (max_norm of an nn.Embedding): {torn}. Leave max_norm out, and do it inside `with session.step()`: "
                "`with torch.no_grad(): weight.renorm_(norm_type, 0, max_norm)`",
            )
        if others := [n for n in changed if n not in self._renormalised]:
            self._say_all(
                others,
                f"{some(others)} changed in place between the end of step {step} and {until}: {torn}. Do it inside `with session.step()`; evaluate with other weights by "
                "torch.func.functional_call, or in a copy of the model",
            )

    def moving(self) -> list[str]:
        """The frozen tensors that have changed in place since the last step began, or, by way of ``.data``, since they were looked at."""
        return [] if self._kept is None else list(dict.fromkeys([*self._frozen.changed(self._kept), *self._sampled.changed()]))

    def rewritten(self) -> None:
        """Tensors were written anew with what they had."""
        if self._kept is not None:
            self._kept = self._frozen.now()
        if self._left is not None:
            self._left = self._trained.now()

    def samples(self, states: dict[str, Any]) -> None:
        """A step begins; ``states`` are those of what says which samples come next. One that moves once is not looked at again."""
        for name, state in states.items():
            first, steps = self._samples.get(name, (b"", 0))
            if 0 <= steps <= STILL:
                now = capsule.pack(state, name)
                self._samples[name] = (first or now, steps + 1 if not first or first == now else -1)
            if steps == STILL and self._samples[name][1] > STILL:
                self.say(
                    name,
                    f"{name} has the state that it had {STILL} steps ago: a restart begins with the same samples again. What is iterated in worker processes is a copy that "
                    "nobody hears of: use replicad.data.Loader, or torchdata's StatefulDataLoader",
                )

    def exited(self, step: int, generators: bytes | None, known: bool) -> None:
        """A step is over, and its copy has these generators. ``known``: the loop has said that its next iteration begins, so that what changes from here on is done again by a
        process that resumes."""
        self._left = self._trained.now()
        self._digests = {x.name: digest(x.local) for x in self._leaves}
        objects = {} if known else self._objects()
        self._at_exit, self._looks = Exit(step, known, generators, capsule.pack(objects, "extra") if objects else b""), 0

    def late(self, step: int) -> None:
        """An iteration of a loop over steps ends; its step was over before, by a commit. What has changed since is in no copy of it."""
        at = self._at_exit
        if at is None or at.known:
            return
        remedy = f"the copy of step {step} was made before, by session.commit(), so that a restart from it would not have that: commit last in the iteration"
        for path in self._changed(at):
            self.lacks(path, f"{path} changed after step {step}: {remedy}")
        for name in _drawn(at.generators, self._generators()):
            self.lacks(name, f"{name}: random numbers were drawn after step {step}: {remedy}")
        self._at_exit = at.begun()

    def committed(self, step: int, early: bool) -> None:
        """The step was committed before anything else was done. ``early``: in a loop over steps, with the rest of the iteration still to come."""
        self.look("session.commit()", step)
        if (at := self._at_exit) is not None:
            self._at_exit = replace(at, whole=True, early=early or at.early)

    def followed(self) -> None:
        """What was due is done. A process that resumes does it again, so that it has what that drew and changed: in place, too, where the copy was whole before."""
        if (at := self._at_exit) is not None:
            if at.whole and self._left is not None:
                self._left = self._trained.now()
            objects = self._objects()
            self._at_exit = replace(at, generators=self._generators(), objects=capsule.pack(objects, "extra") if objects else b"")

    def forward(self, training: bool) -> None:
        """A forward begins. After one that is none of training (an evaluation's) what changes is as lost as before it, so that the next one looks again."""
        drawn, self._at_resume = _drawn(self._at_resume, self._generators()) if self._at_resume is not None else [], None
        for name in drawn:
            self.say(
                f"{name}, after resume",
                f"{name}: random numbers were drawn between resume and the first forward; a process that resumes draws them as well, from where its step began, and "
                "goes on with others than an undisturbed run. That is right where every step draws before its forward; what is drawn once a process (a DataLoader's seed: "
                "give it generator=torch.Generator()) belongs before the session, or into `with replicad.rng.preserved()`; a loop over session.steps() needs neither",
            )
        if (at := self._at_exit) is None:
            return
        if at.early and not training:
            self.say(
                "evaluation",
                f"an evaluation follows session.commit() in the iteration of step {at.step}: a fault in it goes back to behind that, and it is never done. Leave the commit out: "
                "the step is copied when its iteration ends, and what was interrupted is done again with it. Or name it inside of the block, session.follow('evaluate'), and call "
                "session.done('evaluate') behind it",
            )
            return
        if self._looks >= LOOKS and not training:
            return
        self.look("the next forward", at.step)
        self._looks += 1
        if training:
            self._at_exit = None
        if at.known:
            return
        for path in self._changed(at):
            self.lacks(
                path,
                f"{path} changed between the end of step {at.step} and the next forward: a restart from step {at.step} would not have the change; do it inside "
                "`with session.step()`, or loop over session.steps(), where it belongs to the step",
            )
        if training and not self._debug:
            return  # loops draw their batches here
        now = self._generators()
        for name in _drawn(at.generators, now):
            if training:
                self.say(
                    name,
                    f"{name}: random numbers were drawn between the end of step {at.step} and the next forward; unless a restart from step {at.step} draws "
                    "them again (as loading the next batch does), loop over session.steps(), or put what draws them into `with replicad.rng.preserved()`",
                )
            else:
                self.say(
                    f"{name}, in an evaluation",
                    f"{name}: random numbers were drawn between the end of step {at.step} and a forward that does not train; unless a restart from step {at.step} does that "
                    "again, loop over session.steps(), or put the evaluation into `with replicad.rng.preserved()`",
                )
        if not training:
            self._at_exit = at.drawn(now)

    def _changed(self, at: Exit) -> Iterator[str]:
        """The paths of small state that is not what it was when a step was over."""
        if (now := self._shared.changed()) is not None:
            yield from (p for p in differences(self._shared.value(), now, "") if not p.startswith(ELSEWHERE))
        if at.objects and (objects := capsule.pack(self._objects(), "extra")) != at.objects:
            yield from differences(capsule.unpack(at.objects), capsule.unpack(objects), "")

    def lacks(self, name: str, text: str) -> None:
        """Names what changed and is in no copy: copies are marked with it from now on. :class:`Mismatch` with ``strict``."""
        if self._strict:
            raise Mismatch(f"{text} (strict=True)")
        if len(self.lacking) < MOST:
            self.lacking = self.lacking | {name: None}
        self.say(name, text)

    def say(self, name: str, text: str) -> None:
        """Names what changed outside of its time, once."""
        if name not in self.seen:
            self._say_all([name], text)

    def _say_all(self, names: list[str], text: str) -> None:
        self.seen = self.seen | dict.fromkeys(names, text)  # another one: the worker says things, too, and who reads goes through it
        log.warning("replicad: %s", text)


def _drawn(before: bytes | None, now: bytes | None) -> list[str]:
    """The generators whose states differ; those that came or went are none."""
    if before == now or before is None or now is None:
        return []
    old, new = ({(r.place, r.name): r.payload for r in rngcodec.parse(b)} for b in (before, now))
    return [rngcodec.where(*k) for k in old if k in new and old[k] != new[k]]


def digest(t: torch.Tensor) -> bytes:
    """Of a tensor's bytes, wherever it lies."""
    flat = t.detach().cpu().contiguous().reshape(-1)
    return hashlib.blake2b(flat.view(torch.uint8).numpy().tobytes(), digest_size=16).digest() if flat.numel() else b""
