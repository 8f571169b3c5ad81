"""What the loop has told of where an iteration begins: rules alone, without a session."""

from __future__ import annotations

import gc
import itertools
from typing import Any

import pytest

from replicad._torch.loop import Ended, Loop
from replicad._torch.steps import Steps

ENDED = Ended(3, True, b"at the block's end")
#: A loop over steps runs only while somebody has it.
HELD: list[Steps] = []
#: So many conditions, each false and true.
BOTH = {n: list(itertools.product((False, True), repeat=n)) for n in (2, 3)}


def own(asks: str = "", asked: bytes | None = None, rng: bytes = b"kept") -> dict[str, Any]:
    """What is a rank's own, of a copy that was made when a loader was asked, or elsewhere."""
    return {"asks": asks, "asked": asked, "rng": rng}


def steps(last: int = 9) -> Steps:
    return Steps(last, lambda loop: loop.step + 1)


def over(loop: Loop) -> Steps:
    """A loop over steps that runs."""
    HELD.append(it := steps())
    loop.runs(it)
    return it


# -- a loop over steps -----------------------------------------------------------------------------------------------------


def test_a_loop_over_steps_runs_until_it_is_over() -> None:
    loop = Loop()
    assert loop.over_steps is None
    loop.runs(it := steps(1))
    assert loop.over_steps is it
    assert list(it) == [1]
    assert loop.over_steps is None
    loop.runs(it := steps(2))
    next(it)
    it.close()
    assert loop.over_steps is None


def test_a_loop_that_was_left_is_none() -> None:
    loop = Loop()
    loop.runs(it := steps())
    next(it)
    assert loop.over_steps is it
    del it
    gc.collect()
    assert loop.over_steps is None


@pytest.mark.parametrize(("asks", "runs"), BOTH[2])
def test_what_tells_where_an_iteration_begins(asks: bool, runs: bool) -> None:
    loop = Loop()
    loop.asks = asks
    if runs:
        over(loop)
    assert loop.tells is (asks or runs)


def test_state_that_was_loaded_is_of_no_loop_that_runs() -> None:
    loop = Loop()
    it = over(loop)
    loop.block_ended(ENDED)
    loop.resumed(2, own())
    assert loop.over_steps is None and loop.ended is None
    assert not it.over  # it may still ask for its next step, which the session refuses


# -- generators with which a loop over steps goes on -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "first", "back"),
    [
        (4, True, b"kept"),  # what the process drew before its loop is no part of the run
        (4, False, None),
        (0, True, None),  # what a program draws before its loop is drawn again, from the beginning
        (0, False, None),
    ],
)
def test_the_first_iteration_begins_with_what_was_kept(step: int, first: bool, back: bytes | None) -> None:
    loop = Loop()
    loop.resumed(step, own())
    over(loop)
    assert loop.begins_with(first) == back
    assert loop.begins_with(True) is None  # once


def test_what_was_due_has_drawn() -> None:
    loop = Loop()
    loop.resumed(4, own())
    loop.followed(b"behind the evaluation")
    assert loop.begins_with(True) == b"behind the evaluation"


@pytest.mark.parametrize("before", ["nothing was resumed", "the initial state was", "the loop has begun"])
def test_what_follows_a_step_of_this_process_is_not_put_back(before: str) -> None:
    loop = Loop()
    if before != "nothing was resumed":
        loop.resumed(0 if before == "the initial state was" else 4, own())
    if before == "the loop has begun":
        loop.begins_with(True)
    loop.followed(b"later")
    assert loop.begins_with(True) is None


def test_another_loop_before_one_over_steps() -> None:
    """Its steps have drawn: nothing is put back behind them."""
    loop = Loop()
    loop.resumed(4, own())
    loop.enters()
    over(loop)
    assert loop.begins_with(True) is None


def test_a_step_of_a_loop_over_steps_leaves_them() -> None:
    """They were taken when its iteration began."""
    loop = Loop()
    loop.resumed(4, own())
    over(loop)
    loop.enters()
    assert loop.begins_with(True) == b"kept"


# -- a forward -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ended", "runs", "training"), BOTH[3])
def test_a_forward_ends_a_step_that_nothing_else_ends(ended: bool, runs: bool, training: bool) -> None:
    loop = Loop()
    if runs:
        over(loop)
    if ended:
        loop.block_ended(ENDED)
    assert loop.forward(training) == (ended and training and not runs, None)


def test_a_forward_that_trains_on_a_batch_from_another_loader() -> None:
    """The step was over when that was asked for its batch."""
    loop = Loop()
    loop.batch("small")
    loop.enters()
    loop.block_ended(ENDED)
    assert loop.batch("large") == "note"
    loop.feeds.note("large", "as it was then")
    assert loop.batch("large") == ""  # what counts is what was true when it was asked first
    assert loop.forward(True) == (True, "as it was then")
    loop.enters()
    loop.block_ended(ENDED)
    assert loop.batch("small") == "note"  # the loop trains from the other one now


def test_an_evaluation_begins_no_iteration() -> None:
    loop = Loop()
    loop.batch("train")
    loop.enters()
    loop.block_ended(ENDED)
    assert loop.batch("held out") == "note"
    loop.feeds.note("held out", "as it was then")
    assert loop.forward(False) == (False, None)
    assert loop.batch("train") == "over"
    assert loop.enters() is None
    loop.block_ended(ENDED)
    assert loop.batch("held out") == "note"  # the step was not fed from it


# -- a batch -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ended", "runs", "trains"), BOTH[3])
def test_a_batch_for_training_ends_a_step(ended: bool, runs: bool, trains: bool) -> None:
    loop = Loop()
    loop.batch("train")
    loop.enters()
    if runs:
        over(loop)
    if ended:
        loop.block_ended(ENDED)
    want = "" if runs or not ended else "over" if trains else "note"
    assert loop.batch("train" if trains else "other") == want


def test_any_loader_may_feed_the_first_step() -> None:
    loop = Loop()
    loop.block_ended(ENDED)
    assert loop.batch("any") == "over"


@pytest.mark.parametrize(
    ("step", "copied", "asks", "want"),
    [
        (4, own("train", b"asked"), "train", "then"),
        (4, own("train", b"asked"), "other", ""),  # the copy was made when another one was asked
        (4, own(), "train", ""),  # the copy was made elsewhere
        (4, own("train"), "train", ""),  # when the loader was asked, but not known to be over by that
        (0, own("train", b"asked"), "train", ""),  # a fresh job begins as its program does
    ],
)
def test_the_first_batch_of_a_process_that_resumed(step: int, copied: dict[str, Any], asks: str, want: str) -> None:
    loop = Loop()
    loop.resumed(step, copied)
    assert loop.batch(asks) == want
    if want:
        assert loop.then() is copied
        assert loop.batch(asks) == ""  # once


@pytest.mark.parametrize("by", ["a step", "a loop over steps", "another resume"])
def test_what_takes_the_place_of_the_first_batch(by: str) -> None:
    loop = Loop()
    loop.resumed(4, own("train", b"asked"))
    if by == "a loop over steps":
        over(loop)
    if by == "a step":
        loop.enters()
    if by == "another resume":
        loop.resumed(5, own())
    assert loop.batch("train") == ""


# -- in any order --------------------------------------------------------------------------------------------------------------

EVENTS = ("batch", "other", "trains", "evaluates", "step", "steps")


@pytest.mark.parametrize("told", ["resumed at 0", "resumed at 4", "resumed in a batch"])
def test_whatever_a_loop_does(told: str) -> None:
    """Every order of five events: a step is over once, never by what a loop over steps does, and the copy's place is met at most once, before any step."""
    for events in itertools.product(EVENTS, repeat=5):
        HELD.clear()
        loop = Loop()
        loop.resumed(0 if told == "resumed at 0" else 4, own("train", b"asked") if told == "resumed in a batch" else own())
        met, stepped, runs = 0, False, False
        for event in events:
            open_before, is_over = loop.ended is not None, False
            match event:
                case "batch" | "other":
                    match loop.batch("train" if event == "batch" else "other"):
                        case "over":
                            is_over = True
                        case "note":
                            assert open_before, events
                            loop.feeds.note("other" if event == "other" else "train", event)
                        case "then":
                            assert not stepped and told == "resumed in a batch", events
                            assert loop.then()["asks"] == "train"
                            met += 1
                case "trains" | "evaluates":
                    is_over, _ = loop.forward(event == "trains")
                case "step":
                    loop.enters()
                    stepped, loop.ended = True, None
                    loop.block_ended(ENDED)
                case "steps":
                    runs = runs or over(loop) is not None
            if is_over:
                assert open_before and not runs, events
                loop.ended = None
        assert met <= 1, events
        assert loop.tells is runs, events
