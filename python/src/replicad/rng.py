"""Random number generators of a process: python's, numpy's legacy one, torch's of the CPU and of every CUDA device (with a session: of those that
its tensors lie on), Megatron's tracker, and any generator that is added by name (:func:`add`), numpy's with the seed sequence that it spawns others from. States
are plain bytes (:mod:`replicad._core.rngcodec`); :func:`get` and :func:`set` are exact inverses.

numpy, torch and Megatron count once something else has imported them; this module imports none of them. CUDA's generators count
once CUDA is initialised.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import logging
import operator
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any

from ._core import rngcodec as codec
from ._core import twister
from ._core.capsule import Opaque
from ._core.rngcodec import CUDA, MEGATRON, NAMED, NUMPY, PYTHON, SEEDS, TORCH, Record
from .errors import Corrupt, Invalid, Mismatch, Unsupported

__all__ = ["add", "get", "preserved", "remove", "set"]

log = logging.getLogger("replicad")

AT_ONCE = 1 << 16  #: children that are made and thrown away to get a seed sequence to its count: some 0.2 s

_named: dict[str, tuple[int, Any]] = {}  # layout and generator by name
session_devices: Callable[[], list[int]] | None = None  #: the devices that the session of this process uses; None: there is none, and all count that are visible
_last: tuple[list[Record], Opaque] = [], Opaque()  # what get() found and gave: most generators rest for many steps


def add(name: str, generator: Any) -> None:
    """Keeps a generator of the program's own too: a ``random.Random``, a numpy ``Generator``, ``BitGenerator`` or
    ``RandomState``, or a ``torch.Generator`` of the CPU or a CUDA device. Add it before ``session.resume()``: a state and
    a process whose names differ do not fit. What a numpy ``Generator`` spawns goes on too; one whose seed sequence is of a class of the program's own, or
    was seeded with text, is warned of. :class:`Invalid` for a name that another generator has, or of more than 255 bytes; :class:`Unsupported` for
    a generator of another kind.
    """
    _check_name(name)
    layout, inner = _classify(name, generator)
    if name in _named and _named[name][1] is not inner:
        raise Invalid(f"the name {name!r} belongs to another generator already: call replicad.rng.remove({name!r}) first, or choose another name")
    if (sequence := _spawns_from(inner)) is not None and _seeds(sequence) is None:
        log.warning(
            "replicad: the generator %r: its seed sequence is a %s that can't be kept: what it spawns after a restart is not what an undisturbed run has; "
            "seed it with a number, a list of numbers, or a numpy.random.SeedSequence of those",
            name,
            type(sequence).__qualname__,
        )
    _named[name] = layout, inner


def remove(name: str) -> None:
    """Forgets a generator that was added. :class:`Invalid` where none of that name was."""
    if _named.pop(name, None) is None:
        raise Invalid(f"no generator {name!r} was added: want one of {sorted(_named)}")


def added(generator: Any) -> bool:
    """Whether a generator is one of those that were added."""
    return any(g is generator or g is getattr(generator, "bit_generator", None) for _, g in _named.values())


def state_of(generator: Any) -> tuple[int, bytes]:
    """The layout and the state of one generator, whoever has it."""
    layout, inner = _classify("", generator)
    return layout, _READ[layout](inner)


def put_state(generator: Any, layout: int, state: bytes) -> None:
    """The inverse of :func:`state_of`. :class:`Mismatch` for a generator of another kind, :class:`Corrupt` for what is no such state."""
    now, inner = _classify("", generator)
    if now != layout:
        raise Mismatch(f"the state is of {codec.LAYOUTS[layout][0]}, the generator here is {codec.LAYOUTS[now][0]}: make one of the same kind")
    if what := codec.fault(layout, state):
        raise Corrupt(f"the state of a generator: {what}")
    _WRITE[layout](inner, state)


def get() -> Opaque:
    """The state of every generator. :class:`Unsupported` for one that :func:`set` could not take back."""
    global _last
    records = [_record(PYTHON, codec.L_PYTHON, "", random)]
    if np := sys.modules.get("numpy"):
        records.append(_record(NUMPY, codec.L_RANDOM_STATE, "", np.random))
    if torch := sys.modules.get("torch"):
        records.append(_record(TORCH, codec.L_TORCH_CPU, "", torch.default_generator))
        if (cuda := _cuda(torch)).is_initialized():
            for i, at in enumerate(_cuda_devices(cuda)):
                records.append(_record(CUDA, codec.L_TORCH_CUDA, str(i), cuda.default_generators[at]))
    if tracker := _megatron():
        states = tracker.get_states()
        for name in _ordered(states):
            _check_name(name)
            records.append(_record(MEGATRON, codec.L_TORCH_CUDA, name, states[name]))
    for name in _ordered(_named):
        layout, g = _named[name]
        records.append(_record(NAMED, layout, name, g))
    for name in _ordered(_named):
        if payload := _seeds(_spawns_from(_named[name][1])):
            records.append(Record(SEEDS, codec.L_SEEDS, name, payload))
    was, state = _last
    if records != was:
        for r, known in zip_longest(records, was[: len(records)]):
            if r != known and (what := codec.fault(r.layout, r.payload)):
                raise Unsupported(f"{codec.where(r.place, r.name)} is in a state that can't be kept: {what}: seed it anew")
        state = Opaque(codec.pack(records))
        _last = records, state
    return state


def set(state: bytes | bytearray | memoryview) -> None:
    """Puts every generator back to where :func:`get` found it. Everything is checked before anything is changed:
    :class:`Corrupt` for bytes that are no such states, :class:`Mismatch` where this process has other generators, each
    naming the generator. A library that was loaded only after :func:`get` stays as it is.
    """
    _set(state, strict=True)


def reseed(rank: int) -> None:
    """Seeds the process's generators from the seed that the program gave torch's and a rank's number: of a rank that the run before did not have. Those of :func:`add`
    stay as the program has made them."""
    torch = sys.modules.get("torch")
    seed = int.from_bytes(hashlib.sha256(repr((torch.initial_seed() if torch else 0, "rank", rank)).encode()).digest()[:8], "little") >> 1
    random.seed(seed)
    if np := sys.modules.get("numpy"):
        np.random.seed(seed & 0xFFFFFFFF)
    if torch:
        torch.manual_seed(seed)


@contextmanager
def preserved(*, named: bool = True) -> Iterator[None]:
    """Whatever is drawn inside leaves no trace: for making data-loader iterators, evaluation, plots. ``named=False`` leaves the generators
    of :func:`add` as they are at the end."""
    before = get()
    try:
        yield
    finally:
        _set(before, strict=False, named=named)  # one that was added inside had no state before


def _set(state: bytes | bytearray | memoryview, strict: bool, named: bool = True) -> None:
    if not isinstance(state, (bytes, bytearray, memoryview)):
        raise Invalid(f"rng.set: want the bytes that rng.get() returned, not a {type(state).__name__}")
    records = [r for r in codec.parse(bytes(state)) if named or r.place < NAMED]
    todo = [_restorer(r) for r in records if r.place not in (CUDA, MEGATRON, SEEDS)]
    if devices := [r for r in records if r.place == CUDA]:
        todo.append(_cuda_restorer(devices))
    if tracked := [r for r in records if r.place == MEGATRON]:
        todo.append(_megatron_restorer(tracked))
    if strict and (missing := _named.keys() - {r.name for r in records if r.place == NAMED}):
        raise Mismatch(f"the state has nothing of the generators {sorted(missing)}: it was taken before they were added. Remove them (replicad.rng.remove), or use a later state")
    for restore in todo:
        restore()
    _sow([r for r in records if r.place == SEEDS])


def _cuda(torch: Any) -> Any:
    """Torch's words for the device, or what a session has in their place."""
    device = sys.modules.get("replicad._torch.device")
    return torch.cuda if device is None else device.cuda


def _cuda_devices(cuda: Any) -> list[int]:
    """The devices whose generators count, in the order of their records. A rank's are its own, by their place among them: another process of it may have others."""
    return session_devices() if session_devices is not None else list(range(cuda.device_count()))


# -- which live generator a record is of ------------------------------------------------------------------------------------


def _record(place: int, layout: int, name: str, g: Any) -> Record:
    return Record(place, layout, name, _READ[layout](g))


def _restorer(r: Record) -> Callable[[], None]:
    who = codec.where(r.place, r.name)
    if r.place == PYTHON:
        g: Any = random
    elif r.place in (NUMPY, TORCH):
        library = "numpy" if r.place == NUMPY else "torch"
        if (module := sys.modules.get(library)) is None:
            raise Mismatch(f"{who}: the state has it, but {library} is not loaded here: import {library} before")
        g = module.random if r.place == NUMPY else module.default_generator
    elif r.name not in _named:
        raise Mismatch(f"{who}: the state has it, but it is not here: replicad.rng.add({r.name!r}, ...) before")
    else:
        layout, g = _named[r.name]
        if layout != r.layout:
            raise Mismatch(f"{who}: the state is of {codec.LAYOUTS[r.layout][0]}, the generator here is {codec.LAYOUTS[layout][0]}: add one of the same kind")
    if r.layout == codec.L_RANDOM_STATE:
        _legacy(g, who)
    return lambda: _WRITE[r.layout](g, r.payload)


def _cuda_restorer(records: list[Record]) -> Callable[[], None]:
    torch = sys.modules.get("torch")
    at = [] if torch is None else _cuda_devices(_cuda(torch))
    if torch is None or len(at) != len(records):
        has = f"this rank has its tensors on {len(at)}: put them on as many" if session_devices else f"this process sees {len(at)}: give it as many (CUDA_VISIBLE_DEVICES)"
        raise Mismatch(f"the state has generators of {len(records)} CUDA devices, {has}")

    def restore() -> None:
        for i, r in zip(at, records, strict=True):
            _cuda(torch).set_rng_state(_tensor(r.payload), i)  # waits for CUDA's initialisation where that is to come

    return restore


def _megatron_restorer(records: list[Record]) -> Callable[[], None]:
    tracker = _megatron()
    if tracker is None:
        raise Mismatch(f"{codec.where(MEGATRON, records[0].name)}: the state has it, but Megatron's tracker is not loaded here: import megatron.core before")
    here = tracker.get_states()
    # Where CUDA graphs are captured the tracker holds generators that graphs refer to: those stay, and are set.
    held = {k for k, s in here.items() if _is_generator(s)}
    if held and held != {r.name for r in records}:
        raise Mismatch(f"the state has Megatron's generators {[r.name for r in records]}, the tracker here has {sorted(held)}: add the same to the tracker")

    def restore() -> None:
        if not held:
            tracker.set_states({r.name: _tensor(r.payload) for r in records})
        for r in records if held else ():
            here[r.name].set_state(_tensor(r.payload))

    return restore


def _sow(records: list[Record]) -> None:
    """Puts the seed sequences back. One that only has to go on does, and stays the object that the program may hold; numpy lets no other be set,
    so that any other gets a new one, by what unpickling a generator calls. Generators that share one still do."""
    new: dict[tuple[int, bytes], Any] = {}
    old = []  # so that no two have one id
    for r in records:
        bits = _named[r.name][1]
        here, fields = _spawns_from(bits), json.loads(r.payload)
        more = fields["n_children_spawned"] - here.n_children_spawned if _same(here, fields) else -1
        if 0 <= more <= AT_ONCE:
            here.spawn(more)
        elif isinstance(bits.__reduce__()[2], tuple):
            old.append(here)
            key = id(here), r.payload
            if key not in new:
                new[key] = sys.modules["numpy"].random.SeedSequence(**fields)
            bits.__setstate__((bits.state, new[key]))
        else:  # numpy 1
            log.warning("replicad: %s can't be put back: what the generator spawns is not what an undisturbed run has; numpy 2 can", codec.where(SEEDS, r.name))


def _same(sequence: Any, fields: dict[str, Any]) -> bool:
    """Whether a seed sequence differs from what was kept by the number of its children alone."""
    payload = _seeds(sequence)
    return payload is not None and json.loads(payload) | {"n_children_spawned": fields["n_children_spawned"]} == fields


def _megatron() -> Any:
    for name in ("megatron.core.tensor_parallel.random", "megatron.core.tensor_parallel"):
        if (mod := sys.modules.get(name)) and hasattr(mod, "get_cuda_rng_tracker"):
            return mod.get_cuda_rng_tracker()
    return None


def _classify(name: str, g: Any) -> tuple[int, Any]:
    if isinstance(g, random.Random) and type(g).getstate is random.Random.getstate:
        return codec.L_PYTHON, g
    if _is_generator(g):
        if g.device.type in ("cpu", "cuda"):
            return (codec.L_TORCH_CPU if g.device.type == "cpu" else codec.L_TORCH_CUDA), g
        raise Unsupported(f"the generator {name!r} is of device {g.device}: only those of the CPU and of CUDA devices can be kept")
    if np := sys.modules.get("numpy"):
        if type(g) is np.random.RandomState:
            _legacy(g, f"the generator {name!r}")
            return codec.L_RANDOM_STATE, g
        bits = g.bit_generator if isinstance(g, np.random.Generator) else g
        for layout in _BIT_GENERATORS:
            if type(bits) is getattr(np.random, codec.LAYOUTS[layout][0], None):
                return layout, bits
    raise Unsupported(
        f"the generator {name!r} is a {type(g).__module__}.{type(g).__qualname__}: only random.Random, numpy's "
        f"{', '.join(codec.LAYOUTS[k][0] for k in _BIT_GENERATORS)} and RandomState, and torch.Generator can be kept"
    )


def _is_generator(g: Any) -> bool:
    return (torch := sys.modules.get("torch")) is not None and isinstance(g, torch.Generator)


def _spawns_from(g: Any) -> Any:
    """The seed sequence of one of numpy's bit generators; None for any other generator, and before numpy 1.25, which spawns none."""
    np = sys.modules.get("numpy")
    return getattr(g, "seed_seq", None) if np and isinstance(g, np.random.BitGenerator) else None


def _seeds(sequence: Any) -> bytes | None:
    """A seed sequence's payload; None for one of another class than numpy's, of text, or that is too large."""
    if sequence is None or type(sequence) is not sys.modules["numpy"].random.SeedSequence:
        return None
    s = sequence.state
    try:
        entropy = operator.index(s["entropy"]) if not hasattr(s["entropy"], "__iter__") else list(_numbers(s["entropy"]))
        payload = codec.seeds(entropy, s["n_children_spawned"], s["pool_size"], list(_numbers(s["spawn_key"])))
    except (TypeError, ValueError):  # text, and numbers of more digits than python writes
        return None
    return None if codec.fault(codec.L_SEEDS, payload) else payload


def _numbers(values: Any) -> Iterator[int]:
    """The numbers of nested lists and arrays in a row: numpy makes the same seeds of those."""
    for x in values:
        if hasattr(x, "__iter__") and not isinstance(x, str):
            yield from _numbers(x)
        else:
            yield operator.index(x)


def _check_name(name: Any) -> None:
    try:
        if isinstance(name, str) and 1 <= len(name.encode()) <= codec.MAX_NAME:
            return
    except UnicodeEncodeError:
        pass
    raise Invalid(f"the generator {name!r}: want a name of 1 to {codec.MAX_NAME} bytes of UTF-8")


def _ordered(names: dict[str, Any]) -> list[str]:
    return sorted(names, key=lambda name: str(name).encode(errors="replace"))


# -- live generators to payloads and back -----------------------------------------------------------------------------------


def _read_python(g: Any) -> bytes:
    own = getattr(g.getstate, "__self__", None)  # of the module: the generator behind its functions
    read = twister.pythons(_asked_python) if type(own) is random.Random else None
    return read(own) if read else _asked_python(g)


def _asked_python(g: Any) -> bytes:
    version, words, gauss = g.getstate()
    if version != 3:
        raise Unsupported(f"a state of python's generators has version {version}, and only 3 is known: use a Python that this release supports")
    return codec.MT_GAUSS.pack(*words, gauss is not None, 0.0 if gauss is None else gauss)


def _write_python(g: Any, p: bytes) -> None:
    *words, has, gauss = codec.MT_GAUSS.unpack(p)
    g.setstate((3, tuple(words), gauss if has else None))


def _legacy(g: Any, who: str) -> dict[str, Any]:
    s: dict[str, Any] = g.get_state(legacy=False)
    if s["bit_generator"] != "MT19937":
        raise Unsupported(f"{who} runs on {s['bit_generator']}: only MT19937 can be kept below the legacy interface: use numpy.random.Generator and replicad.rng.add")
    return s


def _read_random_state(g: Any) -> bytes:
    np = sys.modules["numpy"]
    read = twister.numpys(_asked_random_state) if g is np.random else None
    return read(g) if read and type(g.get_bit_generator()) is np.random.MT19937 else _asked_random_state(g)


def _asked_random_state(g: Any) -> bytes:
    s = _legacy(g, "numpy's legacy generator")
    inner, has = s["state"], s["has_gauss"]
    return bytes(inner["key"].tobytes()) + codec.AFTER_WORDS.pack(inner["pos"], has, s["gauss"] if has else 0.0)


def _write_random_state(g: Any, p: bytes) -> None:
    pos, has, gauss = codec.AFTER_WORDS.unpack_from(p, 2496)
    g.set_state(("MT19937", _words(p), pos, has, gauss))


def _words(p: bytes) -> Any:
    return sys.modules["numpy"].frombuffer(p, "<u4", 624)


def _read_mt19937(g: Any) -> bytes:
    inner = g.state["state"]
    return bytes(inner["key"].tobytes() + int(inner["pos"]).to_bytes(4, "little"))


def _write_mt19937(g: Any, p: bytes) -> None:
    g.state = {"bit_generator": "MT19937", "state": {"key": _words(p), "pos": int.from_bytes(p[2496:], "little")}}


def _read_pcg64(g: Any) -> bytes:
    s = g.state
    inner = s["state"]
    return codec.PCG.pack(inner["state"].to_bytes(16, "little"), inner["inc"].to_bytes(16, "little"), s["has_uint32"], s["uinteger"])


def _write_pcg64(g: Any, p: bytes) -> None:
    state, inc, has, half = codec.PCG.unpack(p)
    inner = {"state": int.from_bytes(state, "little"), "inc": int.from_bytes(inc, "little")}
    g.state = {"bit_generator": type(g).__name__, "state": inner, "has_uint32": has, "uinteger": half}


def _read_philox(g: Any) -> bytes:
    s = g.state
    inner = s["state"]
    return codec.PHILOX.pack(*inner["counter"].tolist(), *inner["key"].tolist(), *s["buffer"].tolist(), s["buffer_pos"], s["has_uint32"], s["uinteger"])


def _write_philox(g: Any, p: bytes) -> None:
    *w, pos, has, half = codec.PHILOX.unpack(p)
    array = sys.modules["numpy"].array
    inner = {"counter": array(w[:4], "u8"), "key": array(w[4:6], "u8")}
    g.state = {"bit_generator": "Philox", "state": inner, "buffer": array(w[6:], "u8"), "buffer_pos": pos, "has_uint32": has, "uinteger": half}


def _read_sfc64(g: Any) -> bytes:
    s = g.state
    return codec.SFC.pack(*s["state"]["state"].tolist(), s["has_uint32"], s["uinteger"])


def _write_sfc64(g: Any, p: bytes) -> None:
    *w, has, half = codec.SFC.unpack(p)
    g.state = {"bit_generator": "SFC64", "state": {"state": sys.modules["numpy"].array(w, "u8")}, "has_uint32": has, "uinteger": half}


def _read_torch(g: Any) -> bytes:
    t = g.get_state() if hasattr(g, "get_state") else g.cpu().contiguous()  # Megatron's tracker holds tensors
    return ctypes.string_at(t.data_ptr(), t.nbytes)  # without numpy, and without a walk over the elements


def _write_torch(g: Any, p: bytes) -> None:
    g.set_state(_tensor(p))


def _tensor(p: bytes) -> Any:
    torch = sys.modules["torch"]
    return torch.frombuffer(bytearray(p), dtype=torch.uint8)


_BIT_GENERATORS = (codec.L_PCG64, codec.L_PCG64DXSM, codec.L_PHILOX, codec.L_SFC64, codec.L_MT19937)

_READ: dict[int, Callable[[Any], bytes]] = {
    codec.L_PYTHON: _read_python,
    codec.L_RANDOM_STATE: _read_random_state,
    codec.L_MT19937: _read_mt19937,
    codec.L_PCG64: _read_pcg64,
    codec.L_PCG64DXSM: _read_pcg64,
    codec.L_PHILOX: _read_philox,
    codec.L_SFC64: _read_sfc64,
    codec.L_TORCH_CPU: _read_torch,
    codec.L_TORCH_CUDA: _read_torch,
}
_WRITE: dict[int, Callable[[Any, bytes], None]] = {
    codec.L_PYTHON: _write_python,
    codec.L_RANDOM_STATE: _write_random_state,
    codec.L_MT19937: _write_mt19937,
    codec.L_PCG64: _write_pcg64,
    codec.L_PCG64DXSM: _write_pcg64,
    codec.L_PHILOX: _write_philox,
    codec.L_SFC64: _write_sfc64,
    codec.L_TORCH_CPU: _write_torch,
    codec.L_TORCH_CUDA: _write_torch,
}
