"""What a program declares as changed, by table."""

from __future__ import annotations

import pytest

from replicad._core.generations import Generation, Tensor
from replicad._torch.declared import Declared
from replicad.errors import Invalid


def declared(**of: object) -> Declared:
    return Declared(**of).of(["model", "critic"], ["optim"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("was", "name", "then"),
    [
        ({"head.*": "lm_head.*"}, "model.head.weight", "model.lm_head.weight"),
        ({"head.*": "lm_head.*"}, "optim.model.head.weight.exp_avg", "optim.model.lm_head.weight.exp_avg"),
        ({"head.*": "lm_head.*"}, "model.header.weight", "model.header.weight"),
        ({"head.*": "lm_head.*"}, "model.body.head.weight", "model.body.head.weight"),
        ({"model.head.*": "critic.head.*"}, "model.head.weight", "critic.head.weight"),
        ({"head.weight": "w"}, "model.head.weight", "model.w"),
        ({"head.weight": "w"}, "optim.model.head.weight.exp_avg", "optim.model.w.exp_avg"),
        ({"head": "tail"}, "critic.head.bias", "critic.tail.bias"),
        ({"model.head.*": "critic.head.*"}, "optim.model.head.weight.exp_avg", "optim.critic.head.weight.exp_avg"),
        ({}, "model.head.weight", "model.head.weight"),
    ],
)
def test_names_of_then(was: dict[str, str], name: str, then: str) -> None:
    assert declared(was=was).then(name) == then


def test_fresh_and_dropped() -> None:
    d = declared(fresh=["adapter.*", "scheduler"], dropped=["old.*"])
    assert d.is_fresh("model.adapter.a") and d.is_fresh("optim.model.adapter.a.exp_avg") and d.is_fresh("scheduler")
    whole = declared(fresh=["model.adapter.*", "optim.*"])
    assert whole.is_fresh("optim.model.adapter.a.exp_avg") and whole.is_fresh("optim") and not whole.is_fresh("optimist.a")
    assert not d.is_fresh("model.old.a") and d.is_dropped("model.old.a") and not d.is_dropped("model.older")
    assert d and not declared()
    assert d.lines() == ["adapter.* is fresh", "scheduler is fresh", "old.* is dropped"]


def test_a_slip_of_the_pen_is_told() -> None:
    d = declared(was={"heat.*": "lm_head.*"}, fresh=["adapter"], dropped=["odl.*", "old"])
    assert d.idle(["model.head.weight", "optim.model.adapter.exp_avg"], ["model.old.weight"]) == ["was: nothing here is called heat.*", "dropped: nothing there is called odl.*"]


def test_an_optimizers_state_belongs_to_its_parameter() -> None:
    d = declared()
    assert "model.head.weight" in d.parameters("optim.model.head.weight.exp_avg")
    assert "critic.head.weight" not in d.parameters("optim.model.head.weight.exp_avg")
    assert d.parameters("model.head.weight") == []


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"was": {"a*b": "c"}}, "'a*b'"),
        ({"was": {"a.*": "c"}}, "at the end of both"),
        ({"was": {"": "c"}}, "''"),
        ({"was": {"*": "*"}}, "'*'"),
        ({"fresh": "head.*"}, "want lists"),
        ({"dropped": [3]}, "3"),
    ],
)
def test_bad_patterns(given: dict[str, object], text: str) -> None:
    with pytest.raises(Invalid, match=text.replace("*", r"\*")):
        declared(**given)


def test_what_is_not_named_is_equal_only_beside_what_is() -> None:
    def generation(*named: str) -> Generation:
        g = Generation.__new__(Generation)  # without a store: what it is told is enough
        g._over, g.tensors = None, {n: Tensor(n, "float32", "window", (8,), ("shard(0)",), (2,), ()) for n in named}
        return g

    assert not generation().equal("model.buffer"), "groups that were made by hand"
    g = generation("model.w", "optim.model.w.exp_avg")
    assert g.equal("model.buffer") and g.equal("optim.model.w.step") and g.equal("model.wide")
    assert not g.equal("model.w.inner") and not g.equal("optim.model.w.exp_avg.inner.scale")
