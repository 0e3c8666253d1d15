"""Guards what is logged of an optimizer's steps: right by hand, for every rule, no number moved."""

import numpy as np
import pytest
import torch
from test_optim_multi import Net, hybrid, step
from torch import nn

from powerstep_repro.optim import MultiOptimizer, create, create_for_model, names
from powerstep_repro.optim.mechanism import Mechanism, seen_often

OFTEN = np.arange(11) < 4
KINDS = {"token_embeddings_often", "token_embeddings_seldom", "head", "gains", "matrices"}


def watched(net, optimizer, steps=3, interval=1):
    """Train for some steps; returns the rows that were written, by step and kind."""
    rows = []
    look = Mechanism(net, optimizer, interval, OFTEN, rows.extend)
    for number in range(1, steps + 1):
        x = torch.randint(11, (4, 8), generator=torch.Generator().manual_seed(number))
        nn.functional.cross_entropy(net(x).flatten(0, 1), x.roll(1, 1).flatten()).backward()
        after = look(number)
        optimizer.step()
        if after:
            after()
        optimizer.zero_grad()
    return {(row["step"], row["kind"]): row for row in rows}


def test_the_tokens_that_make_up_nine_tenths_are_seen_often():
    tokens = np.repeat([3, 1, 0, 7], [50, 30, 15, 5]).astype(np.uint16)
    assert np.flatnonzero(seen_often(tokens, 9)).tolist() == [0, 1, 3]


@pytest.mark.parametrize("name", names())
def test_every_optimizer_is_looked_at_and_steps_as_ever(name):
    nets = [Net(), Net()]
    optimizers = [create(name, net.parameters(), lr=1e-2) for net in nets]
    rows = watched(nets[0], optimizers[0])
    for number in (1, 2, 3):
        step(nets[1], optimizers[1], seed=number)
    for a, b in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert torch.equal(a, b)
    assert {kind for _, kind in rows} == KINDS
    for row in rows.values():
        assert row["update_rms"] > 0
        assert row["momentum_rms"] > 0
        assert -1 <= row["cosine"] <= 1
        assert (row["zero_first"] is None) == ("int8" not in name)
        assert (row["zero_second"] is None) == (not name.startswith("adamw_int8"))


def test_the_numbers_by_hand():
    net = Net()
    optimizer = create("signsgd", net.parameters(), lr=1e-2, weight_decay=0.0)
    row = watched(net, optimizer, steps=1)[1, "head"]
    assert row["update_rms"] == pytest.approx(1.0, rel=1e-4)  # signs
    fresh = Net()
    step_gradient(fresh)
    g = fresh.out.weight.grad
    # At the first step the momentum is the gradient, up to a factor: |g|₁ / (√n |g|₂) a row.
    cosines = g.abs().sum(1) / (g.shape[1] ** 0.5 * g.norm(dim=1))
    assert row["cosine"] == pytest.approx(cosines.mean().item(), rel=1e-4)
    momentum = optimizer.state[net.out.weight]["momentum"]
    assert row["momentum_rms"] == pytest.approx(momentum.square().mean().sqrt().item(), rel=1e-6)


def step_gradient(net):
    x = torch.randint(11, (4, 8), generator=torch.Generator().manual_seed(1))
    nn.functional.cross_entropy(net(x).flatten(0, 1), x.roll(1, 1).flatten()).backward()


def test_rows_are_split_by_frequency_and_a_row_without_gradient_has_no_angle():
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    step_gradient(net)
    g = net.embed.weight.grad.clone()
    net.zero_grad()
    rows = watched(net, optimizer, steps=1)
    for kind, chosen in (("often", OFTEN), ("seldom", ~OFTEN)):
        row = rows[1, f"token_embeddings_{kind}"]
        mine = g[torch.from_numpy(chosen)]
        assert row["update_rms"] == pytest.approx(mine.square().mean().sqrt().item(), rel=1e-3)
        assert row["cosine"] == pytest.approx(1.0, rel=1e-4)  # over the rows that were seen
        assert row["momentum_rms"] is None


def test_each_rule_of_several_has_its_own_rate_and_state():
    net = Net()
    rows = watched(net, hybrid(net))
    assert rows[3, "matrices"]["zero_first"] is not None
    assert rows[3, "gains"]["zero_first"] is None
    assert rows[3, "gains"]["momentum_rms"] > 0  # torch's own AdamW, under its own name
    rules = {"embeddings": {"name": "signsgd", "lr": 0.5}}
    net = Net()
    optimizer = create_for_model("signsgd", net, rules, lr=1e-3)
    assert isinstance(optimizer, MultiOptimizer)
    rows = watched(net, optimizer, steps=1)
    for kind in ("token_embeddings_often", "matrices"):  # divided by the rate of its own rule
        assert 0.9 < rows[1, kind]["update_rms"] < 1.001


def test_a_step_in_between_costs_nothing():
    net = Net()
    rows = watched(net, create("powerstep", net.parameters(), lr=1e-2), steps=7, interval=3)
    assert sorted({number for number, _ in rows}) == [1, 3, 6]
