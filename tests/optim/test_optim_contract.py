"""Torch's own contract for optimizers, restated for every optimizer of the registry: the steps.

After what pytorch's ``test/test_optim.py`` asks of torch's own. ``contract_kit.py`` says how the
checks are run, ``test_optim_contract_state.py`` has those of state and hooks. What is refused on
purpose is listed in ``REFUSED``.
"""

import warnings

import pytest
import torch
from contract_kit import (
    Contract,
    combinations,
    copies,
    equal,
    first_and_last,
    same_state,
    take_steps,
)
from optim_kit import parameters
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    OneCycleLR,
    ReduceLROnPlateau,
    StepLR,
)

from powerstep_repro.optim import create, names

OURS = [name for name in names() if name != "adamw"]
# The arguments of torch's optimizers that these do not have.
ABSENT = ["maximize", "foreach", "fused", "capturable", "differentiable", "amsgrad"]
contract = Contract()


def loss_and_gradients(params):
    loss = sum(((p - 1) ** 2).sum() for p in params)
    for p in params:
        p.grad = None
    loss.backward()
    return loss


# --- steps ------------------------------------------------------------------------------------


@contract
def descends(case):
    params = parameters((5, 3), (4,), ())
    optimizer = case(params)
    start = loss_and_gradients(params).item()
    for _ in range(10):
        loss_and_gradients(params)
        optimizer.step()
    assert loss_and_gradients(params).item() < start


@contract
def descends_under_schedulers(case):
    """Each schedule writes rates into groups, and the step takes them from there."""
    params = parameters((5, 3), (4,))
    optimizer = case([{"params": params[:1]}, {"params": params[1:], "lr": 0.02}])
    schedules = [
        StepLR(optimizer, 5, gamma=0.9),
        ExponentialLR(optimizer, 0.99),
        LinearLR(optimizer, 0.5, total_iters=4),
        CosineAnnealingLR(optimizer, 20),
        LambdaLR(optimizer, lambda step: 1 / (1 + step / 10)),
        OneCycleLR(optimizer, 0.02, total_steps=30, cycle_momentum=False),
    ]
    plateau = ReduceLROnPlateau(optimizer, patience=1, factor=0.5)
    start = loss_and_gradients(params).item()
    for schedule in schedules:
        for _ in range(3):
            loss = loss_and_gradients(params)
            optimizer.step()
            schedule.step()
    assert loss.item() < start
    rates = [group["lr"] for group in optimizer.param_groups]
    for _ in range(4):
        plateau.step(1.0)
    assert [group["lr"] for group in optimizer.param_groups] == [rate / 2 for rate in rates]


@contract
def a_rate_of_zero_moves_nothing_by_the_gradient(case):
    if "stacey" in case.name:
        return  # its dual step does not go through the rate
    params = parameters((4, 3))
    before = [p.detach().clone() for p in params]
    take_steps(case(params, lr=0.0), params)
    assert equal(params, before)


@contract
def a_closure_is_run_once_with_gradients_and_its_loss_returned(case):
    with_closure, without = parameters((5, 3)), parameters((5, 3))
    optimizer, other = case(with_closure), case(without)
    calls = []

    def closure():
        assert torch.is_grad_enabled()
        calls.append(loss_and_gradients(with_closure))
        return calls[-1]

    for step in range(3):
        with torch.no_grad():
            assert optimizer.step(closure) is calls[step]
        loss_and_gradients(without)
        assert other.step() is None
    assert len(calls) == 3
    assert equal(with_closure, without)


@contract
def a_tensor_for_a_rate_is_followed(case):
    if (case.name, case.settings["implementation"]) == ("adamw", "foreach"):
        return  # torch's own refuses it
    for shape in ((), (1,)):
        plain, followed = parameters((5, 3)), parameters((5, 3))
        rate = torch.full(shape, 0.01)
        optimizer, other = case(plain), case(followed, lr=rate)
        for factor in (1.0, 0.5):
            optimizer.param_groups[0]["lr"] = 0.01 * factor
            rate.fill_(0.01 * factor)
            take_steps(optimizer, plain, steps=2)
            take_steps(other, followed, steps=2)
        assert other.param_groups[0]["lr"] is rate
        torch.testing.assert_close(followed, plain, rtol=1e-5, atol=1e-6)


@contract
def no_gradient_no_step(case):
    params = parameters((3,), (2, 2))
    before = [p.detach().clone() for p in params]
    optimizer = case(params)
    optimizer.step()
    assert equal(params, before)
    assert not optimizer.state
    params[0].grad = torch.ones(3)
    optimizer.step()
    assert equal(params[1:], before[1:])
    assert list(optimizer.state) == params[:1]
    assert optimizer.state[params[0]]
    optimizer.zero_grad()
    assert params[0].grad is None
    now = [p.detach().clone() for p in params]
    optimizer.step()
    assert equal(params, now)


@contract
def gradients_of_zero_leave_all_where_it_is(case):
    params = parameters((4, 3))
    before = [p.detach().clone() for p in params]
    optimizer = case(params, weight_decay=0.0)
    for _ in range(3):
        params[0].grad = torch.zeros(4, 3)
        optimizer.zero_grad(set_to_none=False)
        optimizer.step()
    assert equal(params, before)


@contract
def a_late_first_gradient_starts_a_clock_of_its_own(case):
    """Guards a step counter shared by a group: bias correction would come from the wrong t."""
    early, late = parameters((6,), (6,))
    (alone,) = copies([late])
    optimizer = case([early, late])
    take_steps(optimizer, [early])
    take_steps(optimizer, [early, late])
    take_steps(case([alone]), [alone])
    assert torch.equal(late, alone)


@contract
def sizes_of_zero_and_one_are_stepped(case):
    params = parameters((0,), (3, 0), (), (1,))
    before = [p.detach().clone() for p in params]
    optimizer = case(params)
    take_steps(optimizer, params, steps=2)
    assert all(not torch.equal(p, b) for p, b in zip(params[2:], before[2:], strict=True))
    case(params).load_state_dict(optimizer.state_dict())


@contract
def dtypes_mix_in_a_group(case):
    dtypes = [torch.float32, torch.bfloat16, torch.float64, torch.float16]
    mixed = [parameters((6, 3), dtype=dtype)[0] for dtype in dtypes]
    alone = copies(mixed)
    take_steps(case(mixed), mixed)
    for p in alone:
        take_steps(case([p]), [p])
    assert [p.dtype for p in mixed] == dtypes
    assert equal(mixed, alone)


@contract
def the_default_dtype_does_not_matter(case):
    start = parameters((5, 3))
    expected = copies(start)
    take_steps(case(expected), expected)
    default = torch.get_default_dtype()
    for dtype in (torch.float64, torch.bfloat16, torch.float16):
        params = copies(start)
        torch.set_default_dtype(dtype)
        try:
            take_steps(case(params), params)
        finally:
            torch.set_default_dtype(default)
        assert equal(params, expected)


# --- groups -----------------------------------------------------------------------------------


@contract
def groups_are_as_optimizers_of_their_own(case):
    """Also those that are added later, and one optimizer a parameter (gradients released early)."""
    together = parameters((4, 3), (5,), (2, 2))
    apart = copies(together)
    own = [{"lr": 0.02}, {"weight_decay": 0.5}, {"lr": 0.003, "weight_decay": 0.2}]
    first, second, late = ({"params": [p], **hyper} for p, hyper in zip(together, own, strict=True))
    optimizer = case([first, second])
    take_steps(optimizer, together[:2])
    optimizer.add_param_group(late | {"params": late["params"][0]})  # a tensor by itself
    take_steps(optimizer, together, first=3)
    assert len(optimizer.param_groups) == 3
    for p, hyper, begin in zip(apart, own, (0, 0, 3), strict=True):
        take_steps(case([p], **hyper), [p], steps=6 - begin, first=begin)
    assert equal(together, apart)


@contract
def what_is_no_group_is_refused_and_nothing_is_added(case):
    held, other = parameters((3,), (3,))
    optimizer = case([held])
    leaf_of_none = other * 2
    for params, error, message in [
        ([held], ValueError, "more than one parameter group"),
        ([other, held], ValueError, "more than one parameter group"),
        ({other}, TypeError, "set"),
        ([leaf_of_none], ValueError, "non-leaf"),
        ([3.0], TypeError, "can only optimize Tensors"),
    ]:
        with pytest.raises(error, match=message):
            optimizer.add_param_group({"params": params})
    assert len(optimizer.param_groups) == 1
    for params, error, message in [
        (other, TypeError, "iterable"),
        ([], ValueError, "empty"),
        (["weight"], TypeError, "can only optimize Tensors"),
        ([("weight", held), other], ValueError, "names"),
        ([leaf_of_none], ValueError, "non-leaf"),
        ([{"params": [held]}, {"params": [held]}], ValueError, "more than one parameter group"),
    ]:
        with pytest.raises(error, match=message):
            case(params)
    with pytest.raises(ValueError, match="-1"):
        case([held], lr=-1.0)


@contract
def names_travel_with_parameters(case):
    weight, bias = parameters((3, 2), (3,))
    named = case([("weight", weight), ("bias", bias)])
    take_steps(named, [weight, bias])
    saved = named.state_dict()
    assert saved["param_groups"][0]["param_names"] == ["weight", "bias"]
    unnamed = case([weight, bias])
    unnamed.load_state_dict(saved)
    plain = unnamed.state_dict()
    plain["param_groups"][0].pop("param_names", None)
    fresh = case([("weight", weight), ("bias", bias)])
    fresh.load_state_dict(plain)
    assert same_state(fresh, named)
    assert fresh.param_groups[0]["param_names"] == ["weight", "bias"]


@contract
def it_prints_its_groups(case):
    one, two = parameters((3,), (3,))
    text = repr(case([{"params": [one]}, {"params": [two], "lr": 0.125}]))
    assert "Parameter Group 1" in text
    assert "lr: 0.125" in text
    assert all(f"{key}: " in text for key in ("weight_decay", "lr"))


# --- each check, for each optimizer ------------------------------------------------------------


@contract.every
def test_contract(check, name):
    for case in first_and_last(name):
        check(case)


@pytest.mark.slow
@contract.every
def test_contract_at_every_combination(check, name):
    for case in combinations(name):
        check(case)


# --- what is refused, and what differs --------------------------------------------------------


def sparse_gradient(name):
    (p,) = parameters((4, 2))
    p.grad = torch.ones(4, 2).to_sparse()
    create(name, [p]).step()


def parameter_of(dtype):
    def make(name):
        create(name, [torch.nn.Parameter(torch.ones(3, dtype=dtype), requires_grad=False)])

    return make


def argument(key):
    return lambda name: create(name, parameters((3,)), **{key: True})


#: What torch's optimizers take and these refuse, on purpose, each in a sentence.
REFUSED = {
    "a sparse gradient": (sparse_gradient, "dense real gradients, not torch.sparse_coo"),
    "a complex parameter": (parameter_of(torch.complex64), "floating-point .*torch.complex64"),
    "an integer parameter": (parameter_of(torch.int32), "floating-point .*torch.int32"),
} | {key: (argument(key), f"no hyperparameter '{key}'") for key in ABSENT}


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("what", REFUSED)
def test_refused_on_purpose(what, name):
    refuse, message = REFUSED[what]
    if name == "adamw" and what not in ABSENT:
        return  # torch's own takes them, or has another sentence
    with pytest.raises(ValueError, match=message):
        refuse(name)


@pytest.mark.parametrize("name", OURS)
def test_a_parameter_twice_in_a_group_is_stepped_once(name):
    """Tied weights; torch warns, and steps them twice."""
    tied, single = parameters((5,))[0], parameters((5,))[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        both, one = create(name, [tied, tied], lr=0.1), create(name, [single], lr=0.1)
    take_steps(both, [tied])
    take_steps(one, [single])
    assert torch.equal(tied, single)
