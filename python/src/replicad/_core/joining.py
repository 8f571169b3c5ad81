"""A process that no launcher started, an actor of Ray for example, becomes a rank: it sees that the job is there, and takes its place in it. No ray here."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from ..errors import Error, Gone, Invalid, Refused, Timeout
from .generations import binary

__all__ = ["bundles", "create", "take"]

log = logging.getLogger("replicad")

#: How `replicad exec` ends (cmd/replicad/exit.go) where flags or the configuration are wrong, and where no daemon answers.
_ENDS: dict[int, type[Error]] = {2: Invalid, 3: Invalid, 4: Gone}
#: What launchers set.
_OF_A_JOB = frozenset(f"REPLICAD_{name}" for name in ("SOCKET", "JOB", "TOKEN", "RANK", "WORLD", "GROUP", "GROUPS", "HOST", "ADMIN_SOCKET", "PROGRAM", "SLOTS"))


def bundles() -> int | None:
    """How many bundles the placement group has that Ray put this process's actor or task into; None: this is no process of Ray's."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return None
    group = ray.util.get_current_placement_group()
    if group is None:
        raise Invalid("world: this actor is in no placement group, whose bundles would be the ranks: pass world=, or make the actor in a group (PlacementGroupSchedulingStrategy)")
    world = int(group.bundle_count)
    log.warning("replicad: a world of %d, as many as the actor's placement group has bundles: resume() waits for all. Where some are for other actors, pass world=", world)
    return world


def create(job: str | None, rank: int, world: int, token: str | None, socket: str | None, options: Mapping[str, Any], timeout: float) -> None:
    """Creates the job unless it runs already, as `replicad exec` does, and sets what that sets in ``os.environ``, for this process."""
    if job is None:
        raise Invalid(f"connect({next(iter(options))}=...) is for a process that makes a job, or finds one: name it, job=...")
    if not 0 <= rank < world:
        raise Invalid(f"connect: rank {rank} in a world of {world}: want 0 to {world - 1}")
    # A process that is made again by a rule, after its job was stopped, has not asked for a new beginning.
    named = {"job": job, "world": world, "socket": socket, "unless_ended": options.get("resume") is None, **options}
    env = dict(os.environ) if token is None else {**os.environ, "REPLICAD_TOKEN": token}
    try:
        done = subprocess.run([binary(), "exec", *_flags(named), "--", "env", "-0"], env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout)
    except subprocess.TimeoutExpired as err:
        why = _text(err.stderr) or "`replicad status` shows whether the daemon has a leader"
        raise Timeout(f"connect: job {job!r} was neither found nor made within {timeout:g} s: {why}") from None
    if done.returncode != 0:
        raise _ENDS.get(done.returncode, Refused)(f"connect: {_text(done.stderr)}")
    if done.stderr:
        log.warning("replicad: %s", _text(done.stderr))
    for name in _OF_A_JOB:  # another one's
        os.environ.pop(name, None)
    entries = (entry.partition("=") for entry in os.fsdecode(done.stdout).split("\0"))
    os.environ.update({name: value for name, _, value in entries if name in _OF_A_JOB})


#: Whether this process took a place by itself, so that no launcher stands beside it.
taken = False


def take(rank: int, world: int, group: int | None) -> None:
    """Says in ``os.environ`` which rank this process is, as `replicad run` does: :func:`replicad.place` asks there, and so do loaders. No group: the rank names it."""
    place = {"REPLICAD_RANK": rank, "REPLICAD_WORLD": world, "REPLICAD_GROUP": group}
    os.environ.update({name: str(number) for name, number in place.items() if number is not None})
    global taken
    taken = True


def _flags(options: Mapping[str, Any]) -> list[str]:
    """Flags of `replicad exec`. A name that Python has for itself ends with an underscore (``from_``)."""
    given = {name.rstrip("_").replace("_", "-"): value for name, value in options.items() if value is not None}
    return [f"--{name}={_value(value)}" for name, value in given.items()]


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _text(stderr: bytes | None) -> str:
    """What the program said, in a line."""
    lines = (stderr or b"").decode(errors="replace").splitlines()
    return "; ".join(line.removeprefix("replicad exec: ").removeprefix("replicad: ") for line in lines if line)
