"""The rendezvous of a rank against a C client that is scripted: what is asked, how often, and what counts as an answer."""

from __future__ import annotations

import ctypes as c
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from replicad._core import native as n
from replicad._core.rank import Rank
from replicad.errors import Fenced, Timeout


class Library:
    """Functions of the C client by name; each call takes the next answer: a code, or a function of the arguments."""

    def __init__(self, **answers: list[Any]) -> None:
        self.answers, self.calls = answers, list[tuple[str, tuple[Any, ...]]]()

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*args: Any) -> int:
            self.calls.append((name, args))
            left = self.answers.get(name)
            if not left:
                return n.OK
            answer = left.pop(0)
            return int(answer(*args) if callable(answer) else answer)

        return call


def rank(monkeypatch: pytest.MonkeyPatch, **answers: list[Any]) -> tuple[Rank, Library]:
    lib = Library(**answers)
    monkeypatch.setattr(n, "library", lambda: lib)
    monkeypatch.setattr(n, "failure", lambda op, code, text: {n.EFENCED: Fenced, n.ETIMEOUT: Timeout}.get(code, OSError)(op))
    return Rank(c.c_void_p(1), os.getpid(), 0, 1, 0), lib


def put(value: int) -> Callable[..., int]:
    """Writes a number where the pointer that precedes timeout and error points."""

    def answer(*args: Any) -> int:
        args[-3]._obj.value = value
        return n.OK

    return answer


def test_add_is_asked_until_it_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    r, lib = rank(monkeypatch, rp_kv_add=[n.ETIMEOUT, n.EGONE, put(-7)])
    assert r.kv_add("n", -3) == -7
    names = [name for name, _ in lib.calls]
    assert names == ["rp_kv_add", "rp_kv_add", "rp_reconnect", "rp_kv_add"]  # no watcher: it finds the daemon itself
    assert all(args[1:3] == (b"n", -3) for name, args in lib.calls if name == "rp_kv_add")


def test_a_write_is_not_interleaved_with_another(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []

    def other(*_: Any) -> int:
        t = threading.Thread(target=lambda: r.kv_set("k", b"v"))
        t.start()
        threads.append(t)
        return n.ETIMEOUT

    r, lib = rank(monkeypatch, rp_kv_add=[other, n.ETIMEOUT, put(1)])
    assert r.kv_add("n", 1) == 1
    threads[0].join()
    assert [name for name, _ in lib.calls] == ["rp_kv_add"] * 3 + ["rp_kv_set"]


def test_not_set_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    r, lib = rank(monkeypatch, rp_kv_check=[n.EAGAIN, n.ETIMEOUT, n.OK])
    assert r.kv_check("k") is False
    assert len(lib.calls) == 1
    assert r.kv_check("k") is True
    assert len(lib.calls) == 3


def test_compare_set_delete_and_scope(monkeypatch: pytest.MonkeyPatch) -> None:
    def compare(*args: Any) -> int:
        assert args[1:6] == (b"k", b"old", 3, b"new!", 4) and args[-3]._obj.value == n.MAX_VALUE
        args[6].raw = b"new!" + bytes(n.MAX_VALUE - 4)
        args[-3]._obj.value = 4
        return n.OK

    r, _ = rank(monkeypatch, rp_kv_compare_set=[compare], rp_kv_delete=[put(1), put(0)], rp_scope=[n.ETIMEOUT, put(8), n.EFENCED])
    assert r.kv_compare_set("k", b"old", b"new!") == b"new!"
    assert (r.kv_delete("k"), r.kv_delete("k")) == (True, False)
    assert r.scope() == 8
    with pytest.raises(Fenced):
        r.scope()


def test_a_deadline_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    r, _ = rank(monkeypatch, rp_kv_add=[n.ETIMEOUT])
    with pytest.raises(Timeout):
        r.kv_add("n", 1, timeout=0)
