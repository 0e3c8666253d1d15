"""Several rules as one optimizer: the numbers of separate ones, under torch's own contract."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

from powerstep_repro.optim import (
    MultiOptimizer,
    PowerStep,
    PowerStepInt8,
    create_for_model,
    groups_by_kind,
    state_bytes,
)

ADAMW = {"name": "adamw", "lr": 2e-3}
BETAS = {"betas": (0.9, 0.95)}


class Net(nn.Module):
    """An embedding, a matrix of 2.5 blocks, a gain and an untied head."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(11, 16)
        self.mix = nn.Linear(16, 20)
        self.norm = nn.LayerNorm(20, bias=False)
        self.out = nn.Linear(20, 11, bias=False)

    def forward(self, tokens):
        return self.out(self.norm(self.mix(self.embed(tokens))))


def tokens(seed: int) -> torch.Tensor:
    return torch.randint(11, (4, 8), generator=torch.Generator().manual_seed(seed))


def step(net, *optimizers, seed=0):
    x = tokens(seed)
    nn.functional.cross_entropy(net(x).flatten(0, 1), x.roll(1, 1).flatten()).backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


def separate(net):
    parts = groups_by_kind(net, "embeddings", "gains", weight_decay=0.1)
    adamw = torch.optim.AdamW(parts["embeddings"] + parts["gains"], lr=2e-3, **BETAS)
    return {"powerstep": PowerStepInt8(parts["rest"], lr=1e-3), "adamw": adamw}


def hybrid(net):
    return MultiOptimizer(separate(net))


def assert_same(one, other):
    """Parameters and states of two (net, optimizer), bit for bit."""
    for p, q in zip(one[0].parameters(), other[0].parameters(), strict=True):
        assert torch.equal(p, q)
        left, right = one[1].state[p], other[1].state[q]
        assert left.keys() == right.keys()
        for key, value in left.items():
            assert value.dtype == right[key].dtype
            assert torch.equal(value, right[key])


def test_steps_are_those_of_separate_optimizers():
    net, twin = Net(), Net()
    optimizer, members = hybrid(net), separate(twin)
    for seed in range(5):
        step(net, optimizer, seed=seed)
        step(twin, *members.values(), seed=seed)
    assert all(map(torch.equal, net.parameters(), twin.parameters()))
    assert state_bytes(optimizer) == sum(map(state_bytes, members.values()))


def saved_and_loaded(optimizer):
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("before", [0, 2], ids=["fresh", "stepped"])
def test_state_goes_on_bit_for_bit(before):
    net = Net()
    optimizer = hybrid(net)
    for seed in range(3):
        step(net, optimizer, seed=seed)
    state = saved_and_loaded(optimizer)
    other = Net()
    again = hybrid(other)
    for seed in range(before):
        step(other, again, seed=9 + seed)
    other.load_state_dict(net.state_dict())
    again.load_state_dict(state)
    assert_same((net, optimizer), (other, again))
    assert optimizer.state[net.mix.weight]["momentum_codes"].element_size() == 1
    for each in ((net, optimizer), (other, again)):
        step(*each, seed=5)
    assert_same((net, optimizer), (other, again))


@pytest.mark.parametrize("way", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_copies_go_on_by_themselves(way):
    net = Net()
    pair = net, hybrid(net)
    step(*pair)
    twin = way(pair)
    before = [p.clone() for p in pair[0].parameters()]
    step(*twin, seed=1)
    assert all(map(torch.equal, before, pair[0].parameters()))
    step(*pair, seed=1)
    assert_same(pair, twin)
    twin[1].param_groups[0]["lr"] = 0.0
    assert twin[1].optimizers["powerstep"].param_groups[0]["lr"] == 0.0
    assert pair[1].param_groups[0]["lr"] == 1e-3


def test_a_scheduler_scales_each_group_by_its_own_rate():
    net = Net()
    optimizer = hybrid(net)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5**epoch)
    for _ in range(2):
        step(net, optimizer)
        scheduler.step()
    by_rule = {group["rule"]: group["lr"] for group in optimizer.param_groups}
    assert by_rule == {"powerstep": 1e-3 / 4, "adamw": 2e-3 / 4}
    # After a load the groups are new ones, and the scheduler and the members still share them.
    optimizer.load_state_dict(optimizer.state_dict())
    scheduler.step()
    assert [g["lr"] for g in optimizer.optimizers["adamw"].param_groups] == [2e-3 / 8] * 2


def test_closure_and_hooks_run_once_a_step():
    net, calls = Net(), []
    optimizer = hybrid(net)
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    optimizer.register_state_dict_pre_hook(lambda *_: calls.append("save"))
    optimizer.register_load_state_dict_pre_hook(lambda *_: calls.append("load"))
    optimizer.register_load_state_dict_post_hook(lambda *_: calls.append("loaded"))

    def closure():
        calls.append("closure")
        optimizer.zero_grad()
        loss = net(tokens(0)).square().mean()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() > 0
    optimizer.load_state_dict(optimizer.state_dict())
    assert calls == ["before", "closure", "after", "save", "load", "loaded"]


def test_a_new_group_says_by_which_rule():
    net = Net()
    late = nn.Parameter(torch.ones(3, 4))
    optimizer = hybrid(net)
    step(net, optimizer)
    optimizer.add_param_group({"params": [("late", late)], "rule": "powerstep", "lr": 0.5})
    assert optimizer.param_groups[-1] is optimizer.optimizers["powerstep"].param_groups[-1]
    late.grad = torch.ones_like(late)
    optimizer.step()
    assert set(optimizer.state[late]) == {"momentum_codes", "momentum_scales"}
    # Its place is the last, though its rule is the first: the state follows the groups.
    other = Net()
    again = hybrid(other)
    again.add_param_group(
        {"params": [("late", nn.Parameter(torch.ones(3, 4)))], "rule": "powerstep"}
    )
    again.load_state_dict(saved_and_loaded(optimizer))
    assert [g["lr"] for g in again.param_groups] == [1e-3, 2e-3, 2e-3, 0.5]
    saved, loaded = optimizer.state_dict()["state"], again.state_dict()["state"]
    assert saved.keys() == loaded.keys()
    for index, values in saved.items():
        assert all(torch.equal(value, loaded[index][key]) for key, value in values.items())


def test_refuses_a_group_of_no_rule_and_one_that_another_rule_has():
    net = Net()
    optimizer = hybrid(net)
    for rule in (None, "adam"):
        with pytest.raises(ValueError, match="'rule' must be one of powerstep, adamw, not"):
            optimizer.add_param_group({"params": [nn.Parameter(torch.ones(3))], "rule": rule})
    taken = {"params": [("embed.weight", net.embed.weight)], "rule": "powerstep"}
    with pytest.raises(ValueError, match="more than one parameter group"):
        optimizer.add_param_group(taken)
    assert [len(m.param_groups) for m in optimizer.optimizers.values()] == [1, 2]
    assert len(optimizer.param_groups) == 3
    step(net, optimizer)


def test_refuses_members_that_share_a_parameter_and_states_of_other_rules():
    net = Net()
    both = {"a": PowerStep(net.parameters()), "b": torch.optim.SGD(net.out.parameters(), lr=1.0)}
    with pytest.raises(ValueError, match="more than one parameter group"):
        MultiOptimizer(both)
    with pytest.raises(ValueError, match="empty"):
        MultiOptimizer({})
    state = hybrid(net).state_dict()
    state["param_groups"][0]["rule"] = "adamw"
    with pytest.raises(ValueError, match=r"groups of \(rule, parameters\)"):
        hybrid(Net()).load_state_dict(state)


def fused(net):
    parts = groups_by_kind(net, "embeddings")
    first = torch.optim.AdamW(parts["rest"], lr=2e-3, fused=True)
    return MultiOptimizer({"a": first, "b": torch.optim.SGD(parts["embeddings"], fused=True)})


@pytest.mark.parametrize("build", [hybrid, fused])
@pytest.mark.parametrize("unscale", [False, True])
def test_grad_scaler_leaves_out_what_overflowed(build, unscale):
    net, twin = Net(), Net()
    optimizer, plain = build(net), build(twin)
    assert optimizer._step_supports_amp_scaling == (build is fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for seed in range(3):
        x = tokens(seed)
        loss = net(x).square().mean() * (float("inf") if seed == 1 else 1.0)
        scaler.scale(loss).backward()
        if unscale:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if seed != 1:
            twin(x).square().mean().backward()
            plain.step()
            plain.zero_grad()
    assert scaler.get_scale() == 128.0
    assert all(map(torch.equal, net.parameters(), twin.parameters()))
    assert not hasattr(optimizer, "found_inf")
    assert not any(hasattr(member, "found_inf") for member in optimizer.optimizers.values())


def test_a_flag_that_a_member_would_overlook_is_refused():
    net = Net()
    optimizer = hybrid(net)
    before = [p.clone() for p in net.parameters()]
    optimizer.found_inf = torch.ones(())
    with pytest.raises(ValueError, match="not every member"):
        step(net, optimizer)
    assert all(map(torch.equal, before, net.parameters()))


def test_a_gradient_factor_reaches_all_members_or_none():
    net, twin = Net(), Net()
    two = [
        MultiOptimizer(
            {
                "codes": PowerStepInt8([n.mix.weight], lr=1e-3),
                "plain": PowerStep([n.out.weight, n.embed.weight], lr=1e-3),
            }
        )
        for n in (net, twin)
    ]
    for n in (net, twin):
        n(tokens(0)).square().mean().backward()
    two[0].step(grad_factor=torch.tensor(0.25))
    for p in twin.parameters():
        p.grad.mul_(0.25)
    two[1].step()
    assert all(map(torch.equal, net.parameters(), twin.parameters()))
    optimizer = hybrid(net)
    with pytest.raises(ValueError, match="'adamw' does not take one"):
        optimizer.step(grad_factor=torch.tensor(0.25))


def test_built_for_a_model_by_names():
    net, twin = Net(), Net()
    rules = {"embeddings": ADAMW, "gains": ADAMW}
    optimizer = create_for_model("powerstep_int8", net, rules, lr=1e-3, weight_decay=0.1)
    other = hybrid(twin)
    for seed in range(3):
        step(net, optimizer, seed=seed)
        step(twin, other, seed=seed)
    assert_same((net, optimizer), (twin, other))
    rates = {group["rule"]: group["initial_lr"] for group in optimizer.param_groups}
    assert rates == {"rest": 1e-3, "embeddings": 2e-3, "gains": 2e-3}


def test_a_rule_without_a_rate_or_decay_has_those_of_the_rest():
    rules = {"embeddings": {"name": "signsgd"}, "head": {"name": "powerstep", "weight_decay": 0.5}}
    optimizer = create_for_model("adamw", Net(), rules, lr=3e-4, weight_decay=0.1)
    assert {group["lr"] for group in optimizer.param_groups} == {3e-4}
    decays = [(group["rule"], group["weight_decay"]) for group in optimizer.param_groups]
    assert decays == [("rest", 0.1), ("rest", 0.0), ("embeddings", 0.1), ("head", 0.5)]


def test_one_rule_needs_no_container_and_a_kind_that_is_not_there_is_refused():
    assert isinstance(create_for_model("powerstep", Net()), PowerStep)
    with pytest.raises(ValueError, match="no parameters of the kind 'positions'"):
        create_for_model("powerstep", Net(), {"positions": ADAMW})
    with pytest.raises(ValueError, match="unknown kind 'embedings'; did you mean 'embeddings'"):
        create_for_model("powerstep", Net(), {"embedings": ADAMW})
