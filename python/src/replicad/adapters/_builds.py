"""What a killed build of an extension of torch's has left.

Torch builds an extension when a program first uses it. The process that builds holds an empty file, ``lock``, and removes it when it is done. Where it was killed the file stays,
and every later process waits for it without an end (``torch.utils.file_baton``). Its holder has the file open. So the kernel is asked for a write lease on it, which it gives only
where nobody else has the file open, in any container of this machine. How old the file is says nothing: a build may take minutes.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["clear"]

log = logging.getLogger("replicad")

#: Kinds of file systems whose files no other machine can have open.
LOCAL = frozenset(("bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"))
#: Torch closes the file right before it removes it. So many seconds later it has.
REMOVES = 1.0
#: How often it is looked whether a compiler has ended, and how long it may take, in seconds. A kernel for a device takes minutes.
LOOKS, WAITS = 0.2, 600.0
#: Programs that write into the folder of a build, by the first 15 bytes of their names. Others that work there, a shell or this one, are none of a build.
COMPILERS = re.compile(
    r"ninja|([\w-]+-)?(gcc|g\+\+|cc|c\+\+|clang(\+\+)?)(-[\d.]+)?|x86_64-linux-gn|aarch64-linux-g|cc1(plus)?|as|(ld|lld|gold|mold)[\w.]*|collect2"
    r"|nvcc|cicc|ptxas|fatbinary|nvlink|cudafe\+\+|hipcc|ccache|sccache"
)


def clear(root: Path | None = None) -> None:
    """Removes the locks that nobody holds any more, with a line for each that it removes or must leave."""
    for lock in sorted([*(root := root or _root()).glob("*/lock"), *root.glob("*/*/lock")]):
        try:
            _clear(lock)
        except FileNotFoundError:
            continue  # whoever held it has removed it
        except OSError as err:
            log.warning("replicad: %s: it can't be seen whether a process that builds holds it (%s): if none does, remove it: programs wait for it without an end", lock, err)


def _root() -> Path:
    """Where torch builds extensions."""
    from torch.utils import cpp_extension

    return Path(os.environ.get("TORCH_EXTENSIONS_DIR") or cpp_extension.get_default_build_root())


def _clear(lock: Path) -> None:
    if (kind := _kind(lock)) not in LOCAL:
        raise OSError(f"it lies on a file system of kind {kind or '?'}, which other machines may use")
    with _alone(lock.parent):
        file = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if not _leased(file):
                return  # a process builds
            time.sleep(REMOVES)
            if os.stat(lock).st_ino != os.fstat(file).st_ino:
                return
            if left := _within(lock.parent):
                log.warning("replicad: %s: waits for %s, which a killed build has left to compile there", lock.parent, " and ".join(map(str, left)))
                _wait(lock.parent)
            lock.unlink()
            log.warning("replicad: removed %s: the process that built there was killed, and programs would wait for it without an end", lock)
        finally:
            os.close(file)  # and the lease ends


def _wait(folder: Path) -> None:
    """For the compilers there."""
    until = time.monotonic() + WAITS
    while left := _within(folder):
        if time.monotonic() >= until:
            raise TimeoutError(f"a killed build has left {' and '.join(map(str, left))} to compile there, which has not ended in {WAITS:g} s")
        time.sleep(LOOKS)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Of the processes that clear, which begin at the same time, one after the other: each would take another one's open file for a builder's."""
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _leased(file: int) -> bool:
    """Has a write lease on a file, unless another process has it open. One that opens it meanwhile waits; the signal of that is ignored by default."""
    fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)
    try:
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except BlockingIOError:
        return False
    return True


def _within(folder: Path) -> list[int]:
    """The compilers, and ninja, that work in a folder, as far as this user sees."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and COMPILERS.fullmatch((entry / "comm").read_text().rstrip("\n")) and os.path.samefile(entry / "cwd", folder):
                found.append(int(entry.name))
    return found


def _kind(path: Path) -> str:
    """The kind of the file system that a path lies on."""
    real, best, kind = os.path.realpath(path), "", ""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, rest = (part.split() for part in line.split(" - ", 1))
        point = re.sub(r"\\(\d{3})", lambda m: chr(int(m[1], 8)), fields[4])  # a space is \040
        if len(point) >= len(best) and (real == point or real.startswith(point.rstrip("/") + "/")):
            best, kind = point, rest[0]
    return kind
