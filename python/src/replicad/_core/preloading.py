"""What a program's first life tells its launcher: which modules it has imported, so that restarts fork from a process that has them too.

It is told once, at the end of the first step: by then what a program imports late is there as well."""

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import json
import os
import site
import socket
import sys
import sysconfig
from collections.abc import Callable, Iterator, Set
from types import ModuleType
from typing import Any

__all__ = ["SOCKET", "folders", "frozen", "holders", "objects", "report"]

#: The launcher's socket for it: a name in the abstract namespace, with "@" for its first byte.
SOCKET = "REPLICAD_PRELOAD"
#: How long the training thread waits for the launcher at most, in seconds.
PATIENCE = 1.0
#: What the launcher takes at most, in bytes.
_MOST = 1 << 20


#: Whether this process has told it, or was forked from one whose launcher knows it.
told = False


def report() -> None:
    """Tells the launcher, if it asks for it. Whatever goes wrong: restarts import again, as they would have."""
    global told
    told = True
    address = os.environ.get(SOCKET, "")
    if not address.startswith("@"):
        return
    with contextlib.suppress(Exception):
        message = json.dumps(described()).encode()
        if len(message) <= _MOST:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
                s.settimeout(PATIENCE)
                s.connect("\0" + address[1:])
                sent = 0
                while sent < len(message):
                    sent += s.send(message[sent:], socket.MSG_NOSIGNAL)


#: Of a forked process: objects of imports that the garbage collector does not show, and that somebody looks for; and how many it does not show.
_notable: list[Any] = []
frozen = 0


def freeze() -> None:
    """In the process that restarts fork from: has the garbage collector leave alone what imports have made. A collection in a forked process would
    write to each object, and so copy the memory of all of them."""
    global frozen
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy.random")
    generators = tuple(getattr(m, n) for m, names in ((torch, ("Generator",)), (numpy, ("Generator", "RandomState"))) for n in names if hasattr(m, n))
    objects = gc.get_objects()
    sought: Callable[[Any], bool] = functools.cache(_sought)
    notable = (*(o for o in objects if sought(type(o))), *(o for o, _ in holders(objects, frozenset(generators))))
    _notable[:] = {id(o): o for o in notable}.values()
    del objects, notable
    gc.freeze()
    frozen = gc.get_freeze_count()


def holders(objects: list[Any], kinds: Set[type]) -> Iterator[tuple[Any, Any]]:
    """Who of them holds an object of one of these classes, and that object. Hundreds of thousands are looked at: a batch at a time, and each by itself in
    the few batches where there is one."""
    for at in range(0, len(objects), _BATCH):
        batch = objects[at : at + _BATCH]
        if not kinds.isdisjoint(map(type, gc.get_referents(*batch))):
            yield from ((o, x) for o in batch for x in gc.get_referents(o) if type(x) in kinds)


#: How many objects are looked at together.
_BATCH = 1 << 10


def _sought(of: Any) -> bool:
    return not _SOUGHT.isdisjoint(f"{c.__module__}.{c.__name__}" for c in of.__mro__)


_SOUGHT = frozenset(("torch.nn.modules.module.Module", "torch.optim.optimizer.Optimizer", "torch.utils.data.dataloader.DataLoader", "torch.amp.grad_scaler.GradScaler"))


def objects() -> list[Any]:
    """What the garbage collector knows, and of what imports have made before a fork what somebody may look for."""
    return gc.get_objects() + _notable


def described() -> dict[str, Any]:
    """How this process was started, and what it has imported."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    installed, python = folders(), os.path.join(os.path.dirname(os.__file__), "")
    main = getattr(getattr(sys.modules.get("__main__"), "__spec__", None), "name", None) or "__main__"
    program = main.partition(".")[0]
    modules, own = [], []
    for name, module in list(sys.modules.items()):
        file = _file(name, module)
        if file is None or name == "__main__":
            continue
        if file.startswith(os.path.join(package, "")) or (file.startswith(installed) and name.partition(".")[0] != program):
            modules.append(name)
        elif not file.startswith(python):
            own.append(name)
    return {
        "pid": os.getpid(),
        "argv": [a.encode(errors="surrogateescape").decode("latin-1") for a in sys.orig_argv],
        "isolated": bool(sys.flags.isolated or sys.flags.ignore_environment or sys.flags.no_site),
        "folder": os.path.join(package, "_preload"),
        "modules": modules,
        "own": own,
        "changed": _changed(),
    }


def folders() -> tuple[str, ...]:
    """Where packages are installed."""
    paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), site.getusersitepackages()}
    paths |= {p for p in sys.path if os.path.basename(p) in ("site-packages", "dist-packages")}
    return tuple(os.path.join(p, "") for p in paths)


def _file(name: str, module: ModuleType) -> str | None:
    """Where a module was loaded from by this name; None of what something else has put there."""
    spec = getattr(module, "__spec__", None)
    if spec is None or spec.name != name or not spec.has_location:
        return None
    return spec.origin if isinstance(spec.origin, str) else None


def _changed() -> dict[str, str]:
    """Variables that the process has set, changed or removed itself, with digests of their values."""
    with open("/proc/self/environ", "rb") as f:
        began = dict(entry.split(b"=", 1) for entry in f.read().split(b"\0") if b"=" in entry)
    now = dict(os.environb)
    names = {n for n in began.keys() | now.keys() if began.get(n) != now.get(n) and not n.startswith((b"REPLICAD_", b"TORCHELASTIC_"))}
    return {os.fsdecode(n).encode(errors="replace").decode(): hashlib.blake2b(now[n], digest_size=8).hexdigest() if n in now else "" for n in names}
