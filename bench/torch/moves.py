"""How long each system takes to bring a state to a second process: 1 GiB in 64 tensors, over this machine's loopback.

    make bench-peers        # or: .venv-peers/bin/python bench/torch/moves.py --systems gloo,torchft-0 --rounds 10

A parent makes the state and serves it; a second process receives it into memory that is there already, and compares it bit for bit. The time
is that from its question to the last byte. Each system has one turn in each round, so that the machine's noise reaches all of them alike. A
turn starts a second process of its own, moves the state once without counting, and then `--moves` times.

Other systems move in plain text, and verify nothing but for `lm-resiliency`: that is GEMINI's `TorchDistTransfer`, the public call of
lm-resiliency 0.2.0 that brings a shard to a replacement, over Gloo with CRC-32 at both ends. `lm-resiliency-peer` is its
`ChunkedGlooBackend`, which carries the copy of each step to the peer: one way here, both ways in training, and nothing is verified.

replicad moves a part of as many bytes, verified, in plain text and over the lanes that daemons open (TLS 1.3), with raw TCP beside it: three
moves of each a turn (`replicad bench --quick`).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp

ROOT = Path(__file__).resolve().parents[2]
SYSTEMS = ["torchft-0", "torchft-2", "torchft-10", "gloo-flat", "gloo", "lm-resiliency", "lm-resiliency-peer", "mooncake", "dcp", "replicad"]
PATIENCE = timedelta(seconds=120)


def state(megabytes: int, tensors: int) -> dict[str, torch.Tensor]:
    """The same on both sides: words that no other place has."""
    each = (megabytes << 20) // 4 // tensors
    return {f"layer{i}": torch.arange(i * each, (i + 1) * each, dtype=torch.int32).view(torch.float32) for i in range(tensors)}


def empty(megabytes: int, tensors: int) -> dict[str, torch.Tensor]:
    """Where it goes: pages that are there already."""
    each = (megabytes << 20) // 4 // tensors
    return {f"layer{i}": torch.zeros(each, dtype=torch.float32) for i in range(tensors)}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k].view(torch.int32), b[k].view(torch.int32)) for k in a)


# Each system is a pair of generators: the giver yields what the taker is to know, once, and is closed at the end; the taker yields the state
# that has arrived, each time that it is advanced.

Giver = Callable[[dict[str, torch.Tensor], Path], Iterator[Any]]
Taker = Callable[[dict[str, torch.Tensor], Any], Iterator[dict[str, torch.Tensor]]]


def torchft_gives(chunks: int, own: dict[str, torch.Tensor], folder: Path) -> Iterator[Any]:
    from torchft.checkpointing.http_transport import HTTPTransport

    transport: Any = HTTPTransport(PATIENCE, num_chunks=chunks)
    transport.send_checkpoint([1], 1, own, PATIENCE)
    yield transport.metadata()
    transport.shutdown(wait=False)


def torchft_takes(chunks: int, room: dict[str, torch.Tensor], known: Any) -> Iterator[dict[str, torch.Tensor]]:
    from torchft.checkpointing.http_transport import HTTPTransport

    transport: Any = HTTPTransport(PATIENCE, num_chunks=chunks)
    while True:
        yield transport.recv_checkpoint(0, known, 1, PATIENCE)


def gloo(folder: Path, rank: int) -> Any:
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), 2), rank=rank, world_size=2, timeout=PATIENCE)
    return dist


def gloo_gives(flat: bool, own: dict[str, torch.Tensor], folder: Path) -> Iterator[Any]:
    yield str(folder)
    dist = gloo(folder, 0)
    tensors = [torch.cat(list(own.values()))] if flat else list(own.values())
    go = torch.zeros(1)
    while True:
        dist.recv(go, 1)
        if go.item() == 0:
            break
        for t in tensors:
            dist.send(t, 1)
    dist.destroy_process_group()
    yield None


def gloo_takes(flat: bool, room: dict[str, torch.Tensor], known: Any) -> Iterator[dict[str, torch.Tensor]]:
    dist = gloo(Path(known), 1)
    whole = torch.zeros(sum(t.numel() for t in room.values()))
    views, at = {}, 0
    for name, t in room.items():
        views[name] = whole[at : at + t.numel()]
        at += t.numel()
    try:
        while True:
            dist.send(torch.ones(1), 0)
            for t in [whole] if flat else room.values():
                dist.recv(t, 0)
            yield views if flat else room
    finally:
        dist.send(torch.zeros(1), 0)
        dist.destroy_process_group()


def gemini(peer: bool, rank: int) -> Any:
    """lm-resiliency's end of a move: the transfer for a replacement, or the backend that carries a step's copy to the peer."""
    if peer:
        from lm_resiliency.checkpointing.replication import ChunkedGlooBackend

        return ChunkedGlooBackend(replication_jump=1)
    from lm_resiliency.checkpointing import make_transfer

    return make_transfer("torch_dist", rank=rank, timeout_s=PATIENCE.total_seconds())


def gemini_gives(peer: bool, own: dict[str, torch.Tensor], folder: Path) -> Iterator[Any]:
    yield str(folder)
    dist = gloo(folder, 0)
    end, tensors, go = gemini(peer, 0), list(own.values()), torch.zeros(1)
    while True:
        dist.recv(go, 1)
        if go.item() == 0:
            break
        if peer:
            end.send(tensors, 1)
        else:
            end.serve(tensors, "state", 1, socket.gethostname())
    end.close()
    dist.destroy_process_group()
    yield None


def gemini_takes(peer: bool, room: dict[str, torch.Tensor], known: Any) -> Iterator[dict[str, torch.Tensor]]:
    dist = gloo(Path(known), 1)
    end, tensors = gemini(peer, 1), list(room.values())
    try:
        while True:
            dist.send(torch.ones(1), 0)
            if peer:
                end.recv(tensors)
            else:
                end.fetch(tensors, "state", 0, socket.gethostname())
            yield room
    finally:
        dist.send(torch.zeros(1), 0)
        end.close()
        dist.destroy_process_group()


def mooncake_engine() -> Any:
    from mooncake.engine import TransferEngine

    engine: Any = TransferEngine()
    if engine.initialize("localhost", "P2PHANDSHAKE", "tcp", "") != 0:
        raise RuntimeError("mooncake: initialize")
    return engine


def mooncake_gives(own: dict[str, torch.Tensor], folder: Path) -> Iterator[Any]:
    engine = mooncake_engine()
    for t in own.values():
        if engine.register_memory(t.data_ptr(), t.nbytes) != 0:
            raise RuntimeError("mooncake: register_memory")
    yield engine.get_rpc_port(), [t.data_ptr() for t in own.values()]


def mooncake_takes(room: dict[str, torch.Tensor], known: Any) -> Iterator[dict[str, torch.Tensor]]:
    engine = mooncake_engine()
    port, there = known
    here = [t.data_ptr() for t in room.values()]
    sizes = [t.nbytes for t in room.values()]
    for at, n in zip(here, sizes, strict=True):
        if engine.register_memory(at, n) != 0:
            raise RuntimeError("mooncake: register_memory")
    while True:
        if engine.batch_transfer_sync_read(f"localhost:{port}", here, there, sizes) != 0:
            raise RuntimeError("mooncake: batch_transfer_sync_read")
        yield room


def dcp_gives(own: dict[str, torch.Tensor], folder: Path) -> Iterator[Any]:
    yield str(folder / "dcp")


def dcp_takes(room: dict[str, torch.Tensor], known: Any) -> Iterator[dict[str, torch.Tensor]]:
    """A save to memory (tmpfs) and the load from there, as a replacement would need both: in one process, one after the other."""
    import torch.distributed.checkpoint as dcp

    own = state(sum(t.nbytes for t in room.values()) >> 20, len(room))
    while True:
        shutil.rmtree(known, ignore_errors=True)
        dcp.save(dict(own), checkpoint_id=known, no_dist=True)
        dcp.load(dict(room), checkpoint_id=known, no_dist=True)
        yield room


PAIRS: dict[str, tuple[Giver, Taker]] = {
    **{f"torchft-{n}": (partial(torchft_gives, n), partial(torchft_takes, n)) for n in (0, 2, 10)},
    "gloo-flat": (partial(gloo_gives, True), partial(gloo_takes, True)),
    "gloo": (partial(gloo_gives, False), partial(gloo_takes, False)),
    "lm-resiliency": (partial(gemini_gives, False), partial(gemini_takes, False)),
    "lm-resiliency-peer": (partial(gemini_gives, True), partial(gemini_takes, True)),
    "mooncake": (mooncake_gives, mooncake_takes),
    "dcp": (dcp_gives, dcp_takes),
}
#: Their givers take part in each move, and so have a second part that runs until the taker ends.
BOTH_ENDS = {"gloo", "gloo-flat", "lm-resiliency", "lm-resiliency-peer"}


def take(system: str, megabytes: int, tensors: int, moves: int, pipe: Connection) -> None:
    """The second process: seconds of each move, after one that does not count."""
    known = pipe.recv()
    want, room = state(megabytes, tensors), empty(megabytes, tensors)
    takes = PAIRS[system][1](room, known)
    seconds = []
    for k in range(moves + 1):
        for t in room.values():
            t.zero_()
        began = time.perf_counter()
        got = next(takes)
        took = time.perf_counter() - began
        if not same(got, want):
            raise RuntimeError(f"{system}: another state came than was given")
        if k > 0:
            seconds.append(took)
    takes.close()  # type: ignore[attr-defined]
    pipe.send(seconds)


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="replicad-moves-", dir="/dev/shm") as name:
        yield Path(name)


def once(system: str, own: dict[str, torch.Tensor], args: argparse.Namespace) -> list[float]:
    """A turn: seconds of its moves."""
    context = mp.get_context("spawn")
    here, there = context.Pipe()
    with folder() as at:
        gives = PAIRS[system][0](own, at)
        known = next(gives)
        taker = context.Process(target=take, args=(system, args.megabytes, args.tensors, args.moves, there), daemon=True)
        taker.start()
        try:
            here.send(known)
            if system in BOTH_ENDS:
                next(gives)
            end = time.monotonic() + PATIENCE.total_seconds() * 4
            while not here.poll(1):
                if not taker.is_alive() and not here.poll(0):
                    raise RuntimeError(f"{system}: its second process ended with status {taker.exitcode}")
                if time.monotonic() > end:
                    raise RuntimeError(f"{system}: nothing came")
            return list(here.recv())
        finally:
            taker.kill()
            taker.join()
            gives.close()  # type: ignore[attr-defined]


def replicad(megabytes: int) -> Iterator[tuple[str, list[float]]]:
    """Seconds of its lanes in a turn, and of raw TCP by turns with the first of them."""
    with folder() as at:
        for only in ("transfer/plain", "transfer/default/1-source"):
            command = [str(ROOT / "bin" / "replicad"), "bench", "--quick", "--only", only, "--part-mib", str(megabytes), "--out", str(at)]
            done = subprocess.run(command, check=False, capture_output=True, text=True)
            if done.returncode != 0:
                raise RuntimeError(f"{' '.join(command)}: exit code {done.returncode}: {done.stderr[-500:]}: `make build` makes the program")
            for figure in json.loads((at / "bench.json").read_text())["figures"]:
                yield figure["name"].removeprefix("transfer/"), [(megabytes << 20) / 1e9 / v for v in figure["values"]]
                if only == "transfer/plain":
                    yield figure["limit_name"], [(megabytes << 20) / 1e9 / v for v in figure["limits"]]


def turn(system: str, own: dict[str, torch.Tensor], args: argparse.Namespace) -> Iterator[tuple[str, list[float]]]:
    if system == "replicad":
        yield from replicad(args.megabytes)
    else:
        yield system, once(system, own, args)


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--systems", default=",".join(SYSTEMS), help="some of " + ",".join(SYSTEMS))
    p.add_argument("--megabytes", type=int, default=1024)
    p.add_argument("--tensors", type=int, default=64)
    p.add_argument("--rounds", type=int, default=5, help="turns of each system")
    p.add_argument("--moves", type=int, default=2, help="moves of a turn that count; replicad has three")
    p.add_argument("--json", type=Path, help="file for all figures, a line each")
    args = p.parse_args()
    if unknown := [s for s in args.systems.split(",") if s not in SYSTEMS]:
        p.error(f"--systems: {','.join(unknown)}: want some of {','.join(SYSTEMS)}")
    if min(args.rounds, args.moves, args.tensors, args.megabytes) < 1 or args.megabytes % args.tensors:
        p.error(f"--megabytes {args.megabytes} in --tensors {args.tensors}, --rounds {args.rounds}, --moves {args.moves}: want 1 and more, and as many megabytes a tensor")
    print(f"{args.megabytes} MiB in {args.tensors} tensors, {args.rounds} rounds of {args.moves} moves, load average {os.getloadavg()[0]:.1f} at the start", flush=True)
    own = state(args.megabytes, args.tensors)
    seconds: dict[str, list[float]] = {}
    systems, failed = args.systems.split(","), 0
    for _ in range(args.rounds):
        for system in list(systems):
            try:
                for name, took in turn(system, own, args):
                    seconds.setdefault(name, []).extend(took)
                    if args.json:
                        with args.json.open("a") as f:
                            f.write(json.dumps({"system": name, "megabytes": args.megabytes, "seconds": took, "load": os.getloadavg()[0]}) + "\n")
            except (RuntimeError, ImportError, OSError) as err:
                print(f"{system:24} {err}", flush=True)
                systems.remove(system)
                failed += 1
    print(f"{'system':24} {'moves':>5} {'median, s':>10} {'least':>7} {'most':>7} {'GB/s':>6}   load average {os.getloadavg()[0]:.1f} at the end")
    for name, took in seconds.items():
        middle = statistics.median(took)
        print(f"{name:24} {len(took):5} {middle:10.3f} {min(took):7.3f} {max(took):7.3f} {(args.megabytes << 20) / middle / 1e9:6.2f}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
