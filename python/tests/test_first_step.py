"""The first step of a process equals its n-th: what a process makes lazily, and what an optimizer begins with, is what an undisturbed run has by then."""

from __future__ import annotations

import copy
import json
import multiprocessing
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from conftest import Daemon

pytest.importorskip("torch")

import torch
from torch import nn, optim
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from ranks import Ranks
from registered import Registered
from replicad import Mismatch, Unsupported
from replicad._core import capsule
from replicad._torch.memory import Memory
from replicad._torch.objects import Objects
from replicad._torch.staging import Staging
from replicad.parallel import ddp, divides_alike

# -- gradients that are views of a bucket ---------------------------------------------------------------------------------

STEPS, AT = 8, 4


@pytest.fixture(scope="module")
def three() -> Iterator[Ranks]:
    with Ranks(3) as ranks:
        yield ranks


def _pair(rank: int, by: str, kept: bool, hook: bool = False) -> tuple[bytes, bytes]:
    """The weights after all steps, and those of a DDP that is made anew after some."""
    torch.manual_seed(rank)
    batches = torch.randn(STEPS, 8, 8)

    def made(state: Any) -> tuple[nn.Module, torch.optim.Optimizer, nn.Module]:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        if state:
            model.load_state_dict(state[0])
            optimizer.load_state_dict(state[1])
        options: dict[str, Any] = {"gradient_as_bucket_view": True}
        forward = ddp(model, **options) if by == "ddp" else nn.parallel.DistributedDataParallel(model, find_unused_parameters=True, **options)
        assert divides_alike(forward) is (by == "ddp")
        if hook:
            forward.register_comm_hook(None, default_hooks.allreduce_hook)
        return model, optimizer, forward

    def train(of: tuple[nn.Module, torch.optim.Optimizer, nn.Module], first: int) -> bytes:
        model, optimizer, forward = of
        for x in batches[first:]:
            optimizer.zero_grad(set_to_none=not kept)
            (forward(x) - x.sum(1, keepdim=True)).square().mean().backward()
            states.append(copy.deepcopy((model.state_dict(), optimizer.state_dict())))
            optimizer.step()
        return b"".join(p.detach().numpy().tobytes() for p in model.parameters())

    states: list[Any] = []
    whole = train(made(None), 0)
    return whole, train(made(states[AT]), AT)


@pytest.mark.filterwarnings("ignore:find_unused_parameters=True was specified")
@pytest.mark.parametrize(("by", "kept", "hook", "same"), [("ddp", True, False, True), ("ddp", False, False, True), ("ddp", True, True, True), ("hand", True, False, False)])
def test_gradients_that_are_views_are_scaled_alike(three: Ranks, by: str, kept: bool, hook: bool, same: bool) -> None:
    """DDP multiplies by 1/3 what it copies into a bucket, and divides by 3 what it finds there. The last row shows that the comparison can fail."""
    for whole, anew in three(_pair, by, kept, hook):
        assert (whole == anew) is same


# -- optimizers ---------------------------------------------------------------------------------------------------------------

#: Each of torch's optimizers with each option that changes what it keeps or which code it runs.
ADAMS: dict[str, dict[str, Any]] = {
    "": {},
    "amsgrad": {"amsgrad": True},
    "maximize": {"maximize": True, "weight_decay": 0.1},
    "foreach": {"foreach": True},
    "foreach amsgrad": {"foreach": True, "amsgrad": True, "weight_decay": 0.1},
    "fused": {"fused": True},
    "fused amsgrad": {"fused": True, "amsgrad": True, "maximize": True},
    "tensor lr": {"lr": torch.tensor(0.01), "foreach": False},
    "tensor betas": {"lr": torch.tensor(0.01), "betas": (torch.tensor(0.9), torch.tensor(0.99)), "capturable": True, "foreach": False},
    "capturable": {"capturable": True},
}
FOREACH: dict[str, dict[str, Any]] = {"": {}, "foreach": {"foreach": True}, "maximize": {"maximize": True, "weight_decay": 0.1}, "capturable": {"capturable": True}}
DECOUPLED: dict[str, dict[str, Any]] = {"decoupled": {"decoupled_weight_decay": True, "weight_decay": 0.1}, "foreach decoupled": {"decoupled_weight_decay": True, "foreach": True}}
TABLE: dict[str, dict[str, dict[str, Any]]] = {
    "SGD": {
        "": {},
        "momentum": {"momentum": 0.9},
        "nesterov": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
        "maximize": {"momentum": 0.9, "maximize": True},
        "foreach": {"momentum": 0.9, "foreach": True},
        "foreach nesterov": {"momentum": 0.9, "nesterov": True, "foreach": True},
        "fused": {"momentum": 0.9, "fused": True},
        "fused nesterov": {"momentum": 0.9, "nesterov": True, "fused": True, "weight_decay": 0.1},
        "dampening": {"momentum": 0.9, "dampening": 0.5},
    },
    "Adam": ADAMS | {"decoupled": {"decoupled_weight_decay": True, "weight_decay": 0.1}},
    "AdamW": ADAMS,
    "Adamax": FOREACH,
    "NAdam": FOREACH | DECOUPLED,
    "RAdam": FOREACH | DECOUPLED,
    "RMSprop": FOREACH
    | {"momentum": {"momentum": 0.9}, "centered": {"centered": True}, "all": {"momentum": 0.9, "centered": True, "weight_decay": 0.1}}
    | {"foreach all": {"momentum": 0.9, "centered": True, "foreach": True}},
    "Adagrad": {
        "": {},
        "begins": {"initial_accumulator_value": 0.3, "lr_decay": 0.1, "weight_decay": 0.1},
        "foreach": {"foreach": True},
        "fused": {"fused": True, "initial_accumulator_value": 0.3},
        "maximize": {"maximize": True},
    },
    "Adadelta": FOREACH,
    "ASGD": FOREACH | {"t0": {"t0": 2, "weight_decay": 0.1}},
    "Rprop": {option: more for option, more in FOREACH.items() if option != "maximize"} | {"maximize": {"maximize": True}},
    "Adafactor": {"": {}, "beta": {"beta2_decay": -0.5, "weight_decay": 0.1}, "foreach": {"foreach": True}, "maximize": {"maximize": True}},
    "Muon": {"": {}, "nesterov": {"nesterov": False, "momentum": 0.8}, "adjust": {"adjust_lr_fn": "match_rms_adamw"}},
    "SparseAdam": {"": {}, "maximize": {"maximize": True}},
}
ROWS = {f"{kind} {option}".strip(): (kind, more) for kind, options in TABLE.items() for option, more in options.items()}
#: Parameters: shape, type, and whether a gradient comes in a step.
KINDS: dict[str, tuple[tuple[int, ...], torch.dtype, Callable[[int], bool]]] = {
    "none": ((4, 0), torch.float32, lambda step: True),
    "one": ((1,), torch.float32, lambda step: True),
    "scalar": ((), torch.float32, lambda step: True),
    "matrix": ((5, 7), torch.float32, lambda step: True),
    "double": ((3,), torch.float64, lambda step: True),
    "complex": ((3, 2), torch.complex64, lambda step: True),
    "bf16": ((9, 3), torch.bfloat16, lambda step: True),
    "sparse": ((9, 3), torch.float32, lambda step: True),
    "large": ((130, 129), torch.float32, lambda step: True),  # 8-bit states begin at 4096 elements, factored ones at 128 rows
    "late": ((6, 2), torch.float32, lambda step: step > 3),
    "rests": ((6, 2), torch.float32, lambda step: step % 2 == 1),
    "never": ((6, 2), torch.float32, lambda step: False),
}
#: After which steps a process is replaced, and the last one.
FAULTS, LAST = (1, 2, 4), 6


class Trainee:
    """Parameters of one kind, beside a plain one that always trains, and their optimizer. ``seed``: what they begin with."""

    def __init__(self, row: str, kind: str, seed: int) -> None:
        self.kind = kind
        torch.manual_seed(seed)
        shape, dtype, self.comes = KINDS[kind]
        self.model = nn.ParameterDict({"it": nn.Parameter(torch.randn(shape, dtype=dtype)), "plain": nn.Parameter(torch.randn(2, 3))})
        name, options = ROWS[row]
        alone = name == "SparseAdam" or kind == "complex"
        params = [self.model["it"]] if alone else [*self.model.values()]
        self.optimizer = getattr(optim, name)(params, **{"lr": 0.01} | copy.deepcopy(options))

    def step(self, step: int) -> None:
        for key, p in self.model.items():
            generator = torch.Generator().manual_seed(100 * step + len(key))
            gradient = torch.randn(p.shape, dtype=p.dtype, generator=generator)
            if gradient.numel() > 2:
                gradient.view(-1)[:2] = torch.tensor([0.0, -0.0])
            if key == "it" and self.kind == "sparse":
                rows = torch.tensor([[step % 9, 2 * step % 9, 0]])
                gradient = torch.sparse_coo_tensor(rows, gradient[:3], p.shape, check_invariants=True)
            p.grad = gradient if key != "it" or self.comes(step) else None
        self.optimizer.step()

    def bits(self) -> dict[str, Any]:
        """What it is made of."""
        state = {f"{k}.{key}": v for k, p in self.model.items() for key, v in self.optimizer.state.get(p, {}).items()}
        groups = {f"{i}.{key}": v for i, g in enumerate(self.optimizer.param_groups) for key, v in g.items() if key != "params"}
        return {name: _bits(v) for name, v in {**dict(self.model), **state, **groups}.items()}


def _bits(v: Any) -> Any:
    if isinstance(v, (tuple, list)):
        return [_bits(x) for x in v]
    if isinstance(v, torch.Tensor) and v.is_sparse:
        v = v.to_dense()
    return (str(v.dtype), tuple(v.shape), bytes(v.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())) if isinstance(v, torch.Tensor) else v


Said = dict[str, Any]


def _undisturbed(row: str) -> dict[str, Said]:
    """By kind: what torch alone ends with, what a session does, and its captures; or why torch can't."""
    found: dict[str, Said] = {}
    for kind in KINDS:
        try:
            alone = Trainee(row, kind, 1)
            for step in range(1, LAST + 1):
                alone.step(step)
        except Exception as err:
            found[kind] = {"torch": f"{type(err).__name__}: {err}"}
            continue
        kept = Trainee(row, kind, 1)
        try:
            session = Registered(kept.model, kept.optimizer)
        except Unsupported as err:
            found[kind] = {"refused": str(err)}
            continue
        captures = {}
        try:
            for step in range(1, LAST + 1):
                kept.step(step)
                regions, values = session.read()
                captures[step] = regions, capsule.pack(values)
        except RuntimeError as err:
            found[kind] = {"failed": str(err)}
            continue
        found[kind] = {"alone": alone.bits(), "kept": kept.bits(), "captures": {at: captures[at] for at in FAULTS}}
    return found


def _replaced(row: str, at: int, captures: dict[str, tuple[dict[str, bytes], bytes]]) -> dict[str, Said]:
    """By kind: what a process ends with that begins otherwise, loads the capture of a step, and goes on."""
    found = {}
    for kind, (regions, values) in captures.items():
        new = Trainee(row, kind, 2)
        Registered(new.model, new.optimizer).load((regions, capsule.unpack(values)))
        for step in range(at + 1, LAST + 1):
            new.step(step)
        found[kind] = new.bits()
    return found


def _forked(fn: Callable[..., Any], *args: Any) -> Any:
    """What a function returns in a process of its own, which has none of torch's threads."""
    optim.SGD([torch.zeros(1)])  # torch imports its compiler with the first optimizer, which no fork is to do again
    ours, theirs = (fork := multiprocessing.get_context("fork")).Pipe()

    def run() -> None:
        torch.set_num_threads(1)
        torch.sparse.check_sparse_tensor_invariants.enable()  # torch warns where nothing is said of it
        theirs.send(fn(*args))

    process = fork.Process(target=run)
    process.start()
    theirs.close()
    try:
        return ours.recv()
    finally:
        process.join()


#: Of what torch does on this machine there is at least this much in a row: matrices, or what the row is about.
LEAST = {"SparseAdam": {"sparse"}, "SparseAdam maximize": {"sparse"}} | {row: {"matrix", "large", "rests", "never"} for row in ("SGD fused", "SGD fused nesterov")}


#: Further options of what other rows show: signs, and what a CPU does not take or computes as without.
FURTHER = ("maximize", "tensor betas", "capturable", "foreach")


@pytest.mark.parametrize("row", [pytest.param(row, marks=pytest.mark.long) if row.endswith(FURTHER) else row for row in ROWS])
def test_it_goes_on_as_it_would_have(row: str) -> None:
    """By kind of parameter: the same as without a fault, and as without a session."""
    of = _forked(_undisturbed, row)
    options = ROWS[row][1]
    refused = {kind: said["refused"] for kind, said in of.items() if "refused" in said}
    if "dampening" in options:
        assert refused.keys() == KINDS.keys() - {"sparse"} or refused.keys() == KINDS.keys()
        assert all("SGD with dampening" in text for text in refused.values())
        return
    assert refused == {}
    assert [kind for kind, said in of.items() if "failed" in said] == (["sparse"] if options.get("nesterov") and not options.get("weight_decay") else [])
    ran = {kind: said for kind, said in of.items() if "kept" in said}
    if "capturable" not in options or ran:  # older and newer torch let a CPU be captured
        assert ran.keys() >= LEAST.get(row, {"matrix", "large", "late", "rests", "never"}), of
    for kind, said in ran.items():
        if kind != "sparse" or not options.get("momentum"):  # torch's momentum would be sparse, and add up in another order
            assert {k: said["kept"][k] for k in said["alone"]} == said["alone"], kind
    for at in FAULTS if ran else ():
        got = _forked(_replaced, row, at, {kind: said["captures"][at] for kind, said in ran.items()})
        for kind, said in ran.items():
            assert got[kind] == said["kept"], (kind, at)


def test_nesterov_over_sparse_gradients_is_refused() -> None:
    model = nn.ModuleDict({"words": nn.Embedding(9, 4, sparse=True), "head": nn.Linear(4, 2)})

    def made(optimizer: Any) -> Objects:
        return Objects({"model": model, "optimizer": optimizer}, lambda name: False, True)

    nesterov = {"lr": 0.1, "momentum": 0.9, "nesterov": True}
    with pytest.raises(Unsupported, match=r"optim: SGD with nesterov=True over model\.words\.weight, whose gradients are sparse.*nesterov=False or to torch\.optim\.SparseAdam"):
        made(optim.SGD(model.parameters(), **nesterov))
    made(optim.SGD([{"params": model["head"].parameters()}, {"params": model["words"].parameters(), "nesterov": False}], **nesterov))  # the remedies
    made([optim.SGD(model["head"].parameters(), **nesterov), optim.SparseAdam(model["words"].parameters())])


@pytest.mark.parametrize("name", ["model.it", "optim.model.it.exp_avg"])
def test_what_is_resized_is_refused_by_name(name: str) -> None:
    model = nn.ParameterDict({"it": nn.Parameter(torch.ones(3, 2)), "plain": nn.Parameter(torch.ones(2))})
    optimizer = optim.AdamW(model.parameters())
    memory = Memory(Staging(Objects({"model": model, "optimizer": optimizer}, lambda name: False, True).leaves, False, {}))
    memory.check()
    if name == "model.it":
        model["it"].data = torch.ones(5, 2)
    else:
        optimizer.state[model["it"]]["exp_avg"].resize_(5, 2)
    with pytest.raises(Mismatch, match=rf"{name} \(shape \(5, 2\), was \(3, 2\)\): it is laid out otherwise than when the session was made"):
        memory.check()


# -- a job of all kinds -----------------------------------------------------------------------------------------------------

PROGRAM = """
import hashlib, json, os, signal, sys
import torch
from torch import nn
import replicad

last, kills, none = 8, json.loads(sys.argv[1]), sys.argv[2] == "none"
torch.set_num_threads(1)
torch.manual_seed(1)
torch.sparse.check_sparse_tensor_invariants.enable()
shapes = {"empty": (4, 0), "one": (1,), "scalar": (), "matrix": (5, 7), "large": (130, 129), "late": (6, 2), "rests": (6, 2)}
model = nn.ParameterDict({k: nn.Parameter(torch.randn(shape)) for k, shape in shapes.items()})
model["complex"] = nn.Parameter(torch.randn(3, 2, dtype=torch.complex64))
model["bf16"] = nn.Parameter(torch.randn(9, dtype=torch.bfloat16))
words, more = nn.Embedding(9, 4, sparse=True), nn.Embedding(9, 4, sparse=True)
plain = [p for k, p in model.items() if k != "complex"]
optimizers = [
    torch.optim.AdamW(plain, lr=0.01, weight_decay=0.1),
    torch.optim.Adam([model["complex"]], lr=0.01),
    torch.optim.SGD(more.parameters(), lr=0.01, momentum=0.9),
    torch.optim.SparseAdam(words.parameters(), lr=0.01),
]
with replicad.Session(model=[model, words, more], optimizer=optimizers) as session:
    at = session.resume()
    kill = next((k for k in kills if k > at), 0)
    for step in range(at + 1, last + 1):
        for o in optimizers:
            o.zero_grad(set_to_none=none)
        used = [k for k in model if not (k == "late" and step < 4 or k == "rests" and step % 3 != 1)]
        rows = torch.randint(9, (4,))
        loss = sum((model[k].abs().float() * (1 + torch.rand(()))).square().sum() for k in used) + (words(rows) * more(rows)).sum()
        loss.backward()
        with session.step():
            for o in optimizers:
                o.step()
        if step == kill:
            session.commit()
            print("KILLED", step, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
    whole = hashlib.sha256()
    for region in session._kept.table():
        if not region.name.startswith("replicad."):
            whole.update(region.keep.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    print("RESULT", whole.hexdigest(), flush=True)
    print("NOTICED", json.dumps(session.noticed), flush=True)
"""


@pytest.mark.parametrize(("none", "kills"), [pytest.param("none", [1, 2, 5], id="none"), pytest.param("zeros", [2, 5], id="zeros that stay")])
def test_a_job_of_all_kinds(daemon: Daemon, none: str, kills: list[int]) -> None:
    """Killed after the first, second and fifth step. In the third one a part rests that has a gradient of zeros if the loop keeps gradients, and moves by weight decay."""
    jobs = [daemon.run(PROGRAM, json.dumps(at), none) for at in ([], kills)]
    outs = [job.done() for job in jobs]
    assert [re.findall(r"KILLED (\d)", out) for out in outs] == [[], [str(k) for k in kills]]
    (whole,), (anew,) = ([*re.findall(r"RESULT (\w+)", out)] for out in outs)
    assert whole == anew
    assert all("NOTICED {}" in out for out in outs)


def test_what_is_not_known_in_the_first_step_is_said(daemon: Daemon) -> None:
    """Whether a loop keeps gradients shows when the second step begins. A process that begins with it is told in the third, where it matters."""
    out = daemon.run(PROGRAM, "[1]", "zeros").done()
    assert re.search(r'NOTICED {"gradients": "model\.0\.rests had no gradient in step 2, with which this process began, and a gradient of zeros', out), out
