"""Random number generators of a process: python, numpy (legacy), torch CPU, every CUDA device, Megatron's tracker, and any
generator that is added by name. States are plain bytes and numbers; ``get`` and ``set`` are exact inverses.
"""

from __future__ import annotations

import random
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .capsule import Opaque
from .errors import Invalid

__all__ = ["get", "preserved", "set"]

_MT_WORDS = 625


def get() -> dict[str, Any]:
    """The state of every generator whose library is loaded."""
    version, words, gauss = random.getstate()
    out: dict[str, Any] = {"python": {"version": version, "words": Opaque(struct.pack(f"<{len(words)}I", *words)), "gauss": gauss}}
    if np := sys.modules.get("numpy"):
        kind, keys, pos, has, cached = np.random.get_state()
        out["numpy"] = {"kind": kind, "keys": Opaque(keys.astype("<u4").tobytes()), "pos": int(pos), "has_gauss": int(has), "gauss": float(cached)}
    if torch := sys.modules.get("torch"):
        out["torch"] = Opaque(torch.get_rng_state().numpy().tobytes())
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            out["cuda"] = [Opaque(s.numpy().tobytes()) for s in torch.cuda.get_rng_state_all()]
    if tracker := _megatron():
        out["megatron"] = {name: Opaque(s.cpu().numpy().tobytes()) for name, s in tracker.get_states().items()}
    return out


def set(state: dict[str, Any]) -> None:
    """Puts every generator back to where :func:`get` found it. What is not of the known layout is refused before anything
    is changed."""
    py = state["python"]
    words = bytes(py["words"])
    if len(words) != 4 * _MT_WORDS or not 0 <= struct.unpack("<I", words[-4:])[0] <= 624:
        raise Invalid(f"python's generator: {len(words)} bytes of state, want {4 * _MT_WORDS} of a Mersenne twister")
    if (np := sys.modules.get("numpy")) and (s := state.get("numpy")):
        if s["kind"] != "MT19937" or len(s["keys"]) != 4 * 624 or not 0 <= s["pos"] <= 624:
            raise Invalid(f"numpy's generator: {s['kind']} with {len(s['keys'])} bytes at {s['pos']}, want MT19937 with 2496 bytes")
        np.random.set_state((s["kind"], np.frombuffer(bytes(s["keys"]), "<u4"), s["pos"], s["has_gauss"], s["gauss"]))
    if (torch := sys.modules.get("torch")) and "torch" in state:
        torch.set_rng_state(_tensor(torch, state["torch"]))
        cuda = state.get("cuda", [])
        if cuda and torch.cuda.is_available():
            if len(cuda) != torch.cuda.device_count():
                raise Invalid(f"the state has generators of {len(cuda)} CUDA devices, this process sees {torch.cuda.device_count()}")
            torch.cuda.set_rng_state_all([_tensor(torch, b) for b in cuda])
        if (tracker := _megatron()) and "megatron" in state:
            tracker.set_states({name: _tensor(torch, b) for name, b in state["megatron"].items()})
    random.setstate((py["version"], struct.unpack(f"<{_MT_WORDS}I", words), py["gauss"]))


def _tensor(torch: Any, b: bytes) -> Any:
    return torch.frombuffer(bytearray(b), dtype=torch.uint8)


def _megatron() -> Any:
    for name in ("megatron.core.tensor_parallel.random", "megatron.core.tensor_parallel"):
        if (mod := sys.modules.get(name)) and hasattr(mod, "get_cuda_rng_tracker"):
            return mod.get_cuda_rng_tracker()
    return None


@contextmanager
def preserved() -> Iterator[None]:
    """Whatever is drawn inside leaves no trace: for making data-loader iterators, evaluation, plots."""
    before = get()
    try:
        yield
    finally:
        set(before)
