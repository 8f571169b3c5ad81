"""Which loaders a plain loop trains from."""

from __future__ import annotations

from replicad._torch.feeds import Feeds


def test_before_the_first_step_every_loader_may_be_one() -> None:
    feeds = Feeds()
    assert feeds.asked("train")
    assert feeds.asked("other")


def test_a_batch_for_an_evaluation_begins_no_iteration() -> None:
    feeds = Feeds()
    feeds.asked("train")
    assert feeds.trains() is None
    feeds.ended()
    assert not feeds.asked("held out")
    feeds.note("held out", "then")
    feeds.evaluated()
    assert feeds.asked("train")
    assert feeds.trains() is None
    assert feeds.train == {"train"}


def test_another_loader_takes_over() -> None:
    feeds = Feeds()
    feeds.asked("small")
    feeds.trains()
    feeds.ended()
    assert not feeds.asked("large")
    feeds.note("large", "first")
    feeds.note("large", "second")  # what counts is what was true when it was asked first
    assert feeds.noted("large")
    assert feeds.trains() == "first"
    assert feeds.train == {"large"}


def test_two_loaders_feed_one_step() -> None:
    feeds = Feeds()
    feeds.asked("labelled")
    feeds.asked("unlabelled")
    feeds.trains()
    feeds.ended()
    assert feeds.asked("unlabelled")
