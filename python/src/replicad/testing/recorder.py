"""What a trainer did, line by line: a process of :func:`replicad.testing.check_trainer`."""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from . import trainee
from .trainee import digest, load, named, seed

if TYPE_CHECKING:
    import torch

__all__ = ["LATER", "METHODS", "Recorder", "Trainer", "made", "plain"]

#: What a trainer has to have.
METHODS = ("train", "save", "state")
#: What :meth:`Trainer.save` returns where the checkpoint is written later: :meth:`Recorder.saved` says when.
LATER = object()
#: So often a rank looks whether the others have saved.
POLL = 0.01


class Trainer(Protocol):
    """A way to train. ``session``, where it has that, is its :class:`replicad.Session`: it is off where plain checkpoints are looked at."""

    def train(self, record: Recorder, resume: Path | None) -> None:
        """Trains to the end: from the beginning, or from the checkpoint that was saved at ``resume``. It calls ``record.step(n, loss=...)`` after each step."""

    def save(self, path: Path) -> object:
        """Writes the trainer's own checkpoint to ``path``, a file or a folder. It is called inside of ``record.step``."""

    def state(self) -> Mapping[str, Any]:
        """What is to be equal after each step, by name: trees of tensors, numbers and texts."""


class Recorder:
    """Is told of each step by a trainer, and sees by itself with what a model is called: the samples and the generators."""

    def __init__(self, trainer: Trainer, write: Callable[[str, int, dict[str, str]], None], at: Callable[[str, int], None] = lambda place, step: None) -> None:
        self._trainer, self._write, self._at, self._pid = trainer, write, at, os.getpid()
        self._last, self._depth = 0, 0
        self._calls: list[dict[str, Any]] = []  # of the model, for the step that is being made
        self._restored = -1  # the step of which the next call of the model begins with the state
        self._save_at, self._path = -1, Path()
        self._saved: Callable[[Path], None] = lambda path: None

    def step(self, step: int, /, **values: Any) -> None:
        """A step is done; ``values`` are what the trainer says of it (``loss=loss.item()``)."""
        if self._last >= step:
            raise ValueError(f"record.step({step}) after record.step({self._last}): count the steps that were made since the run began, over a resume too")
        self._at("after", step)
        self._last = step
        self._write("step", step, _leaves(self._seen() | {k: _number(v) for k, v in values.items()} | dict(self._trainer.state())))
        if step == self._save_at and self._trainer.save(self._path) is not LATER:
            self.saved(self._path)

    def event(self, name: str, step: int, /, **values: Any) -> None:
        """Something else that the trainer did: an evaluation, a log. Times are no values."""
        self._write(name, step, _leaves({k: _number(v) for k, v in values.items()}))

    def saved(self, path: Path) -> None:
        """The checkpoint that :meth:`Trainer.save` was asked for is written, in this file or folder."""
        self._saved(path)  # returns once all ranks have saved: another one may be who writes
        if not path.exists():
            raise ValueError(f"save({str(path)!r}) has written nothing there: write the checkpoint to the path that it is given")
        self._restored = self._save_at

    def saves(self, step: int, path: Path, saved: Callable[[Path], None]) -> None:
        """Has the trainer save after that step."""
        self._save_at, self._path, self._saved = step, path, saved

    def resumes(self, step: int) -> None:
        """The trainer goes on from a checkpoint of that step."""
        self._restored = step

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Sees every call of a model and every update of an optimizer meanwhile. Nothing of the training changes by it."""
        import torch
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        plain = torch.nn.Module.__call__

        def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:  # torch's own hooks for all modules see no keywords
            if self._depth == 0 and os.getpid() == self._pid and self._trains(module):
                self._called(args, kwargs)
            self._depth += 1
            try:
                return plain(module, *args, **kwargs)
            finally:
                self._depth -= 1

        torch.nn.Module.__call__ = call  # type: ignore[method-assign]
        updates = register_optimizer_step_pre_hook(lambda *_: self._at("step", self._last + 1))
        try:
            yield
        finally:
            torch.nn.Module.__call__ = plain  # type: ignore[method-assign]
            updates.remove()

    @staticmethod
    def _trains(module: torch.nn.Module) -> bool:
        import torch

        return module.training and torch.is_grad_enabled() and next(module.parameters(), None) is not None

    def _called(self, args: Any, kwargs: Any) -> None:
        if self._restored >= 0:
            self._write("restored", self._restored, _leaves(self._trainer.state()))
            self._restored = -1
        self._at("forward", self._last + 1)
        self._calls.append({"samples": digest(plain([args, kwargs])), **dict(_generators())})

    def _seen(self) -> dict[str, Any]:
        """How often a model was called for this step, with what, and what the generators were then."""
        calls, self._calls = self._calls, []
        return {"forwards": len(calls)} | {part: [c[part] for c in calls] for part in (calls[0] if calls else ())}


def _number(value: Any) -> Any:
    return value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value


def _leaves(tree: Mapping[str, Any]) -> dict[str, str]:
    """Its leaves, as PART|PATH."""
    return {f"{part}|{path.lstrip('.')}": text for part, value in tree.items() for path, text in named(plain(value), "")}


def plain(value: Any) -> Any:
    """The same without objects whose text has their address in it."""
    if isinstance(value, Mapping):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    known = value is None or isinstance(value, (bool, int, float, str, bytes, bytearray)) or hasattr(value, "detach") or hasattr(value, "tobytes")
    return value if known else type(value).__name__


def _generators() -> Iterator[tuple[str, Any]]:
    import torch

    yield "generator python", digest(repr(random.getstate()))
    if np := sys.modules.get("numpy"):
        yield "generator numpy", digest(repr(np.random.get_state()))
    yield "generator cpu", digest(torch.get_rng_state())
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        yield from ((f"generator cuda:{i}", digest(torch.cuda.get_rng_state(i))) for i in range(torch.cuda.device_count()))


# -- processes ------------------------------------------------------------------------------------------------------------------


def main() -> None:
    """Trains plain, without any session: FOLDER MODULE FILE FUNCTION NUMBER SAVE RESUME [ARGUMENT...]. The number is that of the run in the check, after step SAVE the trainer
    saves, from RESUME it goes on; what it did lies in FOLDER/NUMBER."""
    folder, module, file, function, number, save, resume, *arguments = sys.argv[1:]
    sys.argv, trainee.running = [file, *arguments], True
    from .. import alone

    alone.launched = lambda: False  # torchrun's variables are there in a world of several ranks
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    lines = Path(folder, number)
    lines.mkdir(exist_ok=True)
    seed(1 if resume else 0)  # generators that nobody seeds differ in a new process
    trainer = made(load(module, file), function, Path(folder, "work"))
    with open(lines / f"rank{rank}", "w", buffering=1) as out:

        def write(*line: Any) -> None:
            out.write(json.dumps(line) + "\n")

        write("begin", 0, {"kept": getattr(trainer, "session", None) is not None or hasattr(type(trainer), "session")})
        record = Recorder(trainer, write)
        if resume:
            record.resumes(int(save))
        elif int(save) >= 0:
            copies = _Copies(Path(folder), rank, world, lambda path: write("saved", int(save), {"path": str(path)}))
            record.saves(int(save), Path(folder, "work", "checkpoint"), copies)
        with record.watching():
            trainer.train(record, Path(resume) if resume else None)
        write("end", 0, {})


class _Copies:
    """Copies what lies on the disk once all ranks have saved: what a run finds there that was killed then."""

    def __init__(self, folder: Path, rank: int, world: int, then: Callable[[Path], None]) -> None:
        self._folder, self._rank, self._world, self._then = folder, rank, world, then

    def __call__(self, path: Path) -> None:
        self._then(path)
        (self._folder / f"saved-{self._rank}").touch()
        whole = self._folder / "copied"
        if self._rank == 0:
            self._wait(lambda: all((self._folder / f"saved-{r}").exists() for r in range(self._world)))
            shutil.copytree(self._folder / "work", self._folder / "at", symlinks=True)
            whole.touch()
        self._wait(whole.exists)

    @staticmethod
    def _wait(until: Callable[[], bool]) -> None:
        while not until():
            time.sleep(POLL)


def made(module: Any, function: str, folder: Path) -> Trainer:
    """What the user's function makes. ``TypeError`` where that is no trainer."""
    folder.mkdir(parents=True, exist_ok=True)
    trainer: Trainer = getattr(module, function)(folder)
    if lacks := [name for name in METHODS if not callable(getattr(trainer, name, None))]:
        kind = f"{type(trainer).__module__}.{type(trainer).__qualname__}"
        raise TypeError(
            f"check_trainer: {function} returned {kind}, which has no {', '.join(lacks)}: want an object with train(record, resume), save(path) and state(), as "
            "replicad.testing.of_lightning(trainer, module, loader) and of_huggingface(trainer) make it"
        )
    return trainer
