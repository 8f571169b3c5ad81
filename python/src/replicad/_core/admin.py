"""What the daemon of this node knows of the cluster: the JSON of `replicad status --json`, asked on its admin socket."""

from __future__ import annotations

import http.client
import json
import os
import socket
import struct
from pathlib import Path
from typing import Any

from ..errors import Gone, Invalid, Refused, System, Timeout, Version

__all__ = ["save", "status"]

_MOST = 64 << 20  # bytes of an answer


class _Connection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("replicad", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
        answered_by(self.sock, self._path)


def answered_by(sock: socket.socket, path: str) -> None:
    """Believes root, this process's user and the one in REPLICAD_DAEMON_UID, as the C library does: where others may write a socket's folder, its path says nothing.
    :class:`Invalid` names anybody else."""
    _, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if uid not in (0, os.geteuid()) and os.environ.get("REPLICAD_DAEMON_UID") != str(uid):
        raise Invalid(
            f"{path} is answered by a process of user {uid}, and this one, of user {os.geteuid()}, believes its own user and root: if that is the daemon, name it as daemon_user "
            f"in its configuration, or set REPLICAD_DAEMON_UID={uid}"
        )


def path() -> str:
    """The admin socket: what `replicad run` names in REPLICAD_ADMIN_SOCKET, else beside the socket for ranks. :class:`Invalid` where neither is named."""
    if named := os.environ.get("REPLICAD_ADMIN_SOCKET"):
        return named
    if ranks := os.environ.get("REPLICAD_SOCKET"):
        return str(Path(ranks).with_name("admin.sock"))
    raise Invalid("no daemon is named: start this program with `replicad run`, or set REPLICAD_ADMIN_SOCKET to the daemon's admin socket")


#: The number of the order to write what a job has committed now (control.SaveJob).
SAVE = 10


def status(timeout: float = 5.0) -> dict[str, Any]:
    """Asks once; ``timeout`` in seconds. Errors are those of :func:`_ask`."""
    where, body = _ask("GET", "/status", None, timeout)
    try:
        said = json.loads(body)
    except ValueError as err:
        raise Version(f"the daemon on {where} answered {body[:100]!r}, which is no JSON: are daemon and wheel of one release?") from err
    if not isinstance(said, dict):
        raise Version(f"the daemon on {where} answered a {type(said).__name__}, not an object: are daemon and wheel of one release?")
    return said


def save(job: str, keep: str, timeout: float) -> str:
    """Has what a job has committed written now, and kept for good where ``keep`` says why; what the leader answers. Errors are those of :func:`_ask`."""
    _, body = _ask("POST", "/order", json.dumps({"Verb": SAVE, "Job": job, "Why": keep}).encode(), timeout)
    return body.decode(errors="replace").strip()


def _ask(method: str, what: str, given: bytes | None, timeout: float) -> tuple[str, bytes]:
    """Asks once, and returns whom and the answer. The socket is the daemon's user's alone: another user's process is :class:`Refused`.
    :class:`Gone` where no daemon answers, :class:`Timeout` where it takes longer, :class:`Version` for an answer that is none of this release, :class:`System` for
    what else goes wrong on the way."""
    where = path()
    connection = _Connection(where, timeout)
    try:
        connection.request(method, what, given)
        answer = connection.getresponse()
        body = answer.read(_MOST + 1)
    except PermissionError as err:
        raise Refused(f"the admin socket {where} is open only to the daemon's user: run the job as that user, or run `replicad status` as that user") from err
    except (FileNotFoundError, ConnectionError) as err:
        raise Gone(f"no daemon answers on {where} ({err}): start it, or set REPLICAD_ADMIN_SOCKET to its admin_socket") from err
    except TimeoutError as err:
        raise Timeout(f"the daemon on {where} did not answer within {timeout} s: give a longer timeout, or look at its log") from err
    except (OSError, http.client.HTTPException) as err:
        raise System(f"the daemon on {where}: {err}") from err
    finally:
        connection.close()
    if answer.status != 200 or len(body) > _MOST:
        raise Refused(f"the daemon on {where}: {answer.status} {body[:400].decode(errors='replace').strip()}")
    return where, body
