"""What a session keeps, who else has it, what it lacks, and whether a restarted run will be bit-equal: before training.

:func:`explain` looks at a session's parts and at torch's settings. It asks no other rank and no daemon.
"""

from __future__ import annotations

import gc
import inspect
import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.swa_utils import AveragedModel

from .. import data, rng
from .._core import preloading, rngcodec
from ..parallel import divides_alike
from . import conversion, device
from .groups import derive, flag
from .lacking import Verdict, alive, missing, seeded_by_loaders
from .lacking import kind as _class
from .optimizers import doubts
from .tensors import some
from .wrappers import clean, flat_parameters, fsdp1, on_groups, within_fsdp

if TYPE_CHECKING:
    from .._core.region import Region
    from .parts import Parts

__all__ = ["Copies", "Explanation", "Groups", "Kept", "Verdict", "explain"]


@dataclass(frozen=True)
class Kept:
    """Regions of one kind: how many, their bytes on this rank, ``when`` they are copied ("each step", "once") and ``whose`` they are: "group",
    equal on all ranks of the replica group, or "rank", each rank's own."""

    what: str
    count: int
    bytes: int
    when: str
    whose: str


@dataclass(frozen=True)
class Groups:
    """The replica group of each rank: ``derived`` from the model's layout (None where this rank can't know all), and ``given`` by the launcher
    (None where it didn't say). ``members`` are the ranks that hold the same bytes as this one. ``verdict`` compares the two."""

    derived: tuple[int, ...] | None
    given: tuple[int, ...] | None
    members: tuple[int, ...] | None
    reason: str
    verdict: Verdict


@dataclass(frozen=True)
class Copies:
    """Where else in memory what is captured each step will be: ``replicas`` other ranks compute the group's part themselves (None: not known),
    and ``mirrored`` bytes of each step are sent to every node that holds a mirror."""

    replicas: int | None
    mirrored: int
    reason: str


@dataclass(frozen=True)
class Memory:
    """What the session takes of this node's memory: the arena, of which :meth:`replicad.Session.resume` takes every page at once, and the stages of
    tensors that are copied there by way of host memory (made with the session)."""

    slots: int  #: places for the group's part of a step
    arena: int
    stages: int
    least: int  #: of the arena, with --slots 2
    mirror: int  #: what a node takes for each rank like this one that it mirrors


@dataclass(frozen=True)
class Explanation:
    """What :meth:`replicad.Session.explain` found. ``print`` it, or take :meth:`as_dict`."""

    rank: int
    world: int
    groups: Groups
    kept: tuple[Kept, ...]
    copies: Copies
    memory: Memory
    data: tuple[str, ...]  #: what says which samples come next, by class
    generators: tuple[str, ...]
    extra: tuple[str, ...]
    missing: tuple[Verdict, ...]  #: what a restart would not have; none of these keeps the job from running, and none lets it be bit-exact
    advice: tuple[Verdict, ...]  #: what is right as it is, and might be cheaper or clearer
    exact: tuple[Verdict, ...]  #: what decides whether a restarted run is bit-equal to an undisturbed one

    @property
    def capture_bytes(self) -> int:
        """Copied on this rank at each step."""
        return sum(k.bytes for k in self.kept if k.when == "each step")

    @property
    def bit_exact(self) -> bool | None:
        """Whether a run that loses ranks will end with the same bits: None where something is not known."""
        verdicts = {v.ok for v in self.exact}
        return False if False in verdicts else None if None in verdicts else True

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self) | {"capture_bytes": self.capture_bytes, "bit_exact": self.bit_exact}

    def __str__(self) -> str:
        return "\n".join(_text(self))


def explain(parts: Parts) -> Explanation:
    """What a session of these ``parts`` keeps. It may be called at any time; before :meth:`replicad.Session.resume` it finds what can be mended cheaply."""
    table = parts.regions()
    groups = _groups(parts, _bytes(r for r in table if not r.private and r.changes != "never"))
    live = alive()
    lacks = tuple(missing(parts.objects, live))
    return Explanation(
        rank=parts.rank.number,
        world=parts.rank.world,
        groups=groups,
        kept=tuple(_kept(parts, table)),
        copies=(copies := _copies(groups, table)),
        memory=_memory(parts, table, copies),
        data=tuple(_class(o) for o in parts.objects.data.values()),
        generators=tuple(rngcodec.where(r.place, r.name) for r in rngcodec.parse(rng.get())) if parts.objects.keep_rng else (),
        extra=tuple(parts.objects.extra),
        missing=lacks,
        advice=tuple(_advice(parts)),
        exact=tuple(_exact(parts, groups, live, lacks)),
    )


def _bytes(table: Iterable[Region]) -> int:
    return sum(r.nbytes for r in table)


# -- what is kept, and who has it ---------------------------------------------------------------------------------------


def _groups(parts: Parts, shared: int) -> Groups:
    rank = parts.rank
    derived = derive(rank.world, [s.spread for s in parts.sharded])
    given = rank.groups
    known = derived or given
    members = None if known is None else tuple(r for r, g in enumerate(known) if g == known[rank.number])
    shards = [s for s in parts.sharded if len(set(s.spread)) > 1]
    if shards:
        ways = sorted({f"{', '.join(s.placements)} over a mesh of {'x'.join(map(str, s.mesh))}" for s in shards})
        reason = f"{len(shards)} tensor{' is' if len(shards) == 1 else 's are'} sharded: {'; '.join(ways[:3])}{' ...' if len(ways) > 3 else ''}"
    else:
        reason = "no tensor is sharded: every rank holds all of the state"
    if derived is None:
        reason += "; which part ranks outside of this rank's mesh hold can't be known here"
    if rank.auto and shards:
        verdict = Verdict("groups", True, "the ranks name their groups (--groups auto)")
    elif rank.auto:
        verdict = Verdict(
            "groups",
            None,
            "the ranks name their groups (--groups auto), and as no tensor is sharded they are all in one",
            "right where all compute the same; ranks with other parts of a model (pipeline stages) need --groups by number",
        )
    elif given is None:
        verdict = Verdict("groups", None, "the launcher did not say the groups of all ranks: they are checked as far as the ranks' regions differ")
    elif derived is None:
        verdict = Verdict("groups", None, f"{flag(given)} fits what is known of the meshes here")
    elif _finer(given, derived):
        verdict = Verdict(
            "groups",
            True,
            f"{flag(given)} tells ranks apart that hold the same bytes: {_size(shared)} a step are sent to mirrors though another rank has them",
            f"start the job with {flag(derived)}",
        )
    else:  # too coarse is refused when the session is made
        verdict = Verdict("groups", True, "the given groups are the model's")
    return Groups(derived, given, members, reason, verdict)


def _finer(given: tuple[int, ...], derived: tuple[int, ...]) -> bool:
    return len(set(given)) > len(set(derived))


def _kept(parts: Parts, table: list[Region]) -> Iterator[Kept]:
    kinds: dict[tuple[str, str, str], list[Region]] = {}
    for r in table:
        if r.name.startswith("replicad."):
            what = "layout" if r.changes == "never" else "small values"
        elif any(r.name.startswith(f"{o}.") for o in parts.objects.optimizers):
            what = "optimizer state"
        else:
            what = {"window": "parameters", "never": "frozen parameters"}.get(r.changes, "buffers")
        kinds.setdefault((what, "once" if r.changes == "never" else "each step", "rank" if r.private else "group"), []).append(r)
    for (what, when, whose), found in kinds.items():
        yield Kept(what, len(found), _bytes(found), when, whose)


def _copies(groups: Groups, table: list[Region]) -> Copies:
    step = [r for r in table if r.changes != "never"]
    own, shared = _bytes(r for r in step if r.private), _bytes(r for r in step if not r.private)
    held = groups.given or groups.derived
    group = None if held is None or groups.members is None else [r for r in groups.members if held[r] == held[groups.members[0]]]
    if group is None:
        return Copies(None, own, "who has the group's part is not known here; the rank's own goes to mirrors on other nodes")
    others = len(group) - 1
    if others == 0:
        return Copies(0, own + shared, "no other rank has this one's state: all of it goes to mirrors on other nodes")
    who = f"{others} other rank{'s compute' if others > 1 else ' computes'} the group's part too"
    return Copies(others, own, f"{who}, and mirrors hold it where they share this node; the rank's own part goes to mirrors on other nodes")


#: Places for the group's part where no launcher says how many, and those for a rank's own part beyond as many.
SLOTS, OWN = 4, 7
#: Copies of what may change at any time, beside the slots.
AT_ANY_TIME = 2


def _memory(parts: Parts, table: list[Region], copies: Copies) -> Memory:
    slots = os.environ.get("REPLICAD_SLOTS", "")
    given = int(slots) if slots in ("2", "3", "4") else SLOTS
    shared, own = ([r for r in table if r.private is private and r.changes != "never"] for private in (False, True))
    frozen, volatile = _bytes(r for r in table if r.changes == "never"), AT_ANY_TIME * _bytes(r for r in shared if r.changes == "any")

    def arena(n: int) -> int:
        return n * _bytes(shared) + (n + OWN) * _bytes(own) + frozen + volatile

    mirror = (SLOTS + OWN) * _bytes(own) + (given * _bytes(shared) + frozen if copies.replicas == 0 else 0)
    return Memory(given, arena(given), parts.staging.nbytes, arena(2), mirror)


# -- what is right as it is, and what might be better -----------------------------------------------------------------


def _advice(parts: Parts) -> Iterator[Verdict]:
    for (kept, live), names in parts.staging.converted.items():
        yield Verdict(
            "kept_dtype",
            True,
            f"{len(names)} tensors are {conversion.name(kept)} in the copies and {conversion.name(live)} here, so that copies are {kept.itemsize // live.itemsize} times as large",
            "a new job that is begun without kept_dtype has smaller copies",
        )
    if follow := parts.objects.follow:
        yield Verdict("derived", True, f"{some(follow)}: in no copy, and made anew from others after each load")
    models, optimizers = parts.objects.models, parts.objects.optimizers
    for name, o in optimizers.items():
        unknown = sum(id(p) not in parts.objects.names for g in o.param_groups for p in g["params"])
        if unknown and not parts.objects.follow:  # else the model's follow from these
            yield Verdict(name, False, f"{unknown} of its parameters are of no registered model: they are kept by their place in it", "pass the model they are of, too")
    yield from _unaborted()
    if not optimizers or _flat(models):
        return
    held = {id(p) for o in optimizers.values() for g in o.param_groups for p in g["params"]}
    trained = {id(p): parts.objects.names[id(p)] for model in models.values() if not isinstance(model, AveragedModel) for p in model.parameters() if p.requires_grad}
    if loose := [name for i, name in trained.items() if i not in held and name not in parts.objects.follow]:
        yield Verdict(
            "parameters",
            False,
            f"{_some(loose)} ask for a gradient, but no registered optimizer has them: they are copied at each step",
            "right for an average of weights; else pass every optimizer, or call requires_grad_(False) on what never changes: it is then kept once",
        )


#: What runs collectives that torch.distributed does not know, by a module that is loaded only to use it.
_ASIDE = {
    "torch.distributed._symmetric_memory._nvshmem_triton": "NVSHMEM",
    "nvshmem": "NVSHMEM",
    "deep_ep": "DeepEP",
}


def _symmetric() -> bool:
    """Whether a group has symmetric memory, as far as torch notes that. Its module is loaded with much else."""
    module = sys.modules.get("torch.distributed._symmetric_memory")
    return any(getattr(module, groups, None) for groups in ("_group_name_to_store", "_group_name_to_workspace_tensor"))


def _unaborted() -> Iterator[Verdict]:
    """What of a device a restart inside of the process does not see to by itself."""
    kind = device.graphs()
    objects = gc.get_objects() if kind is not None else []
    if n := sum(kind in type(o).__mro__ for o in objects):
        yield Verdict(
            "graphs",
            None,
            f"{n} CUDA graph{'s are' if n > 1 else ' is'} there: a restart in process resets those that its block captured, and leaves others as they are; NCCL's abort waits for "
            "one that has collectives in it",
            "capture inside of the block what has collectives in it",
        )
    if found := sorted({name for module, name in _ASIDE.items() if module in sys.modules} | ({"torch's symmetric memory"} if _symmetric() else set())):
        yield Verdict(
            "collectives",
            None,
            f"{', '.join(found)} {'are' if len(found) > 1 else 'is'} in use: a restart in process aborts torch's process groups alone, and a kernel of theirs "
            "that waits for a lost peer runs until the process is killed",
            "where the job uses it, a part of your own that ends it: wrap(session, abort=[part, *default_abort()])",
        )


def _flat(models: dict[str, Any]) -> bool:
    """Whether FSDP1 holds parameters: an optimizer may have other views of them than the model names."""
    return any(True for model in models.values() for _ in fsdp1(model))


def _some(names: list[str]) -> str:
    return f"{len(names)} parameters ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})" if len(names) > 1 else f"the parameter {names[0]}"


def _own_generators(parts: Parts, live: dict[str, list[Any]]) -> list[Any]:
    """Those of numpy and torch that the program made and that nothing here is known to keep. torch's are no containers, so that the collector knows only who holds them."""
    numpy = sys.modules.get("numpy.random")
    kinds: frozenset[type] = frozenset((torch.Generator, *((numpy.Generator, numpy.RandomState) if numpy else ())))
    objects = preloading.objects()
    frame = inspect.currentframe()
    while frame is not None and frame.f_back is not None:  # what a running function holds is with nobody else
        frame = frame.f_back
        objects.append(frame)
    found = {id(x): x for x in (*(o for o in objects if type(o) in kinds), *(x for _, x in preloading.holders(objects, kinds)))}
    kept = [torch.default_generator, *_of_devices(), *((numpy.mtrand._rand,) if numpy else ())]
    kept += seeded_by_loaders(live)
    kept += parts.objects.implicit.generators()
    kept += [x for o in parts.objects.data.values() for x in getattr(o, "__dict__", {}).values()]
    return [g for g in found.values() if not rng.added(g) and not any(g is k for k in kept)]


def _of_devices() -> list[Any]:
    """The devices' own generators: those that the session keeps, and those of devices that this process does not use. One of another device that it draws on is in no copy."""
    if not device.ready():
        return []
    kept = rng.session_devices() if rng.session_devices is not None else range(device.cuda.device_count())
    lost = {*device.used()} - {*kept}
    return [g for i, g in enumerate(device.cuda.default_generators) if i not in lost]


# -- whether it is bit-exact --------------------------------------------------------------------------------------------


def _exact(parts: Parts, groups: Groups, live: dict[str, list[Any]], lacks: tuple[Verdict, ...]) -> Iterator[Verdict]:
    if lacks:
        yield Verdict("missing", False, f"what a restart would not have ({', '.join(v.what for v in lacks)}) begins anew", "see missing, above")
    yield from _sums(parts, groups, live["ddp"])
    devices = {leaf.local.device.type for leaf in parts.objects.leaves}
    if "cuda" in devices:
        yield from _cuda()
    if "cpu" in devices:
        n = torch.get_num_threads()
        one = n == 1
        yield Verdict(
            "threads",
            True,
            "one thread computes" if one else f"{n} threads share sums on the CPU: a replacement must have as many",
            "" if one else f"where nodes differ, set OMP_NUM_THREADS={n} on all of them",
        )
    for name, o in parts.objects.optimizers.items():
        yield from (Verdict(name, None, text) for text in doubts(o))
    if parts.objects.keep_rng:
        yield Verdict("generators", True, "those that are listed are kept as they were when the step began")
        if own := _own_generators(parts, live):
            kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(Counter(map(_class, own)).items()))
            yield Verdict(
                "generators",
                None,
                f"{kinds} of the program's own: what they draw begins anew, unless something that is registered keeps them",
                "replicad.rng.add(name, generator) for what draws in the training loop",
            )
    else:
        yield Verdict("generators", False, "they are not kept (keep_rng=False)", "leave keep_rng out")
    ours = [isinstance(o, data.Loader) for o in parts.objects.data.values()]
    if not ours:
        yield Verdict("data", False, "nothing says which samples come next", "pass data=")
    elif all(ours):
        yield Verdict("data", True, "replicad.data.Loader goes on at the batch after the last that it handed out, with the same samples and augmentations")
    else:
        yield Verdict("data", None, "whether the loader goes on bit for bit is its own affair", "replicad.testing.check_resume tells; replicad.data.Loader does")
    if renormalised := sorted(parts.renormalised):
        yield Verdict(
            "max_norm",
            False,
            f"forwards renormalise {some(renormalised)} while the last step is copied, and each rank the rows that its own batch has: the copy can have it in part",
            "leave max_norm out; inside of `with session.step()`: `with torch.no_grad(): weight.renorm_(norm_type, 0, max_norm)`",
        )
    for text, name in {text: name for name, text in reversed(parts.noticed.items())}.items():  # one may speak of many tensors
        yield Verdict(name, False, text)


def _sums(parts: Parts, groups: Groups, wrappers: list[Any]) -> Iterator[Verdict]:
    """The order in which gradients are added up over ranks."""
    what = "sums over ranks"
    trained = {name: [p for p in m.parameters() if p.requires_grad] for name, m in parts.objects.models.items() if not isinstance(m, AveragedModel)}
    of_us = {id(p) for parameters in trained.values() for p in parameters}
    ours = [w for w in wrappers if any(id(p) in of_us for p in w.parameters())]
    summed = {id(p) for w in ours for p in w.parameters()}
    rest = {name: parts.objects.models[name] for name, parameters in trained.items() if any(id(p) not in summed for p in parameters)}
    pinned = "replicad.parallel.ddp(model): its buckets stay as they are first laid out"
    for w in ours:
        yield from _hooks(w)
        n = torch.distributed.get_world_size(w.process_group)
        if n < 3:
            yield Verdict(what, True, f"DDP over {n} rank{'s' if n > 1 else ''}: the order of so few terms makes no difference")
        elif w.static_graph or not w.find_unused_parameters:
            how = "static_graph=True" if w.static_graph else "find_unused_parameters=False"
            yield Verdict(
                what,
                False,
                f"DDP over {n} ranks lays its buckets out anew after its first step ({how}): a process that was started again adds that step up in another order",
                f"wrap the model with {pinned}",
            )
        elif not divides_alike(w):
            yield Verdict(
                what,
                None,
                f"DDP over {n} ranks with gradient_as_bucket_view=True: the first step of each process multiplies gradients by 1/{n}, and a step that finds gradients in the "
                f"buckets (zero_grad(set_to_none=False), or none at all) divides them by {n}, which rounds differently",
                "wrap the model with replicad.parallel.ddp(model, gradient_as_bucket_view=True): it divides in each step; or leave zero_grad() at set_to_none=True in every step",
            )
        else:
            yield Verdict(what, True, f"DDP over {n} ranks keeps its buckets as they were first laid out")
    if ours and (not rest or parts.rank.world < 3):
        return
    if parts.rank.world < 3:
        yield Verdict(what, True, "one rank adds nothing up" if parts.rank.world == 1 else "the order of two terms makes no difference")
    elif _layout_sums(parts, rest):
        yield Verdict(what, True, "shards are summed by tensor, in the same layout in every process")
    else:
        laid = any(on_groups(m) for m in rest.values())
        of = f"all of {some(list(rest))}" if ours else "this model"
        yield Verdict(
            what,
            None,
            f"{parts.rank.world} ranks, and no DistributedDataParallel of {of} is made yet{', nor are all of its parameters laid over all ranks' if laid else ''}",
            f"{'where gradients are summed over replicas, ' if laid else ''}wrap the model first, with {pinned}; then call session.explain() again",
        )


def _layout_sums(parts: Parts, models: Mapping[str, Any]) -> bool:
    """Whether all gradients of these models are summed by what lays the parameters over the ranks: FSDP over all of them, or nothing over replicas, as there is but one.
    A sharded optimizer sums none, nor does a mesh whose twins are beside it: those are DDP's."""
    laid = {s.name: s for s in parts.sharded if math.prod(s.mesh) == parts.rank.world}
    found = []
    for name, model in models.items():
        flat = {i: key for key, _, ids in flat_parameters(model) for i in ids}
        fsdp = within_fsdp(model)
        found += [(laid.get(f"{name}.{flat.get(id(p)) or clean(model, key)}"), id(p) in fsdp) for key, p in model.named_parameters() if p.requires_grad]
    one = any(s is not None and len(set(s.spread)) == parts.rank.world for s, _ in found)
    return bool(found) and all(s is not None and (summed or one) for s, summed in found)


def _hooks(wrapper: Any) -> Iterator[Verdict]:
    """Communication hooks of DDP that carry something over from step to step (PowerSGD's errors): it is in the process alone."""
    for hook, state in wrapper._comm_hooks:
        internal = type(state).__module__.endswith("mixed_precision_hooks")  # DDP's own, which carries nothing over
        if state is None or internal or isinstance(state, torch.distributed.ProcessGroup):
            continue
        yield Verdict(
            "communication hook",
            False,
            f"what {getattr(hook, '__name__', _class(hook))} carries from step to step in its {type(state).__name__} is not kept: it would begin anew",
            "use one that carries nothing over: fp16_compress_hook, bf16_compress_hook",
        )


def _cuda() -> Iterator[Verdict]:
    if torch.backends.cudnn.benchmark:
        yield Verdict("cudnn", False, "torch.backends.cudnn.benchmark picks convolutions by how fast they were in this process", "torch.backends.cudnn.benchmark = False")
    if not torch.are_deterministic_algorithms_enabled():
        yield Verdict("cuda", None, "kernels may add with atomics, in an order that changes from run to run", "torch.use_deterministic_algorithms(True)")
    elif os.environ.get("CUBLAS_WORKSPACE_CONFIG") not in (":4096:8", ":16:8"):
        yield Verdict("cublas", None, "matrix products may use other workspaces", "set CUBLAS_WORKSPACE_CONFIG=:4096:8 in the environment")
    else:
        yield Verdict("cuda", True, "deterministic algorithms are on")


# -- as text ------------------------------------------------------------------------------------------------------------

_MARK: dict[bool | None, str] = {True: "yes", False: "NO", None: "?"}


def _size(n: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.1f} TiB"


def _text(e: Explanation) -> Iterator[str]:
    width = 11

    def section(title: str, lines: Iterable[str]) -> Iterator[str]:
        for i, line in enumerate(lines):
            yield f"{title if i == 0 else '':{width}}{line}".rstrip()

    def verdicts(found: Iterable[Verdict], mark: Callable[[Verdict], str]) -> Iterator[str]:
        for v in found:
            yield f"{mark(v)}{v.what}: {v.reason}"
            if v.remedy:
                yield f"{' ' * len(mark(v))}-> {v.remedy}"

    yield f"rank {e.rank} of {e.world}"
    g = e.groups
    groups = [flag(g.derived) if g.derived is not None else "not known", g.reason]
    if g.members is not None and len(g.members) > 1:
        groups.append(f"ranks {', '.join(map(str, g.members))} hold the same bytes")
    groups.append(g.verdict.reason)
    if g.verdict.remedy:
        groups.append(f"-> {g.verdict.remedy}")
    yield from section("groups", groups)
    rows = [(k.what, str(k.count), _size(k.bytes), k.when, {"group": "equal in the group", "rank": "the rank's own"}[k.whose]) for k in e.kept]
    rows.append(("in all", str(sum(k.count for k in e.kept if k.when == "each step")), _size(e.capture_bytes), "each step", ""))
    wide = [max(len(r[i]) for r in rows) for i in range(5)]
    yield from section("kept", (f"{a:{wide[0]}}  {b:>{wide[1]}}  {c:>{wide[2]}}  {d:{wide[3]}}  {w}" for a, b, c, d, w in rows))
    yield from section("copies", [*e.copies.reason.split("; "), f"{_size(e.copies.mirrored)} a step to each mirror"])
    m = e.memory
    memory = [f"{_size(m.arena)} of this node's for the copies: {m.slots} slots, what is kept once, the rank's own" + (f"; {_size(m.least)} with --slots 2" if m.slots > 2 else "")]
    memory.append(f"{_size(m.mirror)} for each rank like this one that this node mirrors, of other nodes")
    if m.stages:
        memory.append(f"{_size(m.stages)} for stages of tensors that do not lie in host memory where they are copied from")
    yield from section("memory", memory)
    yield from section("data", e.data or ["none"])
    yield from section("generators", [", ".join(e.generators) or "none"])
    if e.extra:
        yield from section("extra", [", ".join(e.extra)])
    yield from section("missing", list(verdicts(e.missing, lambda v: "")) or ["nothing"])
    if e.advice:
        yield from section("advice", verdicts(e.advice, lambda v: ""))
    yield from section(
        "bit-exact",
        [_MARK[e.bit_exact] + ("  not known yet: what is marked with ? below decides" if e.bit_exact is None else ""), *verdicts(e.exact, lambda v: f"{_MARK[v.ok]:4}")],
    )
