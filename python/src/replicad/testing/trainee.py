"""A process of :func:`replicad.testing.check_resume`: it trains, and writes down what is to be compared."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import random
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from .._core import latest

if TYPE_CHECKING:
    from ..session import Session

#: A generator function: it trains up to the step that it is given. After each step it yields what it wants
#: compared (losses, samples), by name.
Train = Callable[[int], Iterator[Mapping[str, Any]]]
#: Whether this is a process of check_resume's, or of another check's.
running = False


def main() -> None:
    """One process of :func:`replicad.testing.check_resume`: OUT MODULE FILE FUNCTION LAST KILL HOW [ARGUMENT...]. HOW is what ends after step KILL:
    "process" this one, by SIGKILL; "launcher" the launcher, with it this one, and the job. With "through" what was resumed becomes durable, and nothing is trained."""
    global running
    running = True
    launcher = os.getppid()
    out, module, file, function, last, kill, how, *arguments = sys.argv[1:]
    sys.argv = [file, *arguments]
    sys.path[:] = os.environ["PYTHONPATH"].split(os.pathsep)  # nothing before it
    try:
        train = getattr(load(module, file), function)
        if how == "through":
            _through(train, int(last))
        else:
            _record(train, int(last), int(kill), how, Path(out))
    except BaseException:
        sys.stdout.flush()  # the launcher may end this process before it ends by itself
        traceback.print_exc()
        sys.stderr.flush()
        if os.getppid() == launcher:
            os.kill(launcher, signal.SIGTERM)  # it would start it again
        raise SystemExit(1) from None


def _record(train: Train, last: int, kill: int, how: str, path: Path) -> None:
    """Trains, and writes down what is to be compared after each step."""
    at = -1
    with open(path, "a", buffering=1) as out:
        killed = any("killed" in json.loads(line) for line in path.read_text().splitlines())
        seed(out.tell())  # the same in the first process of each run; another one where the state has to come from the resume
        for yielded in train(last):
            session = cast("Session | None", latest.session)
            if session is None:
                raise RuntimeError("no replicad.Session is open at the yield: yield inside of it")
            if at < 0:
                at = session.order.step
                out.write(json.dumps({"resumed": at, "source": session.order.source}) + "\n")
            if session.at != at + 1:
                seen = f"step {at + 1} had no yield" if session.at > at else f"a yield before the end of step {at + 1}"
                advice = "want one after each step, behind its `with session.step()`; what its micro-batches have goes into one: `yield {'losses': losses}`"
                raise RuntimeError(f"check_resume: {seen}: {advice}")
            at = session.at
            values = {n: v for key, value in yielded.items() for n, v in named(value, key)} | dict(_state(session))
            out.write(json.dumps({"step": at, "values": values}) + "\n")
            # The cadence may skip this step, and the job makes no other before it goes on: commit() has this one copied.
            session.commit()
            if at == kill and not killed:
                out.write(json.dumps({"killed": at}) + "\n")
                if how == "process":
                    os.kill(os.getpid(), signal.SIGKILL)
                os.kill(os.getppid(), signal.SIGTERM)
                while True:
                    signal.pause()  # until the launcher passes it on


def _through(train: Train, last: int) -> None:
    """Makes durable what is resumed."""
    from .. import session as sessions

    resume = sessions.Session.resume

    def resumed(self: Session, timeout: float | None = None, **more: Any) -> sessions.Resumed:
        at = resume(self, timeout, **more)
        self.save(wait=True)
        return at

    sessions.Session.resume = resumed  # type: ignore[method-assign]
    for _ in train(last):
        raise RuntimeError(f"a step was made behind step {last}, which was to be the last: pass `last` to session.steps()")


def named(value: Any, name: str) -> Iterator[tuple[str, str]]:
    """A tree of values as (name, text or digest), leaf by leaf."""
    if isinstance(value, Mapping):
        for k, v in value.items():
            yield from named(v, f"{name}.{k}")
    elif isinstance(value, (list, tuple)):
        for i, v in enumerate(value):
            yield from named(v, f"{name}[{i}]")
    elif hasattr(value, "detach"):
        import torch

        t = value.detach().cpu().contiguous()
        yield name, f"{t.dtype} {tuple(t.shape)} {hashlib.sha256(t.reshape(-1).view(torch.uint8).numpy().tobytes() if t.numel() else b'').hexdigest()[:32]}"
    elif isinstance(value, (bytes, bytearray)) or hasattr(value, "tobytes") or type(value).__name__ == "Opaque":
        yield name, hashlib.sha256(value.tobytes() if hasattr(value, "tobytes") else bytes(value)).hexdigest()[:32]
    else:
        yield name, repr(value)


def digest(value: Any) -> str:
    """Of a tree of values."""
    return hashlib.sha256("\n".join(f"{name} {text}" for name, text in named(value, "")).encode()).hexdigest()[:16]


def _state(session: Session) -> Iterator[tuple[str, str]]:
    """Everything that a session keeps, in the order in which a difference is looked for: what the step drew and saw first, for
    that is the cause where weights differ."""
    parts = session.parts
    own = parts.objects.own()
    yield from named(own["data"], "data")
    for leaf in parts.objects.leaves:
        yield from named(leaf.local, leaf.name)
    yield from named(parts.common(), "shared")
    yield from named(own["objects"], "own")
    yield from named(own["rng"], "rng")


def seed(n: int) -> None:
    """Generators that nobody seeds differ from process to process, which is no fault of a resume."""
    import torch

    random.seed(n)
    torch.manual_seed(n)
    if np := sys.modules.get("numpy"):
        np.random.seed(n)


def load(module: str, file: str) -> Any:
    """The module of this name, or the program in the file, which has none."""
    if module != "__main__":
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError as err:  # pytest gives names that nobody can import
            if not f"{module}.".startswith(f"{err.name}."):
                raise
    # As multiprocessing has it in a spawned child: what is pickled here by reference is found there, and what is pickled there here; and
    # `if __name__ == "__main__":` does not hold.
    loader = SourceFileLoader("__mp_main__", file)
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    program = module_from_spec(spec)
    program.__spec__ = None  # else it would look for a module of that name, not for the file
    sys.modules["__main__"] = sys.modules[loader.name] = program
    loader.exec_module(program)
    return program
