"""State that no one has given: what modules, callbacks, collators and datasets carry from step to step in plain attributes.

Which attributes those are is what their classes' code says (:mod:`replicad._torch.attributes`) and, of those, which are no longer what they were when the session was made. What
is small is kept with the rank's own values, and put back twice: when it is loaded, and where the loop goes on, as programs make objects in between. The rest is named.
"""

from __future__ import annotations

import contextlib
import inspect
import operator
import weakref
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch

from .. import rng
from .._core import draws
from . import attributes, loaders, values
from .slots import Cell, Drawn, Slot
from .wrappers import clean

__all__ = ["ALL", "Implicit"]

#: So many bytes may all of a rank's take, and with what a capsule writes around them.
ALL, ROOM = 1 << 20, 2 << 20
#: New objects are looked for when so many steps are over, and each so many.
LOOKS, ROUND = frozenset((1, 4, 16, 64)), 256
#: So deep, and at so many objects of the program's own, is looked from one that holds them.
DEPTH, OBJECTS = 6, 512
_TORCHS = frozenset(vars(torch.nn.Module()))
_SAME: Callable[[Any, Any], bool] = operator.is_
_VERSION: Callable[[Any], int] = operator.attrgetter("_version")
_SKIPPED = ("torch.nn.parallel", "torch.distributed", "torch.nn.modules.container", "torch.optim.swa_utils")


class Implicit:
    """What hangs on a session's models, on what feeds it, and on what its objects say that they hold (a method ``holders`` of one in ``data`` or ``extra``)."""

    def __init__(self, objects: Any, before: Implicit | None = None) -> None:
        self._of = weakref.ref(objects)  # which has this
        self.slots: dict[str, Slot | Drawn] = {}
        self._moved: dict[str, Slot | Drawn] = {}
        self._loaded: Mapping[str, Any] = {}
        self._said: list[tuple[str, str]] = []
        self._named: set[str] = set()
        self._steps = 0
        self._ahead = tuple(f"{name}." for name, o in self._objects.data.items() if _workers(o)) or ("\0",)  #: below these workers count
        self._memory: set[int] | None = None
        self.taken = 0  #: bytes of the last tree
        self._program = self._read_program()
        self._find(first=True)
        for name, slot in () if before is None else before.slots.items():  # an object that stays began as it began
            now = self.slots.get(name)
            if isinstance(now, Slot) and isinstance(slot, Slot) and now.held is slot.held:
                self.slots[name] = slot
            if isinstance(now, Drawn) and isinstance(slot, Drawn) and now.generator is slot.generator:
                self.slots[name] = slot
        self._sort()
        #: Room for it in the rank's own values: by what there may be, which all ranks must have alike.
        self.reserve = ROOM if self._holders() or any(isinstance(s, Drawn) or not (s.there and values.plain(s.base)) or s.base is None for s in self.slots.values()) else 0

    # -- what there is ------------------------------------------------------------------------------------------------------

    @property
    def _objects(self) -> Any:
        return self._of()

    @staticmethod
    def _read_program() -> frozenset[str]:
        found: dict[int, CodeType] = {id(c): c for c in attributes.programs(inspect.currentframe())}
        return frozenset(n for c in found.values() for n in attributes.loaded(c))

    def _holders(self) -> list[Any]:
        return [
            h for o in (*self._objects.data.values(), *self._objects.extra.values()) if (h := getattr(type(inner := getattr(o, "obj", o)), "holders", None)) is not None and inner
        ]

    def _roots(self, all_: bool = True) -> Iterator[tuple[str, Any]]:
        """What may carry something, by name; torch's own modules only with ``all_``: they get nothing new."""
        objects = self._objects
        for name, model in objects.models.items():
            for prefix, m in model.named_modules() if all_ else self._mine[name]:
                yield name + attributes.written(f".{clean(model, prefix)}" if prefix else ""), m
        for name, o in objects.data.items():
            yield from _feeding(name, o)
        for o in (*objects.data.values(), *objects.extra.values()):
            inner = getattr(o, "obj", o)
            if getattr(type(inner), "holders", None) is not None:
                yield from inner.holders().items()

    def _elsewhere(self) -> list[Callable[[Any], bool]]:
        """What objects say that they keep by themselves."""
        inner = [getattr(o, "obj", o) for o in self._objects.extra.values()]
        return [o.keeps for o in inner if getattr(type(o), "keeps", None) is not None]

    def _find(self, first: bool = False) -> None:
        """Looks for what may carry something; what was known stays."""
        if first:
            self._mine = {
                name: [(p, m) for p, m in model.named_modules() if type(m).__module__.partition(".")[0] not in draws.LIBRARIES] for name, model in self._objects.models.items()
            }
            self._modules = {id(m) for model in self._objects.models.values() for m in model.modules()}
        objects, elsewhere = self._objects, self._elsewhere()
        given = {id(o) for of in (objects.optimizers, objects.schedulers, objects.scalers, objects.data, objects.extra) for o in of.values()}
        seen: set[int] = set()
        for name, root in self._roots(first):
            for path, o in self._walk(name, root, given, self._modules, seen):
                if id(o) in seen or any(keeps(o) for keeps in elsewhere):
                    continue
                seen.add(id(o))
                self._variables(path, o) if type(o) is FunctionType else self._attributes(path, o)
        if objects.keep_rng:
            for path, g in _generators(objects, self._roots(False), first):
                if path not in self.slots and not any(isinstance(s, Drawn) and s.generator is g for s in self.slots.values()):
                    self.slots[path] = Drawn(path, g)

    def _walk(self, name: str, root: Any, *others: set[int]) -> Iterator[tuple[str, Any]]:
        """An object and those of the program's own classes that hang on it."""
        left, seen, n = [(name, root, 0)], {id(root)}, 0
        while left and n < OBJECTS:
            path, o, depth = left.pop(0)
            n += 1
            yield path, o
            if depth == DEPTH:
                continue
            for step, x in _inside(o):
                if id(x) in seen or any(id(x) in of for of in others) or (of := type(x)) in (torch.Tensor, torch.nn.Parameter) or values.plain(x):
                    continue
                if isinstance(x, (torch.nn.Module, type)) and not isinstance(o, torch.nn.Module):
                    continue
                if of in (FunctionType, MethodType) or of.__name__ == "partial" or (of in (list, tuple, dict) and len(x) < OBJECTS) or _program_object(x):
                    seen.add(id(x))
                    left.append((path + step, x, depth + 1))

    def _variables(self, path: str, f: FunctionType) -> None:
        """Those of a function of the program: what it closes over, and the globals that it sets."""
        if not attributes.of_program(f.__module__ or ""):
            return
        for key, cell in zip(f.__code__.co_freevars, f.__closure__ or (), strict=False):
            with contextlib.suppress(ValueError):  # not set yet
                if values.kept(cell.cell_contents) and not isinstance(self.slots.get(f"{path}.{key}"), Cell):
                    self._take(Cell(f"{path}.{key}", f, cell, key))
        for key in attributes.sets(f.__code__):
            if values.kept(f.__globals__.get(key)) and f"{path}.{key}" not in self.slots:
                self._take(Slot(f"{path}.{key}", f, f.__globals__, key))

    def _take(self, slot: Slot) -> None:
        slot.settle(self._beside)
        self.slots[slot.name] = slot

    def _attributes(self, path: str, o: Any) -> None:
        held = _held(o)
        kind = type(o)
        if held is None or kind in (FunctionType, MethodType, list, tuple, dict):
            return
        module = isinstance(o, torch.nn.Module)
        if not module and (hasattr(kind, "__getitem__") or hasattr(kind, "__iter__")) and not _of_program(kind):
            return  # a library's dataset
        if module and (kind.get_extra_state is not torch.nn.Module.get_extra_state or kind.__module__.startswith(_SKIPPED)):
            return
        uses = attributes.uses(kind)  # type: ignore[arg-type]
        own = kind.__module__.partition(".")[0] not in draws.LIBRARIES
        names = uses.state | (self._program & (uses.counted | (frozenset(held) - uses.written)))
        there = names & frozenset(held)
        late = (names & uses.stored) - there if own else frozenset[str]()
        for key in sorted(there | late):
            name = f"{path}.{key}"
            if key in _TORCHS if module else key.startswith("__"):
                continue
            if key in uses.framed and key not in uses.stored:
                continue
            value = held.get(key)
            if name in self.slots and isinstance(was := self.slots[name], Slot) and was.held is held:
                continue
            if hasattr(kind, key) and key not in held and not values.kept(inspect.getattr_static(kind, key)):
                continue  # a method, or a property
            if module and (key in o._parameters or key in o._buffers or key in o._modules):
                continue
            if not own and type(value) not in (int, float, bool):
                continue  # torch's own: their modes and rates, which loops change
            if values.kept(value):
                self._take(Slot(name, o, held, key))

    def _sort(self) -> None:
        """What has not moved yet is looked at as a whole in each step."""
        self._sorted = len(self.slots), len(self._moved)
        rest = [s for n, s in self.slots.items() if n not in self._moved and not s.dead]
        of = [s for s in rest if type(s) is Slot]
        self._rest = of
        self._held, self._keys, self._base = [s.held for s in of], [s.key for s in of], [s.base for s in of]
        single = [s for s in of if type(s.base) is torch.Tensor and s.print is not None and not s.base.is_inference()]
        self._tensors, self._at = single, [s.base for s in single]
        self._versions = [s.print[1] for s in single]
        self._prints = [s for s in of if s.print is not None and type(s.base) is not torch.Tensor]
        self._others = [s for s in rest if type(s) is not Slot]

    def _beside(self, t: torch.Tensor) -> bool:
        """Whether a tensor's memory is of what is kept as a tensor."""
        if self._memory is None:
            self._memory = {m for x in self._objects.leaves if (m := _memory(x.local))} if hasattr(self._objects, "leaves") else set()
            self._memory |= {m for model in self._objects.models.values() for x in (*model.parameters(), *model.buffers()) if (m := _memory(x))}
        return _memory(t) in self._memory

    # -- what has moved -----------------------------------------------------------------------------------------------------

    def _notice(self) -> None:
        if self._sorted != (len(self.slots), len(self._moved)):
            self._sort()
        now = list(map(dict.get, self._held, self._keys))
        found: list[Slot | Drawn] = []
        if not all(map(_SAME, now, self._base)):
            found += [s for s, a, b in zip(self._rest, now, self._base, strict=True) if a is not b and s.moved()]
        if self._at and list(map(_VERSION, self._at)) != self._versions:
            found += [s for s in self._tensors if s.moved()]
        found += [s for s in self._prints if s.moved()]
        found += [s for s in self._others if s.moved()]
        for s in found:
            self._moved.setdefault(s.name, s)

    def own(self) -> dict[str, Any]:
        """What has moved and is small, by name. What is not is named from the next step on."""
        self._notice()
        out: dict[str, Any] = {}
        unkept: dict[int, set[str]] = {}
        taken = of_values = 0
        for name in sorted(self._moved):
            slot = self._moved[name]
            if slot.dead or (isinstance(slot, Drawn) and rng.added(slot.generator)) or name.startswith(self._ahead):
                continue
            try:
                made, n, more = slot.value(self._beside)
                if of_values + n > ALL or taken + n + more + 256 > ROOM:
                    raise values.Large
            except values.Beside:
                slot.dead = True
                continue
            except values.Unkept as err:
                if isinstance(slot, Slot):
                    unkept.setdefault(id(slot.holder), set()).add(slot.key)
                self._name(slot, str(err))
                continue
            of_values, taken = of_values + n, taken + n + more + 256
            out[name] = made
        self.taken = taken
        return {n: v for n, v in out.items() if not self._torn(self._moved[n], unkept)}

    def _torn(self, slot: Slot | Drawn, unkept: Mapping[int, set[str]]) -> bool:
        """Whether what a function has set together with it is in no copy: a table, and how far it reaches. One without the other is worse than none."""
        if not isinstance(slot, Slot):
            return False
        lost = unkept.get(id(slot.holder), set())
        if isinstance(slot.holder, torch.nn.Module):
            lost = lost | slot.holder._non_persistent_buffers_set
        return bool(lost) and any(slot.key in g and lost & g for g in (*slot.uses.groups, *slot.uses.tables))

    def _name(self, slot: Slot | Drawn, why: str) -> None:
        if slot.name in self._named or not slot.carries():
            return
        self._named.add(slot.name)
        what = why or f"takes more than {values.LIMIT >> 10} KiB, or all such values more than {ALL >> 20} MiB"
        self._said.append(
            (
                slot.name,
                f"{slot.name} changes as training goes on, its class reads it as it was left, and it is in no copy, as it {what.removeprefix('it ')}: a restart begins it "
                "anew. Make it a buffer (register_buffer; copy_ into it in the step), or give an object with state_dict that has it (extra=)",
            )
        )

    def look(self) -> list[tuple[str, str]]:
        """A step has ended: what is in no copy, by name, with what to do about it, once."""
        self._steps += 1
        self._loaded = {}
        if self._steps in LOOKS or self._steps % ROUND == 0:
            self._find()
            self._notice()
            self._count()
        said, self._said = self._said, []
        return said

    def _count(self) -> None:
        """Names what worker processes count."""
        for name, slot in self.slots.items():
            if not isinstance(slot, Slot) or name in self._named or not name.startswith(self._ahead):
                continue
            now = slot.held.get(slot.key)
            if (values.shared(now) and name in self._moved) or (type(now) in (int, float) and slot.key in slot.uses.renewed):
                self._named.add(name)
                slot.dead = True
                self._said.append(
                    (
                        name,
                        f"{name} is counted in worker processes, by batches that they make ahead: after a restart it begins elsewhere, and so does what follows from it. Have it "
                        "follow from the samples (their numbers), or from torch's own generator, which replicad.data.Loader seeds for each batch",
                    )
                )

    # -- back ---------------------------------------------------------------------------------------------------------------

    def set(self, kept: Mapping[str, Any]) -> None:
        """Puts back what a copy has. What had not moved then is what it was when the session was made."""
        for name in [n for n in self._moved if n not in kept]:
            if not self._moved[name].dead:
                self._moved.pop(name).reset()
        self._loaded = kept
        self._find()
        self.again()
        self._sorted = -1, -1

    def again(self) -> None:
        """The loop goes on: what the program has made since it resumed has what was kept of it. Once a step is over this does nothing."""
        if not self._loaded:
            return
        self._find()
        for name, value in self._loaded.items():
            if (slot := self.slots.get(name)) is not None and not slot.dead:
                slot.put(value)
                self._moved[name] = slot

    def part(self, roots: tuple[str, ...]) -> dict[str, Any]:
        """What has moved below some of the objects that hold something."""
        self._notice()
        out = {}
        for name, slot in self._moved.items():
            if name.startswith(roots) and not slot.dead:
                with contextlib.suppress(values.Unkept):
                    out[name] = slot.value(self._beside)[0]
        return out

    def set_part(self, roots: tuple[str, ...], kept: Mapping[str, Any]) -> None:
        """The inverse."""
        for name, slot in list(self._moved.items()):
            if name.startswith(roots) and name not in kept and not slot.dead:
                slot.reset()
        for name, value in kept.items():
            if (found := self.slots.get(name)) is not None and not found.dead:
                found.put(value)
                self._moved[name] = found

    def settled(self) -> None:
        """What was due after the step that was resumed has been done: what it has changed stays."""
        self._loaded = {}

    def generators(self) -> list[Any]:
        """Those that are kept."""
        of = (s.generator if isinstance(s, Drawn) else s.held.get(s.key) for s in self.slots.values() if not s.dead)
        return [g for g in of if not values.plain(g) and draws.found(g)]


def _memory(t: torch.Tensor) -> int:
    try:
        return int(t.untyped_storage().data_ptr())
    except (RuntimeError, NotImplementedError):  # of a subclass without one of its own
        return 0


def _held(o: Any) -> dict[str, Any] | None:
    """The attributes of an object, whatever its class does when it is asked for one."""
    try:
        held = object.__getattribute__(o, "__dict__")
    except AttributeError:
        return None
    return held if type(held) is dict else None


def _program_object(x: Any) -> bool:
    kind = type(x)
    if isinstance(x, (BaseException, torch.nn.Module, type)) or _held(x) is None:
        return False
    return _of_program(kind) or isinstance(x, torch.utils.data.Dataset)


def _of_program(kind: type) -> bool:
    return any(attributes.of_program(c.__module__) for c in kind.__mro__ if c is not object)


def _inside(o: Any) -> Iterator[tuple[str, Any]]:
    kind = type(o)
    if kind in (dict, list, tuple) and len(o) >= OBJECTS:
        return
    if kind is dict:
        yield from ((f"[{k!r}]", v) for k, v in list(o.items()))
    elif kind in (list, tuple):
        yield from ((f"[{i}]", v) for i, v in enumerate(o))
    elif kind is FunctionType:
        for name, cell in zip(o.__code__.co_freevars, o.__closure__ or (), strict=False):
            try:
                yield f".{name}", cell.cell_contents
            except ValueError:
                continue
    elif kind is MethodType:
        yield "", o.__self__
    elif kind.__name__ == "partial":
        yield from ((".func", o.func), (".args", o.args), (".keywords", o.keywords))
    elif (held := _held(o)) is not None:
        yield from ((f".{k}", v) for k, v in list(held.items()) if k not in _TORCHS)


def _workers(o: Any) -> int:
    """In how many processes a loader makes its batches."""
    return int(o.options["num_workers"] if loaders.ours(o) else getattr(o, "num_workers", 0) or 0) if loaders.counts(o) else 0


def _feeding(name: str, o: Any) -> Iterator[tuple[str, Any]]:
    """What makes the samples of a loader: its dataset, and the program's functions. One that says where its dataset is has what the dataset says."""
    source: Any = o
    options = getattr(source, "options", None) if loaders.ours(o) else None
    dataset = getattr(source, "dataset", None)
    if dataset is not None and not callable(getattr(type(dataset), "state_dict", None)):
        yield f"{name}.dataset", dataset
    for part in ("collate_fn", "worker_init_fn"):
        if (of := options.get(part) if options is not None else getattr(source, part, None)) is not None:
            yield f"{name}.{part}", of


def _generators(objects: Any, roots: Iterator[tuple[str, Any]], first: bool) -> list[tuple[str, Any]]:
    """Generators that hang on what is registered, but for those that were added, that a loader of this package seeds, or that an object keeps itself."""
    found, seeded = dict[int, tuple[str, Any]](), list[Any]()
    for o in objects.data.values():
        if loaders.ours(o):
            seeded += list(o.generators().values())
    walked = [(n, o) for n, o in roots if not isinstance(o, torch.nn.Module)]
    others = [(n, o) for n, o in objects.data.items() if not (loaders.counts(o) or type(o).__module__.startswith("replicad."))]  # a loader's own are in its state
    models = objects.models.items() if first else ()
    for name, o in (*models, *walked, *others, *objects.extra.items()):
        for path, g in draws.generators(o, name, of_program=False).items():
            found.setdefault(id(g), (name + attributes.written(path.removeprefix(name)), g))
    return [(path, g) for path, g in found.values() if not rng.added(g) and not any(g is s for s in seeded)]
