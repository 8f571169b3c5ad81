"""The C client (libreplicad) through ctypes. Nothing here keeps state; replicad._core.rank does.

The header ``replicad.h`` is the contract: the structures below repeat it field by field, and every one that crosses the
boundary carries its size, which the library checks.
"""

from __future__ import annotations

import ctypes as c
import functools
import os
import re
from pathlib import Path
from typing import Any

from ..errors import BY_CODE, Error, Signal, Version

ABI = 1

OK, EFENCED, ECORRUPT, EAGAIN, ETIMEOUT, EGONE, ESTOPPED, ECANCELED = 0, -1, -2, -3, -4, -5, -13, -14
REPLICATED, PRIVATE = 0, 1
WINDOW, VOLATILE, FROZEN = 0, 1, 2
IN_WINDOW = 1
NO_GROUP = 2**32 - 1
NO_UPDATE, STAGED_LATER, PRIVATE_LATER = 1, 2, 4
NOTE, METRIC, VERSION, LOADER_EPOCH = 1, 2, 3, 4
PRIVATE_UNCHANGED = 1
INIT, LOAD = 1, 2
SOURCES = {0: "fresh", 1: "own-ram", 2: "peer-ram", 3: "durable"}

#: Codes of element types by the name that torch and numpy share.
DTYPES = {
    "uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "float16": 6, "bfloat16": 7, "float32": 8, "float64": 9,
    "bool": 10, "uint16": 11, "uint32": 12, "uint64": 13, "float8_e4m3fn": 14, "float8_e5m2": 15,
}  # fmt: skip
U8 = DTYPES["uint8"]

MAX_NAME = 127  # bytes
MAX_DIMS = 8
MAX_VALUE = 32 << 10  # bytes, of the rendezvous
MAX_RECIPE = 64 << 10  # bytes


class ErrorText(c.Structure):
    _fields_ = (("text", c.c_char * 512),)


class Options(c.Structure):
    _fields_ = (
        ("struct_size", c.c_uint32),
        ("world", c.c_uint32),
        ("socket_path", c.c_char_p),
        ("job", c.c_char_p),
        ("token", c.c_char_p),
        ("rank", c.c_int32),
        ("group", c.c_uint32),
        ("timeout_ns", c.c_int64),
    )


class Region(c.Structure):
    _fields_ = (
        ("struct_size", c.c_uint32),
        ("dtype", c.c_uint8),
        ("kind", c.c_uint8),
        ("cls", c.c_uint8),
        ("ndim", c.c_uint8),
        ("flags", c.c_uint32),
        ("name", c.c_char_p),
        ("data", c.c_void_p),
        ("bytes", c.c_uint64),
        ("shape", c.c_uint64 * MAX_DIMS),
    )


class Remark(c.Structure):
    _fields_ = (("kind", c.c_uint32), ("pad", c.c_uint32), ("name", c.c_char_p), ("text", c.c_char_p), ("value", c.c_double), ("step", c.c_uint64))


class JoinInfo(c.Structure):
    _fields_ = (
        ("struct_size", c.c_uint32),
        ("action", c.c_uint32),
        ("epoch", c.c_uint64),
        ("step", c.c_uint64),
        ("incarnation", c.c_uint64),
        ("source", c.c_uint32),
        ("rank", c.c_uint32),
        ("world", c.c_uint32),
        ("group", c.c_uint32),
        ("job_uuid", c.c_char * 40),
    )


class Stats(c.Structure):
    _fields_ = (
        ("struct_size", c.c_uint32),
        ("pad", c.c_uint32),
        ("captures", c.c_uint64),
        ("skipped", c.c_uint64),
        ("canceled", c.c_uint64),
        ("private_skipped", c.c_uint64),
        ("capture_bytes", c.c_uint64),
        ("capture_ns", c.c_uint64),
        ("reconnects", c.c_uint64),
    )


#: What reads or writes a few words and waits for nobody. Python's lock is kept meanwhile: to get it back from another thread takes longer.
QUICK = ("rp_set_good", "rp_fenced", "rp_get_stats", "rp_expect")


def candidates() -> list[Path]:
    """Where the library may lie: $REPLICAD_LIBRARY alone if it is set, else the wheel, else a checkout."""
    if named := os.environ.get("REPLICAD_LIBRARY"):
        return [Path(named)]
    here = Path(__file__).resolve().parents[1]
    return [here / "lib" / "libreplicad.so.1", *(p / "bin" / "libreplicad.so.1" for p in here.parents[2:3])]


@functools.cache
def library() -> c.CDLL:
    """The loaded library, its version checked."""
    tried = []
    for path in candidates():
        if not path.exists():
            tried.append(f"{path} is not there")
            continue
        try:
            lib = c.CDLL(str(path))
        except OSError as err:
            tried.append(str(err))
            continue
        lib.rp_abi_version.restype = c.c_uint32
        if (found := lib.rp_abi_version()) != ABI:
            raise Version(f"{path} has ABI {found}, this package needs {ABI}: install the wheel whole, library and package come in one")
        try:
            return _declare(lib, c.PyDLL(str(path)))
        except AttributeError as err:
            raise Version(f"{path} is of another release ({err}): install the wheel whole, library and package come in one") from None
    raise Version(f"no C library found ({'; '.join(tried)}): install the replicad wheel, run `make build` in a checkout, or set REPLICAD_LIBRARY to its path")


def _declare(lib: c.CDLL, quick: c.PyDLL) -> c.CDLL:
    h, err = c.c_void_p, c.POINTER(ErrorText)
    u32, u64, i64, text = c.c_uint32, c.c_uint64, c.c_int64, c.c_char_p
    for name, args in {
        "rp_open": (c.POINTER(Options), c.POINTER(h), err),
        "rp_set_group": (h, u32, err),
        "rp_register": (h, c.POINTER(Region), c.c_size_t, err),
        "rp_attach": (h, i64, err),
        "rp_join": (h, c.POINTER(JoinInfo), i64, err),
        "rp_from": (h, c.c_char_p, c.c_size_t, i64, err),
        "rp_resumed": (h, c.c_char_p, c.c_size_t, i64, err),
        "rp_begin_at": (h, c.c_uint64, err),
        "rp_seal_initial": (h, err),
        "rp_seal_own": (h, err),
        "rp_seal_step": (h, u32, err),
        "rp_expect": (h, u32, u64, c.c_void_p, c.c_size_t, err),
        "rp_load": (h, err),
        "rp_as_loaded": (h, u32, c.POINTER(c.c_int), err),
        "rp_load_again": (h, u32, err),
        "rp_ready": (h, i64, err),
        "rp_grow": (h, c.POINTER(Region), c.c_size_t, c.c_char_p, c.c_size_t, i64, err),
        "rp_recipe": (h, c.c_char_p, c.POINTER(c.c_size_t), i64, err),
        "rp_step_enter": (h, u64, i64, err),
        "rp_step_exit": (h, u64, u32, c.POINTER(c.c_int), err),
        "rp_set_good": (h, u64, u64),
        "rp_staged": (h, u64, u64),
        "rp_private_staged": (h, u64, u64, err),
        "rp_freeze_good": (h, u64),
        "rp_capture": (h, err),
        "rp_help": (h, i64),
        "rp_notify": (h,),
        "rp_reconnect": (h, i64, err),
        "rp_fenced": (h,),
        "rp_ordered": (h,),
        "rp_fd": (h,),
        "rp_fail": (h, text, err),
        "rp_reject": (h, text, err),
        "rp_pause": (h, i64, err),
        "rp_ending": (h, i64, err),
        "rp_lacks": (h, text, err),
        "rp_say": (h, c.POINTER(Remark), c.c_size_t, err),
        "rp_kv_set": (h, text, c.c_char_p, c.c_size_t, i64, err),
        "rp_kv_get": (h, text, c.c_char_p, c.POINTER(c.c_size_t), i64, err),
        "rp_kv_check": (h, text, i64, err),
        "rp_kv_add": (h, text, i64, c.POINTER(i64), i64, err),
        "rp_kv_compare_set": (h, text, c.c_char_p, c.c_size_t, c.c_char_p, c.c_size_t, c.c_char_p, c.POINTER(c.c_size_t), i64, err),
        "rp_kv_delete": (h, text, c.POINTER(c.c_int), i64, err),
        "rp_scope": (h, c.POINTER(u64), i64, err),
        "rp_barrier": (h, text, u32, i64, err),
        "rp_get_stats": (h, c.POINTER(Stats)),
        "rp_leave": (h, i64, err),
    }.items():
        fn = getattr(lib, name)
        fn.argtypes, fn.restype = args, c.c_int
    for name in QUICK:
        fn = getattr(quick, name)
        fn.argtypes, fn.restype = getattr(lib, name).argtypes, c.c_int
        setattr(lib, name, fn)
    lib.rp_committed.argtypes, lib.rp_committed.restype = (h,), u64
    lib.rp_compared.argtypes, lib.rp_compared.restype = (h,), u64
    lib.rp_cancel.argtypes, lib.rp_cancel.restype = (h,), None
    lib.rp_close.argtypes, lib.rp_close.restype = (h,), None
    lib.rp_strerror.argtypes, lib.rp_strerror.restype = (c.c_int,), c.c_char_p
    return lib


#: What the library's calls and constants are called here, where that is not ``rank`` and the call's name.
CALLS = {
    "rp_join": "session.resume()",
    "rp_open": "replicad.connect()",
    "rp_reconnect": "the session reconnects by itself",
    "rp_set_group": "rank.name_group()",
    "rp_seal_step": "rank.seal()",
    "RP_PRIVATE_LATER": "private_later=True",
    "RP_INIT": "to initialise",
    "RP_LOAD": "to load",
    "RP_WINDOW": 'changes="window"',
    "RP_VOLATILE": 'changes="any"',
    "RP_IN_WINDOW": "a copy at the window's end",
}


def _ours(text: str) -> str:
    """The library's text with Python's names. :func:`failure` names the call that failed itself."""
    text = re.sub(r"^rp_\w+: ", "", text)
    text = re.sub(r"(^|: )(rp_join|rp_scope)\b", r"\1call \2", text)
    return re.sub(r"\b(?:rp_[a-z_]*[a-z]|RP_[A-Z_]*[A-Z])\b", lambda m: CALLS.get(m[0], f"rank.{m[0].removeprefix('rp_')}()"), text)


def failure(op: str, code: int, text: ErrorText) -> Error | Signal:
    """The exception for a code, with the library's text."""
    said = text.text.decode(errors="replace") or library().rp_strerror(code).decode()
    err: Any = BY_CODE.get(code, Error)(f"{op}: {_ours(said)}")
    if type(err) is Error:
        err.code = code
    return err  # type: ignore[no-any-return]
