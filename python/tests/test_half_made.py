"""A process group that a restart kept from being made leaves nothing that the next one would trip over."""

from __future__ import annotations

import re

import pytest

from conftest import Daemon

pytest.importorskip("torch", reason="torch is missing: process groups are torch's")

PROGRAM = """
import functools, itertools
import torch, torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
import replicad
from replicad.inprocess import AbortProcessGroups
from replicad.store import init_process_group

class Stop(BaseException): ...

# Kept: Gloo's thread in torch 2.6 may hold a tensor a moment longer than its user, and letting go of the last one it needs the GIL, which
# the thread that takes the group down has.
ones = torch.ones(1)
model = torch.nn.Linear(2, 2)
session = replicad.Session(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
session.resume()
for place, when, own in itertools.product(("_new_process_group_helper", "_register_process_group", "_update_default_pg"), ("before", "after"), (False, True)):
    make = functools.partial(dist.init_process_group, "gloo") if own else functools.partial(init_process_group, session)
    real = getattr(c10d, place)

    def broken(*args, **options):
        if when == "after":
            real(*args, **options)
        raise Stop

    setattr(c10d, place, broken)
    try:
        make()
        print("NOT BROKEN", place)
    except Stop:
        pass
    setattr(c10d, place, real)
    if own:  # as at each end of a block
        AbortProcessGroups()()
    make()
    dist.all_reduce(ones)
    print("GROUP", place, when, own, dist.group.WORLD.group_name, dict(c10d._world.pg_names) == {dist.group.WORLD: "0"}, flush=True)
    dist.destroy_process_group()
session.leave()
session.close()
"""


def test_the_next_group_is_the_first(daemon: Daemon) -> None:
    """torch numbers groups, and what ranks say to each other lies under the number: a rank that counts on waits for the others for ever."""
    out = daemon.run(PROGRAM).done()
    places = ("_new_process_group_helper", "_register_process_group", "_update_default_pg")
    assert re.findall(r"^GROUP (.*)$", out, re.M) == [f"{place} {when} {own} 0 True" for place in places for when in ("before", "after") for own in (False, True)], out
