"""Checkpoints: state returns with its dtype and bits, and hyperparameters by a stated rule."""

import io

import pytest
import torch

from powerstep_repro.optim import PowerStep, create, names
from powerstep_repro.optim.base import BaseOptimizer

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
        ("powerstep", "adamw", "a group has lr, betas, .*; PowerStep has beta, gamma"),
        ("powerstep", "adams", "a group has lr, .*betas"),
        ("adams", "signsgd", "a group has lr, .*gamma"),
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
    ("powerstep", ("momentum", torch.zeros(7, 33)), {}, r"momentum must have shape \(33, 7\)"),
    ("powerstep", ("momentum", torch.zeros(1)), {}, r"parameter 0 .* not \(1,\)"),
    ("stacey", ("dual", torch.zeros(33, 1)), {}, r"dual must have shape \(33, 7\)"),
    ("adams_released", ("step", 1), {}, r"step must have shape \(\), not 1"),
    ("powerstep_int8", ("momentum_codes", torch.zeros(230).byte()), {}, r"codes .* \(231,\)"),
    ("powerstep_int8", ("momentum_scales", torch.zeros(1)), {}, r"scales .* \(2,\), not \(1,\)"),
    ("adamw_int8", None, {"block_size": 64}, r"m_scales must have shape \(4,\), not \(2,\)"),
    ("adamw_int8", None, {"block_size": 0}, "block_size must be a whole number >= 1, not 0"),
    (
        "powerstep",
        ("momentum", torch.zeros(33, 7).double()),
        {},
        r"dtype torch.float32, not torch.f",
    ),
    (
        "powerstep_int8",
        ("momentum_scales", torch.zeros(2).double()),
        {},
        r"scales .* dtype .*float32",
    ),
    ("powerstep", None, {"beta": 1.5}, r"beta must be a number in \[0, 1\], not 1.5"),
    ("powerstep", None, {"lr": -1}, r"lr must be a number in \[0, inf\), not -1"),
    ("adams", None, {"betas": (0.9, 1.0)}, r"betas\[1\]"),
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
    (lambda s: {"model": {}, "optimizer": s}, "a dict of 'model', 'optimizer'"),
    (lambda s: {}, "a dict of nothing"),
    (lambda s: torch.nn.Linear(1, 1), "a Linear"),
    (lambda s: None, "a NoneType"),
    (lambda s: s | {"state": None}, "a dict of 'state', 'param_groups'"),
    (lambda s: s | {"param_groups": None}, "a dict of 'state', 'param_groups'"),
    (lambda s: s | {"param_groups": [{"lr": 0.1}]}, "a dict of 'state', 'param_groups'"),
    (lambda s: s | {"state": {"0": s["state"][0]}}, "the loaded state is of '0', a string"),
]


@pytest.mark.parametrize(("change", "sentence"), NO_STATES)
def test_what_is_no_state_is_refused_in_a_sentence(change, sentence):
    """What people load by mistake: a whole checkpoint, a model, a state that went through JSON."""
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


class Nested(BaseOptimizer):
    """State of all kinds: nested, in lists, integer, of another float dtype."""

    def __init__(self, params, lr=1e-3):
        super().__init__(params, lr=lr, weight_decay=0.0, implementation="auto")

    def init_state(self, p, group):
        codes = torch.tensor([-128, 0, 127], dtype=torch.int8)
        return {
            "block": {"codes": codes, "scale": torch.ones(1)},
            "many": [torch.tensor([1 << 40]), torch.tensor([0.1], dtype=torch.float64)],
            "step": torch.tensor(3.0),
        }


def test_nested_and_integer_state_keeps_its_dtype():
    params = [torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))]
    optimizer = Nested(params)
    state = optimizer.init_state(params[0], optimizer.param_groups[0])
    optimizer.state[params[0]] = state
    fresh = Nested(params)
    fresh.load_state_dict(optimizer.state_dict())
    loaded = fresh.state[params[0]]
    assert loaded["block"]["codes"].dtype == torch.int8
    assert torch.equal(loaded["block"]["codes"], state["block"]["codes"])
    assert loaded["block"]["scale"].dtype == torch.float32
    assert [t.dtype for t in loaded["many"]] == [torch.int64, torch.float64]
    assert torch.equal(loaded["many"][0], state["many"][0])
    assert loaded["step"] == 3


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
