"""How ranks meet for an epoch before it is planned: those that need a process group before they can say what they register."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import secrets
import time

from ..errors import Again, Error, Fenced, Gone, Timeout
from .rank import Rank
from .rendezvous import Gathering

log = logging.getLogger("replicad")

__all__ = ["ARRIVALS", "LAST", "LOOK", "awaited", "meet", "scattered"]

#: Counts those who came to meet for an epoch. A number may be given twice: what a lost node had added is lost with it.
ARRIVALS = "meet/arrivals"
#: The token of who came last.
LAST = "meet/last"
#: How long a gathering is waited for before the tokens are read again, in seconds.
LOOK = 2.0
#: How many looks a process leaves the meeting to one that has come later, before it draws again.
YIELD = 5
#: What a daemon that is away, or has no leader, makes of a question: it is asked again.
_UNANSWERED = (Timeout, Gone, Again)


def meet(rank: Rank, timeout: float = 600.0) -> tuple[str, int]:
    """Waits until all ranks of the job are here for the epoch that is to come, before it has been planned: new processes that
    have not attached yet, and survivors of the epoch that was closed. Returns a name that this gathering alone has, and the
    epoch. :class:`Timeout` after ``timeout`` seconds.

    Each process draws a token, a number and a nonce, writes it under its rank, reads all of them, and comes to a barrier that is named
    after them all. A process that dies before the barrier is replaced by one that draws another token, which the others read when they
    look again. One that dies after it and before it has attached is nobody's fault to record: its successor has come last, which
    those who wait for its groups or for their orders notice (:func:`scattered`), so that all meet again.

    Of two processes of a rank (slow to start, it was started elsewhere too) the later one meets the others; were both to write their tokens in
    turn, some would meet the one and some the other. The earlier draws again after YIELD looks, as the later one may be dead. If the earlier
    one has met them all and attaches, the epoch is planned for a gathering that those have left who saw the later one come. The others would
    wait for them: they close that epoch.
    """
    end, epoch, drawn, me, later, yielded = time.monotonic() + timeout, 0, 0, b"", b"", 0
    mine = f"meet/{rank.number}"
    left, rank.met = rank.met, None
    while True:
        try:
            epoch = rank.scope(LOOK)
            if epoch != drawn or yielded == YIELD:
                me = _draw(rank, later)
                drawn, yielded = epoch, 0
            if rank.kv_check(mine, LOOK) and _order(there := rank.kv_get(mine, LOOK)) > _order(me):
                later, yielded = there, yielded + 1
                rank.kv_get(f"{mine}/yields", LOOK)  # which nobody sets
            rank.kv_set(mine, me, LOOK)
            tokens = [rank.kv_get(f"meet/{r}", LOOK) for r in range(rank.world)]
            if tokens[rank.number] != me:
                continue  # another process of the rank wrote at the same time: it is met, or this one, and not both
            log.debug("replicad: rank %d meets %s for epoch %d", rank.number, tokens, epoch)
            name = hashlib.sha256(repr((epoch, tokens)).encode()).hexdigest()[:16]
            rank.barrier(f"meet/{name}", rank.world, LOOK)
            met = Gathering(epoch, rank.kv_get(LAST, LOOK))
            if met.last in tokens:
                rank.met = met
                return name, epoch
            left, yielded = met, yielded + 1  # one more came meanwhile, which those who have gone on will see; or it came and died
            rank.kv_get(f"{mine}/yields", LOOK)
        except (Fenced, *_UNANSWERED) as err:
            log.debug("replicad: rank %d: %s", rank.number, err)
            if left is not None and left.epoch == epoch == rank.ordered:
                with contextlib.suppress(Error):  # else at the next look
                    rank.fail(f"epoch {epoch} was planned for a gathering that rank {rank.number} had left, since one more process had come to it: all ranks meet again")
            if time.monotonic() >= end:
                raise Timeout(f"not all {rank.world} ranks gathered within {timeout} s: {err}. `replicad status` names the missing ranks") from None


def scattered(rank: Rank) -> bool:
    """Whether all ranks must meet again, asked before the rank's order has come: a process has come to meet the others after the
    gathering that this one is of, in the place of one that died before it had attached; or the epoch that they met for is over."""
    if rank.met is None:
        return False
    try:
        return not rank.kv_check(LAST, LOOK) or rank.kv_get(LAST, LOOK) != rank.met.last
    except Fenced:
        return True
    except _UNANSWERED:
        return False


def awaited(rank: Rank) -> bool:
    """Whether a process has come to meet the others for the epoch to come, asked by one that has been in an epoch and waits for its next order: it makes groups before
    it has a rank, with ranks that can't be ordered anything before it has one."""
    try:
        return rank.scope(LOOK) > rank.ordered and rank.kv_check(LAST, LOOK)  # in one that is not closed yet all may have met
    except (Fenced, *_UNANSWERED):
        return False


def _draw(rank: Rank, later: bytes) -> bytes:
    """A token of one's own, higher than ``later``."""
    number, least = rank.kv_add(ARRIVALS, 1, LOOK), _order(later)[0] + 1 if later else 0
    if number < least:
        number = rank.kv_add(ARRIVALS, least - number, LOOK)
    token = b"%d:%s" % (number, secrets.token_hex(8).encode())
    rank.kv_set(LAST, token, LOOK)
    return token


def _order(token: bytes) -> tuple[int, bytes]:
    number, _, nonce = token.partition(b":")
    return int(number), nonce
