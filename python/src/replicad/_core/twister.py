"""Mersenne twisters read where they lie: python's, and numpy's below its global functions.

Each step reads both. Asked for its state, such a generator makes an object of each of 624 words, which takes longer than all the rest of the read.
Where the words lie is learnt from a generator of our own, and tried in several states against what it is asked for. Where that fails
(another interpreter, another layout), there is no such reader, and generators are asked.
"""

from __future__ import annotations

import ctypes
import random
import struct
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

from .rngcodec import AFTER_WORDS

__all__ = ["Read", "numpys", "pythons"]

#: Gives the state of a generator as :mod:`replicad._core.rngcodec` lays it out.
Read = Callable[[Any], bytes]

_WORDS = 624 * 4
#: In a RandomState: whether a normal sample is left over, and the sample.
_LEFT_OVER = struct.Struct("<i4xd")
#: Seeds, with how many uniform and normal samples to draw then: all positions that differ in kind, with a sample left over and without.
_TRIED = ((1, 0, 0), (2, 1, 1), (3, 311, 1), (4, 312, 2), (5, 700, 3))


@cache
def pythons(asked: Read) -> Read | None:
    """What reads a ``random.Random``, if that agrees with ``asked``."""
    if sys.implementation.name != "cpython":
        return None
    probe = random.Random(0)
    at = _memory(probe).find(asked(probe)[:_WORDS]) - 4  # the position lies before the words
    if at < 0:
        return None

    def read(g: random.Random) -> bytes:
        raw, gauss = ctypes.string_at(id(g) + at, 4 + _WORDS), g.gauss_next  # type: ignore[attr-defined]
        return raw[4:] + AFTER_WORDS.pack(int.from_bytes(raw[:4], "little"), gauss is not None, 0.0 if gauss is None else gauss)

    return read if _agree(read, asked, probe, lambda: probe.gauss(0, 1)) else None


@cache
def numpys(asked: Read) -> Read | None:
    """What reads the generator of ``numpy.random``, while that is an ``MT19937``, if reading agrees with ``asked``."""
    np = sys.modules["numpy"]
    if sys.implementation.name != "cpython" or not hasattr(np.random, "get_bit_generator"):
        return None
    bits = np.random.MT19937(0)
    probe = np.random.RandomState(bits)
    probe.standard_normal()
    at = _memory(probe).find(_LEFT_OVER.pack(1, probe.get_state(legacy=False)["gauss"]))
    if at < 0:
        return None

    def read(g: Any, bits: Any) -> bytes:
        has, gauss = _LEFT_OVER.unpack(ctypes.string_at(id(g) + at, _LEFT_OVER.size))
        raw = ctypes.string_at(bits.ctypes.state_address, _WORDS + 4)
        return raw + AFTER_WORDS.pack(0, has, gauss if has else 0.0)[4:]

    if not _agree(lambda g: read(g, bits), asked, probe, probe.standard_normal):
        return None
    return lambda module: read(module.get_state.__self__, module.get_bit_generator())


def _memory(o: Any) -> bytes:
    """The bytes that an object of CPython's consists of, without what it refers to."""
    return ctypes.string_at(id(o), type(o).__basicsize__)


def _agree(read: Read, asked: Read, probe: Any, normal: Callable[[], float]) -> bool:
    """Whether both give the same of a generator in states that are unlike each other."""
    for seed, uniforms, normals in _TRIED:
        probe.seed(seed)
        for _ in range(uniforms):
            probe.random()
        for _ in range(normals):
            normal()
        if read(probe) != asked(probe):
            return False
    return True
