"""State between precisions, codes and block sizes: exact where it can be, else within the bound."""

import copy

import pytest
import torch
import torch.distributed as dist
from optim_kit import parameters, take_steps

from powerstep_repro.optim import MultiOptimizer, convert_state, create, names
from powerstep_repro.optim.quantize import block_code, dequantize

SHAPES = [(6, 100), (33,), (2, 128), ()]
FULL = {"powerstep_int8": "powerstep", "adamw_int8": "adamw"}
SIGNED = {"momentum": True, "m": True, "v": False}
TORCH = {"m": "exp_avg", "v": "exp_avg_sq"}
#: Largest error of a block whose largest magnitude is 1: (signed, unsigned).
BOUNDS = {"linear": (1 / 254, 1 / 510), "dynamic": (1 / 142, 1 / 284), "released": (1 / 253,) * 2}


def stepped(name, **hyper):
    params = parameters(*SHAPES)
    optimizer = create(name, params, lr=0.01, weight_decay=0.1, **hyper)
    take_steps(optimizer, params)
    return params, optimizer


def twin(params, name, **hyper):
    copies = [torch.nn.Parameter(p.detach().clone()) for p in params]
    return copies, create(name, copies, lr=0.5, **hyper)


def moments(optimizer):
    """Every moment of every parameter in full precision, with its sign and the code's name."""
    for group in optimizer.param_groups:
        for p in group["params"]:
            state = optimizer.state[p]
            for name, signed in SIGNED.items():
                if f"{name}_codes" in state:
                    code = group.get(f"code_{name}") or group["code"]
                    parts = (state[f"{name}_codes"], state[f"{name}_scales"])
                    size = group["block_size"]
                    value = dequantize(*parts, block_code(code, signed=signed), size)
                    yield value, BOUNDS[code][not signed], size
                elif (key := name if name in state else TORCH.get(name)) in state:
                    yield state[key], 0.0, 1


def assert_within_bounds(found, expected):
    for (value, bound, size), (wanted, _, _) in zip(found, expected, strict=True):
        errors = (value - wanted).abs().flatten().split(size)
        for error, block in zip(errors, wanted.flatten().split(size), strict=True):
            assert error.max() <= bound * block.abs().max() * (1 + 1e-4)


CODED = [
    (name, hyper)
    for name in FULL
    for hyper in (
        {},
        {"code": "linear"},
        {"block_size": 32},
        {"block_size": 7, "code": "linear"},
        {"whole_blocks": True},
    )
]
CODED += [("powerstep_int8_released", {}), ("adamw_int8_released", {})]
CODED += [("adamw_int8", {"code_v": "linear"})]
coded = pytest.mark.parametrize(("name", "hyper"), CODED)


def full_of(name):
    return FULL[name.removesuffix("_released")]


@coded
def test_full_precision_is_coded_within_the_bound_of_the_code(name, hyper):
    params, big = stepped(full_of(name))
    before = copy.deepcopy(big.state_dict())
    copies, small = twin(params, name, **hyper)
    small.load_state_dict(convert_state(big, small))
    assert_within_bounds(moments(small), moments(big))
    assert small.param_groups[0]["lr"] == 0.01
    assert str(big.state_dict()) == str(before)
    for o, ps in ((big, params), (small, copies)):
        take_steps(o, ps, steps=1, seed=5)
    if "released" not in name and "code_v" not in hyper and hyper.get("code") != "linear":
        for p, q in zip(params, copies, strict=True):
            torch.testing.assert_close(p, q, rtol=0, atol=0.02)


@coded
def test_8_bits_become_full_precision_without_loss(name, hyper):
    """So the next step is the one that the 8-bit optimizer would have taken."""
    params, small = stepped(name, **hyper)
    copies, big = twin(params, full_of(name))
    big.load_state_dict(convert_state(copy.deepcopy(small.state_dict()), big))
    assert_within_bounds(moments(big), moments(small))
    for o, ps in ((small, params), (big, copies)):
        take_steps(o, ps, steps=1, seed=5)
    for p, q in zip(params, copies, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-7)


@coded
@pytest.mark.parametrize("other", [{}, {"code": "linear", "block_size": 64}])
def test_codes_become_other_codes(name, hyper, other):
    params, one = stepped(name, **hyper)
    _, two = twin(params, name.removesuffix("_released"), **other)
    two.load_state_dict(convert_state(one, two))
    assert_within_bounds(moments(two), moments(one))


@coded
def test_equal_codes_are_copied_bit_for_bit(name, hyper):
    """The dynamic code has no -1: a block whose largest element is negative would lose some."""
    params, one = stepped(name, **hyper)
    _, two = twin(params, name, **hyper)
    converted = convert_state(one, two)
    torch.testing.assert_close(converted["state"], one.state_dict()["state"], rtol=0, atol=0)


def test_groups_of_their_own_precision_and_the_users_own_keys():
    one, two = parameters((6, 128), (6, 128))
    big = create("powerstep", [{"params": [one], "lr": 0.1}, {"params": [two], "lr": 0.2}])
    take_steps(big, [one, two])
    big.state[one]["note"] = "mine"
    big.param_groups[0]["initial_lr"] = 0.4
    groups = [{"params": [one]}, {"params": [two], "quantized": False}]
    small = create("powerstep_int8", groups)
    small.load_state_dict(convert_state(big, small))
    assert small.state[one].keys() == {"momentum_codes", "momentum_scales", "note"}
    assert torch.equal(small.state[two]["momentum"], big.state[two]["momentum"])
    assert [g["lr"] for g in small.param_groups] == [0.1, 0.2]
    assert small.param_groups[0]["initial_lr"] == 0.4
    assert [g["quantized"] for g in small.param_groups] == [True, False]


def test_several_rules_at_once():
    one, two = parameters((6, 128), (128,))

    def both(name, second):
        return MultiOptimizer({"a": create(name, [one]), "b": create(second, [two])})

    big, small = both("powerstep", "adamw"), both("powerstep_int8", "adamw_int8")
    take_steps(big, [one, two])
    small.load_state_dict(convert_state(big, small))
    assert_within_bounds(moments(small), moments(big))
    big.load_state_dict(convert_state(small.state_dict(), big))
    assert_within_bounds(moments(big), moments(small))


@pytest.mark.parametrize("name", [n for n in names() if n not in ("adamw", "powerstep")])
def test_another_rules_state_is_refused_in_a_sentence(name):
    params, source = stepped(name)
    _, target = twin(params, "powerstep" if "powerstep" not in name else "pbsgdm")
    with pytest.raises(ValueError, match="are different rules"):
        convert_state(source, target)
    if not any(key.startswith("momentum") for key in source.state[params[0]]):
        with pytest.raises(ValueError, match="keeps momentum; the state is another rule's"):
            convert_state(source.state_dict(), target)


def test_what_does_not_fit_is_refused_in_a_sentence():
    params, big = stepped("powerstep")
    fewer = create("powerstep_int8", params[:2])
    with pytest.raises(ValueError, match=r"groups have \[4\] parameters, the target's \[2\]"):
        convert_state(big, fewer)
    turned = create("powerstep_int8", parameters((100, 6), *SHAPES[1:]))
    with pytest.raises(ValueError, match=r"tensor of shape \(6, 100\), the parameter .*\(100, 6\)"):
        convert_state(big, turned)
    with pytest.raises(ValueError, match="SGD is none of the optimizers"):
        convert_state(big, torch.optim.SGD(params, lr=0.1))
    with pytest.raises(ValueError, match="what state_dict"):
        convert_state({"model": {}}, fewer)


@pytest.fixture(scope="module")
def mesh():
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def test_sharded_state_stays_sharded_and_is_not_mistaken_for_a_whole_one(mesh):
    from torch.distributed.tensor import Shard, distribute_tensor

    values = parameters((6, 128))[0].detach()
    plain = torch.nn.Parameter(values.clone())
    sharded = torch.nn.Parameter(distribute_tensor(values, mesh, [Shard(0)]))
    results = []
    for p in (plain, sharded):
        big, small = create("powerstep", [p]), create("powerstep_int8", [p])
        p.grad = p.detach() * 2
        big.step()
        small.load_state_dict(convert_state(big, small))
        results.append(small)
    whole, parts = results[0].state[plain], results[1].state[sharded]
    for key, value in parts.items():
        assert value.placements == sharded.placements
        assert torch.equal(value.full_tensor(), whole[key])
    with pytest.raises(ValueError, match=r"a whole tensor .* the parameter a sharded one"):
        convert_state(results[0].state_dict(), results[1])
