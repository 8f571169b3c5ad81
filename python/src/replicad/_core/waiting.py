"""Which rank a process is, and processes that are started before anybody needs them: imports are done, and then they wait to be one."""

from __future__ import annotations

import json
import os

from ..errors import Invalid

__all__ = ["NAMES", "place", "wait_rank"]

#: Torchrun's variables that ``replicad run`` sets, or sends to a process that waits for a rank.
NAMES = frozenset((
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
    "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_USE_AGENT_STORE",
))  # fmt: skip

_MOST = 64 << 10  # bytes of an answer


def wait_rank() -> None:
    """Returns once this process is a rank: at once, unless ``replicad run --warm`` started it beforehand.

    Call it at the top of a program, after the imports that take long and before anything that depends on the rank: it sets
    REPLICAD_RANK and the like in ``os.environ``, and RANK, WORLD_SIZE, LOCAL_RANK and torchrun's others.
    In children and subprocesses it does nothing: of the processes below the launcher the topmost Python waits, and scripts may stand above it. An answer that is not what the
    launcher writes is :class:`Invalid`; a launcher that goes away ends the process (``SystemExit``).
    """
    number = os.environ.get("REPLICAD_WAIT_FD")
    if number is None or not _waits(number):
        return
    for name in ("REPLICAD_WAIT_FD", "REPLICAD_WAIT_PIPE", "REPLICAD_WAIT_PARENT"):
        os.environ.pop(name, None)
    line = b""
    with os.fdopen(int(number), "rb", buffering=0) as pipe:
        while not line.endswith(b"\n"):
            more = pipe.read(4096)
            if not more:
                raise SystemExit(0)  # nobody needs this process any more
            line += more
            if len(line) > _MOST:
                raise Invalid(f"wait_rank: an answer of more than {_MOST} bytes")
    try:
        place = json.loads(line)
    except ValueError as err:
        raise Invalid(f"wait_rank: {line[:100]!r} is no answer of a launcher: {err}") from None
    if not isinstance(place, dict) or "REPLICAD_RANK" not in place or not all((k.startswith("REPLICAD_") or k in NAMES) and isinstance(v, str) for k, v in place.items()):
        raise Invalid(f"wait_rank: {line[:100]!r} is no answer of a launcher: want an object of REPLICAD_* strings, and of torchrun's, with REPLICAD_RANK")
    os.environ.update(place)


def _waits(number: str) -> bool:
    """Whether this process is the one that is to wait on descriptor ``number``: it has the launcher's pipe there, which a program in between may have closed,
    and only scripts and the like stand between it and the launcher, no other Python: below one it is a child or a subprocess of a program that trains."""
    launcher, pid = os.environ.get("REPLICAD_WAIT_PARENT", ""), os.getppid()
    try:
        if os.readlink(f"/proc/self/fd/{number}") != os.environ.get("REPLICAD_WAIT_PIPE"):
            return False
        own = os.readlink("/proc/self/exe")
        while str(pid) != launcher:
            above = os.readlink(f"/proc/{pid}/exe")
            if above == own or os.path.basename(above).startswith("python"):
                return False
            with open(f"/proc/{pid}/stat", "rb") as stat:
                pid = int(stat.read().rpartition(b")")[2].split()[1])  # after the name, which may hold anything, and the state
    except OSError:
        return False  # the launcher is not above this process (any more)
    return True


def astray() -> str:
    """Why a process that ``replicad run --warm`` started to wait has no rank; "" where that is not so."""
    if "REPLICAD_WAIT_FD" not in os.environ:
        return ""
    return (
        "`replicad run --warm` started this process to wait for a rank, but another program stands between that does not let it: "
        "where that is a script, or `conda run`, let it `exec python ...`; a subprocess of a program is to ask once that has its rank"
    )


def place() -> tuple[int, int]:
    """Rank and world of this process as its launcher says: REPLICAD_RANK and REPLICAD_WORLD of ``replicad run``, else RANK and
    WORLD_SIZE of torchrun; (0, 1) where there is none of them. :class:`Invalid`
    for numbers that are none, or out of range, and in a process that is to wait for a rank (``--warm``) and can't."""
    wait_rank()
    for names in (("REPLICAD_RANK", "REPLICAD_WORLD"), ("RANK", "WORLD_SIZE")):
        texts = [os.environ.get(n) for n in names]
        if texts[0]:
            try:
                rank, world = (int(t or "") for t in texts)
            except ValueError:
                raise Invalid(f"place: {names[0]}={texts[0]!r} and {names[1]}={texts[1]!r} are not numbers: start this program with a launcher that sets both") from None
            if not 0 <= rank < world:
                raise Invalid(f"place: {names[0]}={rank} of {names[1]}={world}: want 0 to {world - 1}")
            return rank, world
    if why := astray():
        raise Invalid(f"place: REPLICAD_RANK is not set: {why}")
    return 0, 1
