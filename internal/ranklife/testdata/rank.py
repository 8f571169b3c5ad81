"""A rank on replicad.Rank, without torch. It carries out a command for each line that it reads, and prints what it gets."""

from __future__ import annotations

import array
import sys

from replicad import Fenced, Rank, Region
from replicad.errors import Error, Refused, SessionState, Stopped, Timeout

NAMES = {Fenced: "fenced", Refused: "refused", SessionState: "state", Stopped: "stopped", Timeout: "timeout"}
PATIENCE = 20.0


class Program:
    """What the rank's program has."""

    def __init__(self) -> None:
        self.weight = array.array("f", [0.0] * 2500)
        self.own = array.array("Q", [0] * 4)
        self.rank: Rank | None = None
        self.backs = self.start = 0

    def open(self) -> str:
        self.rank = Rank.open(rank=0, world=1, group=0, timeout=PATIENCE)
        weight, own = self.weight.buffer_info()[0], self.own.buffer_info()[0]
        self.rank.register([
            Region("weight", weight, 10000, dtype="float32", shape=(2500,)),
            Region("own", own, 32, dtype="uint64", shape=(4,), private=True, changes="any"),
        ])  # fmt: skip
        return "ok"

    def attach(self) -> str:
        self.rank.attach(PATIENCE)
        return "ok"

    def join(self) -> str:
        order = self.rank.join(PATIENCE)
        self.start = order.step
        return f"{'initialise' if order.initialise else 'load'} {order.epoch}:{order.step}"

    def seal(self) -> str:
        self.update(self.start)
        self.own[0] = self.start
        self.rank.seal_initial()
        return "ok"

    def update(self, to: int) -> None:
        for i in range(len(self.weight)):
            self.weight[i] = to

    def load(self) -> str:
        self.rank.load()
        return f"holds {self.weight[-1]:g} {self.own[0]}"

    def ready(self) -> str:
        self.rank.ready(PATIENCE)
        return "ok"

    def enter(self, step: str) -> str:
        self.own[0] = int(step)
        self.rank.step_enter(int(step), PATIENCE)
        return "ok"

    def exit(self, step: str) -> str:
        self.update(int(step))
        self.rank.step_exit(int(step))
        return "ok"

    def notice(self) -> str:
        return "fenced" if self.rank.wait_fence(PATIENCE) and self.rank.fenced else "timeout"

    def back(self) -> str:
        self.backs += 1
        while self.rank.stats().reconnects < self.backs:
            if self.rank.wait_fence(0.001):
                return "over"
        return "ok"

    def leave(self) -> str:
        self.rank.leave(PATIENCE)
        return "ok"


def main() -> None:
    program = Program()
    for line in sys.stdin:
        what, *step = line.split()
        if what == "end":
            break
        try:
            print(getattr(program, what)(*step), flush=True)
        except (Error, Fenced, Stopped) as err:
            word = NAMES.get(type(err), type(err).__name__)
            print(word if word == "fenced" else f"{word}: {err}", flush=True)
    if program.rank:
        program.rank.close()


main()
