"""Checkpoints: state returns with its dtype and bits, and hyperparameters by a stated rule."""

import io

import pytest
import torch

from powerstep_repro.optim import PowerStep, create, names

OURS = [name for name in names() if name != "adamw"]
SHAPES = [(33, 7), (129,), ()]


def parameters(dtype=torch.float32) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(s, generator=generator).to(dtype)) for s in SHAPES]


def take_steps(optimizer, params, steps, seed) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator).to(p.dtype)
        optimizer.step()


def through_a_file(state_dict: dict) -> dict:
    buffer = io.BytesIO()
    torch.save(state_dict, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def assert_same(left: dict, right: dict) -> None:
    assert left["param_groups"] == right["param_groups"]
    torch.testing.assert_close(left["state"], right["state"], rtol=0, atol=0)


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_resumed_run_is_the_uninterrupted_one(name, dtype):
    """torch casts int8 codes to the parameter's dtype and bfloat16's float32 state with them."""
    params = parameters(dtype)
    optimizer = create(name, params, lr=0.01, weight_decay=0.1)
    take_steps(optimizer, params, 4, seed=1)
    saved = through_a_file(optimizer.state_dict())

    resumed_params = [torch.nn.Parameter(p.detach().clone()) for p in params]
    resumed = create(name, resumed_params, lr=0.5)
    resumed.load_state_dict(saved)
    for p, q in zip(params, resumed_params, strict=True):
        assert optimizer.state[p].keys() == resumed.state[q].keys()
        for key, value in optimizer.state[p].items():
            assert resumed.state[q][key].dtype == value.dtype
            assert torch.equal(resumed.state[q][key], value)

    take_steps(optimizer, params, 4, seed=2)
    take_steps(resumed, resumed_params, 4, seed=2)
    for p, q in zip(params, resumed_params, strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize(
    ("name", "other", "sentence"),
    [
        ("powerstep_int8", "powerstep", "it holds momentum; PowerStepInt8 keeps momentum_codes"),
        ("adamw_int8", "powerstep_int8", "it holds momentum_codes"),
        ("powerstep_int8", "adamw_int8", "it holds "),
        ("powerstep", "adamw", "a group has .*betas, .*; PowerStep has beta, gamma"),
        ("powerstep", "adams", "a group has .*betas"),
        ("adams", "signsgd", "a group has .*gamma"),
    ],
)
def test_another_optimizers_state_is_refused_and_nothing_changed(name, other, sentence):
    """It would be taken without a word, and fail inside the next step or go on from nonsense."""
    params = parameters()
    optimizer, stranger = create(name, params, lr=0.1), create(other, params, lr=0.7)
    take_steps(optimizer, params, 1, seed=1)
    take_steps(stranger, params, 1, seed=1)
    before = through_a_file(optimizer.state_dict())
    with pytest.raises(ValueError, match=f"the loaded state is another optimizer's: {sentence}"):
        optimizer.load_state_dict(stranger.state_dict())
    assert_same(optimizer.state_dict(), before)


REFUSALS = [
    ("powerstep", ("momentum", torch.zeros(7, 33)), {}, r"momentum .* \(33, 7\), not .* \(7, 33\)"),
    ("powerstep", ("momentum", torch.zeros(1)), {}, r"momentum .* not .* \(1,\)"),
    ("stacey", ("dual", torch.zeros(33, 1)), {}, r"dual .* \(33, 7\)"),
    ("powerstep_int8", ("momentum_codes", torch.zeros(230).byte()), {}, r"codes .* \(230,\)"),
    ("powerstep_int8", ("momentum_codes", torch.zeros(7, 33).byte()), {}, r"codes .* \(7, 33\)"),
    ("powerstep_int8", ("momentum_codes", torch.zeros(33, 7)), {}, r"uint8 .* not a torch.float32"),
    ("powerstep_int8", ("momentum_scales", torch.zeros(1)), {}, r"scales .* \(2,\), not .* \(1,\)"),
    ("adamw_int8", None, {"block_size": 64}, r"m_scales .* \(4,\), not .* \(2,\)"),
    ("adamw_int8", None, {"code": "linear"}, r"m_codes .*int8 .* not .*uint8"),
]


@pytest.mark.parametrize(("name", "entry", "hyper", "message"), REFUSALS)
def test_a_state_that_does_not_fit_is_refused_and_nothing_changed(name, entry, hyper, message):
    """It would be broadcast, or fail within a later step; the last group of two is the bad one."""
    params, more = parameters(), parameters()
    optimizer = create(name, [{"params": params}, {"params": more}], lr=0.1)
    take_steps(optimizer, params + more, 1, seed=1)
    before = through_a_file(optimizer.state_dict())
    bad = through_a_file(before)
    take_steps(optimizer, params + more, 1, seed=2)
    held = through_a_file(optimizer.state_dict())
    if entry is not None:
        bad["state"][len(params)][entry[0]] = entry[1]
    bad["param_groups"][1].update(hyper)
    with pytest.raises(ValueError, match=message):
        optimizer.load_state_dict(bad)
    assert_same(optimizer.state_dict(), held)
    optimizer.load_state_dict(before)


NO_STATES = [
    (lambda s: {"model": {}, "optimizer": s}, "not a dict of model, optimizer"),
    (lambda s: torch.nn.Linear(1, 1), "not a Linear"),
    (lambda s: None, "not a NoneType"),
]


@pytest.mark.parametrize(("change", "sentence"), NO_STATES)
def test_what_is_no_state_is_refused_in_a_sentence(change, sentence):
    """What people load by mistake: a whole checkpoint, a model, nothing."""
    params = parameters()
    optimizer = create("powerstep", params, lr=0.1)
    take_steps(optimizer, params, 1, seed=1)
    before = through_a_file(optimizer.state_dict())
    with pytest.raises(ValueError, match=sentence):
        optimizer.load_state_dict(change(through_a_file(before)))
    assert_same(optimizer.state_dict(), before)


def test_a_state_of_lower_precision_is_widened_bit_for_bit():
    """Momentum would go on in bfloat16, against what the class promises."""
    (p,) = params = [torch.nn.Parameter(torch.ones(4))]
    optimizer = PowerStep(params)
    take_steps(optimizer, params, 1, seed=0)
    saved = through_a_file(optimizer.state_dict())
    momentum = saved["state"][0]["momentum"].bfloat16()
    saved["state"][0]["momentum"] = momentum
    optimizer.load_state_dict(saved)
    assert optimizer.state[p]["momentum"].dtype == torch.float32
    assert torch.equal(optimizer.state[p]["momentum"], momentum.float())


def test_a_pre_hook_may_make_a_state_fit():
    """torch has these hooks to adapt a state, so it is judged as they leave it."""
    (p,) = params = [torch.nn.Parameter(torch.ones(4))]
    optimizer = PowerStep(params)
    take_steps(optimizer, params, 1, seed=0)
    saved = optimizer.state_dict()
    saved["state"][0] = {"buffer": saved["state"][0]["momentum"].view(2, 2)}

    def adapt(_, loaded):
        return {**loaded, "state": {0: {"momentum": loaded["state"][0]["buffer"].view(4)}}}

    fresh = PowerStep(params)
    fresh.register_load_state_dict_pre_hook(adapt)
    fresh.load_state_dict(saved)
    assert torch.equal(fresh.state[p]["momentum"], optimizer.state[p]["momentum"])


@pytest.mark.parametrize("name", OURS)
def test_the_loaded_dictionary_is_not_stepped(name):
    """Otherwise two optimizers that load one checkpoint would share their state."""
    params = parameters()
    optimizer = create(name, params)
    take_steps(optimizer, params, 2, seed=1)
    saved = through_a_file(optimizer.state_dict())
    kept = through_a_file(saved)
    resumed = create(name, params)
    resumed.load_state_dict(saved)
    take_steps(resumed, params, 2, seed=2)
    for index, state in saved["state"].items():
        assert all(torch.equal(value, kept["state"][index][key]) for key, value in state.items())


@pytest.mark.parametrize("name", ["powerstep_int8", "adamw_int8", "powerstep_int8_released"])
def test_flat_codes_of_an_older_checkpoint_load(name):
    """State of 8 bits was flat before it had its parameter's shape; the bits are the same."""
    params = [torch.nn.Parameter(torch.ones(s)) for s in [(6, 256), (33, 7), (129,), ()]]
    optimizer = create(name, params, lr=0.1)
    take_steps(optimizer, params, 2, seed=1)
    saved = through_a_file(optimizer.state_dict())
    old = through_a_file(saved)
    for state in old["state"].values():
        for key in state.keys() - {"step"}:
            state[key] = state[key].view(-1)
    for group in old["param_groups"]:
        for key in ("whole_blocks", "quantized"):
            del group[key]
    fresh = create(name, params, lr=0.1)
    fresh.load_state_dict(old)
    assert_same(fresh.state_dict(), saved)


def test_a_step_that_is_a_number_loads():
    """As in torch, whose older checkpoints have one."""
    (p,) = params = [torch.nn.Parameter(torch.ones(3))]
    optimizer = create("adams_released", params)
    take_steps(optimizer, params, 3, seed=0)
    saved = through_a_file(optimizer.state_dict())
    saved["state"][0]["step"] = 3
    fresh = create("adams_released", params)
    fresh.load_state_dict(saved)
    assert torch.equal(fresh.state[p]["step"], torch.tensor(3.0))


@pytest.mark.parametrize("name", OURS)
def test_a_users_own_key_is_left_alone(name):
    """Set before the first step, it must not pass for a state, nor be lost on the way."""
    (p,) = params = [torch.nn.Parameter(torch.ones(3))]
    optimizer, plain = create(name, params), create(name, [torch.nn.Parameter(torch.ones(3))])
    note = torch.arange(2)
    optimizer.state[p]["mine"] = note
    take_steps(optimizer, params, 2, seed=0)
    take_steps(plain, plain.param_groups[0]["params"], 2, seed=0)
    assert optimizer.state[p]["mine"] is note
    assert torch.equal(p, plain.param_groups[0]["params"][0])
    fresh = create(name, params)
    fresh.load_state_dict(optimizer.state_dict())
    assert torch.equal(fresh.state[p]["mine"], note)


def test_hyperparameters_come_from_the_checkpoint_and_new_ones_stay():
    """As torch has it; a key that the checkpoint does not know keeps the present value."""
    (p,) = params = [torch.nn.Parameter(torch.ones(3))]
    saved = PowerStep(params, lr=0.5, gamma=0.8, beta=0.2).state_dict()
    del saved["param_groups"][0]["beta"]  # as if written before β existed
    fresh = PowerStep([{"params": [p], "beta": 0.7}], lr=0.1, gamma=0.3, beta=0.6)
    fresh.load_state_dict(saved)
    group = fresh.param_groups[0]
    assert (group["lr"], group["gamma"], group["beta"]) == (0.5, 0.8, 0.7)


def test_the_implementation_is_not_taken_from_the_checkpoint():
    """A run from a GPU must resume on a CPU, and the caller's choice must count."""
    params = [torch.nn.Parameter(torch.ones(3))]
    saved = PowerStep(params, implementation="foreach").state_dict()
    saved["param_groups"][0]["implementation"] = "fused"
    fresh = PowerStep(params, implementation="reference")
    fresh.load_state_dict(saved)
    assert fresh.param_groups[0]["implementation"] == "reference"


def test_hooks_see_what_torch_promises_and_a_refused_load_leaves_no_trace():
    params = [torch.nn.Parameter(torch.ones(3))]
    optimizer = create("powerstep_int8", params)
    take_steps(optimizer, params, 1, seed=0)
    saved = optimizer.state_dict()
    seen = []
    fresh = create("powerstep_int8", params)
    fresh.register_load_state_dict_pre_hook(
        lambda _, loaded: seen.append(loaded["state"][0]["momentum_codes"].dtype)
    )
    fresh.register_load_state_dict_post_hook(
        lambda o: seen.append(o.state[params[0]]["momentum_codes"].dtype)
    )
    fresh.load_state_dict(saved)
    assert seen == [torch.uint8, torch.uint8]
    with pytest.raises(ValueError, match="different number of parameter groups"):
        fresh.load_state_dict({**saved, "param_groups": []})
    fresh.load_state_dict(saved)
    assert len(fresh._optimizer_load_state_dict_pre_hooks) == 1
