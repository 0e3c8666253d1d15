"""Every optimizer's trajectory against one worked without it.

Guards: the order of updates, which momentum (old or new) enters where, signs, factors such as
1 - β, bias correction, that decay is applied and to the old θ, and that zero gradients are no-ops.
"Loss went down" sees none of these.
"""

import math

import optim_oracles as oracles
import pytest
import torch

from powerstep_repro.optim import create, names

COMMON = {"lr": 0.05, "weight_decay": 0.1}
HYPER = {
    "adamw": {"betas": (0.9, 0.95), "eps": 1e-8},
    "adams": {"betas": (0.9, 0.95), "eps": 1e-8},
    "adams_released": {"betas": (0.9, 0.95), "eps": 1e-8},
    "pbsgdm": {"gamma": 0.9, "beta": 0.1},
    "pbsgdm_released": {"gamma": 0.9, "beta": 0.1},
    "signsgd": {"gamma": 0.9},
    "stacey": {"power": 11, "alpha": 0.1, "tau": 0.2, "betas": (0.9, 0.99), "eps": 1e-8},
    "stacey_released": {"power": 11, "alpha": 0.1, "tau": 0.2, "betas": (0.9, 0.99), "eps": 1e-8},
    "powerstep": {"gamma": 0.9, "beta": 0.1},
    "powerstep_int8": {"gamma": 0.9, "beta": 0.1, "block_size": 4},
    "powerstep_int8_released": {"gamma": 0.9, "beta": 0.1, "block_size": 4},
    "adamw_int8": {"betas": (0.9, 0.95), "eps": 1e-8, "block_size": 4},
    "adamw_int8_released": {"betas": (0.9, 0.95), "eps": 1e-8, "block_size": 4},
}
CASES = [
    pytest.param(name, hyper | extra, id="-".join([name, *map(str, extra.values())]))
    for name, hyper in HYPER.items()
    for extra in {
        "powerstep": [{}, {"beta": 0.0}, {"beta": 1.0}, {"beta": 0.7, "gamma": 0.0}],
        "pbsgdm": [{}, {"beta": 0.0}, {"beta": 1.0}],
        "powerstep_int8": [{"code": "linear"}, {"code": "dynamic"}],
        "adamw_int8": [
            {"code": "linear"},
            {"code": "dynamic"},
            {"code_m": "linear", "code_v": "dynamic"},
            {"code_m": "dynamic", "code_v": "linear"},
        ],
    }.get(name, [{}])
]  # fmt: skip


def course(steps: int = 7, n: int = 11) -> tuple[list[float], list[list[float]]]:
    """θ_0 and gradients: odd size, a block of four that stays zero, zeros, and flips of sign."""
    generator = torch.Generator().manual_seed(11)
    theta = torch.randn(n, generator=generator)
    gradients = torch.randn(steps, n, generator=generator)
    gradients[:, 4:8] = 0  # a whole block without gradient
    gradients[2] = 0  # a step without gradient
    gradients[:, 0] = torch.tensor([1.0, 1.0, 0.0, -5.0, -5.0, 0.25, 4.0])  # momentum flips
    gradients[0, 1] = 0  # a first gradient of zero
    return theta.tolist(), gradients.tolist()


def trajectory(name, theta, gradients, **hyper) -> list[list[float]]:
    p = torch.nn.Parameter(torch.tensor(theta))
    optimizer = create(name, [p], **hyper)
    result = []
    for row in gradients:
        p.grad = torch.tensor(row)
        optimizer.step()
        result.append(p.detach().clone().tolist())
    return result


def test_every_optimizer_has_an_oracle():
    assert sorted(HYPER) == names()


@pytest.mark.parametrize("implementation", ["reference", "foreach"])
@pytest.mark.parametrize(("name", "hyper"), CASES)
def test_follows_the_equations(name, hyper, implementation):
    theta, gradients = course()
    expected = oracles.run(name, theta, gradients, **COMMON, **hyper)
    got = trajectory(name, theta, gradients, implementation=implementation, **COMMON, **hyper)
    torch.testing.assert_close(torch.tensor(got), torch.tensor(expected), rtol=2e-5, atol=2e-6)


# The first of these is the paper's algorithm 1 on paper: η = 0.1, λ = 0.1, γ = β = 0.5, θ_0 = 1.
# m = 1, -1, 4, 0, -0.25 and Φ(m) = 1, -1, 2, 0, -0.5; then θ ← 0.99θ - 0.1Φ(m).
HAND_WORKED = [
    pytest.param(
        "powerstep",
        {"gamma": 0.5, "beta": 0.5},
        [1.0, -1.5, 4.5, -2.0, -0.25],
        [0.89, 0.9811, 0.771289, 0.76357611, 0.8059403489],
        id="powerstep",
    ),
    pytest.param(  # the same m; sign(m) = 1, -1, 1, 0, -1
        "signsgd",
        {"gamma": 0.5},
        [1.0, -1.5, 4.5, -2.0, -0.25],
        [0.89, 0.9811, 0.871289, 0.86257611, 0.9539503489],
        id="signsgd",
    ),
    pytest.param(  # Φ(g) = 2, -3, 0, 1, -0.5; m = 2, -2, -1, 0.5, -0.25
        "pbsgdm",
        {"gamma": 0.5, "beta": 0.5},
        [4.0, -9.0, 0.0, 1.0, -0.25],
        [0.79, 0.9821, 1.072279, 1.01155621, 1.0264406479],
        id="pbsgdm",
    ),
    pytest.param(  # m = 2 + 0.1, 1.05 - 3 + 0.079, -0.9355 + 0 + 0.09771, ...
        "pbsgdm_released",
        {"gamma": 0.5, "beta": 0.5},
        [4.0, -9.0, 0.0],
        [0.79, 0.9771, 1.060879],
        id="pbsgdm_released",
    ),
    pytest.param(  # ν = 1, 0.75 + 1, 0.75·0.25, 0.75·0.0625 + 0.25; m = 1, -0.5, -0.25, 0.375
        "adams",
        {"betas": (0.5, 0.75), "eps": 0.0},
        [2.0, -2.0, 0.0, 1.0],
        [
            0.89,
            0.99 * 0.89 + 0.1 * 0.5 / math.sqrt(1.75),
            0.99 * (0.99 * 0.89 + 0.1 * 0.5 / math.sqrt(1.75)) + 0.1 * 0.25 / math.sqrt(0.1875),
            0.99**2 * (0.99 * 0.89 + 0.1 * 0.5 / math.sqrt(1.75))
            + 0.99 * 0.1 * 0.25 / math.sqrt(0.1875)
            - 0.1 * 0.375 / math.sqrt(0.296875),
        ],
        id="adams",
    ),
    pytest.param(  # m = 1, ν = 0.75 + 1, t = 1: (1/0.5)/√(1.75/0.25); m = -0.5, ν = 0.1875 + 1
        "adams_released",
        {"betas": (0.5, 0.75), "eps": 0.0},
        [2.0, -2.0],
        [
            0.99 - 0.1 * 2 / math.sqrt(7),
            0.99 * (0.99 - 0.1 * 2 / math.sqrt(7))
            + 0.1 * (0.5 / 0.75) / math.sqrt(1.1875 / 0.4375),
        ],
        id="adams_released",
    ),
    pytest.param(  # p = 3: d = c/√|c|; c = 4, z = 1 - 0.4, d = 2; then c = 2 - 4.5, m = 2 before
        "stacey",
        {"power": 3, "alpha": 0.1, "tau": 0.5, "betas": (0.5, 0.75), "eps": 1e-30},
        [8.0, -9.0],
        [
            0.5 * (1 - 0.2) + 0.5 * 0.6 - 0.01,
            0.5 * (0.69 + 0.1 * math.sqrt(3.5)) + 0.5 * (0.6 + 0.35) - 0.0069,
        ],
        id="stacey",
    ),
    pytest.param(  # m = 2, c = 1 + 4 = 5, z = -0.5, y = √5
        "stacey_released",
        {"power": 3, "alpha": 0.1, "tau": 0.5, "betas": (0.5, 0.75), "eps": 0.0 + 1e-30},
        [8.0],
        [0.99 - 0.1 * (0.5 * -0.5 + 0.5 * math.sqrt(5))],
        id="stacey_released",
    ),
    pytest.param(  # one element: coded without error, as 127/127 or, if negative, -0.993·s
        "powerstep_int8",
        {"gamma": 0.5, "beta": 0.5, "code": "linear"},
        [1.0, -1.5, 4.5, -2.0, -0.25],
        [0.89, 0.9811, 0.771289, 0.76357611, 0.8059403489],
        id="powerstep_int8-linear",
    ),
    pytest.param(  # m = -1 is read back as -(0.1 + 0.9·63.5/64) = -0.99296875; +1 exactly
        "powerstep_int8",
        {"gamma": 0.5, "beta": 1.0, "code": "dynamic"},
        [-1.0, 0.0, 1.5],
        [
            0.99 + 0.1,
            0.99 * 1.09 + 0.1 * 0.5 * 0.99296875,
            0.99 * (0.99 * 1.09 + 0.1 * 0.5 * 0.99296875)
            - 0.1 * (1.5 - 0.5 * 0.5 * 0.99296875 * 0.99296875),
        ],
        id="powerstep_int8-dynamic",
    ),
]


@pytest.mark.parametrize(("name", "hyper", "gradients", "expected"), HAND_WORKED)
def test_hand_worked_numbers(name, hyper, gradients, expected):
    rows = [[g] for g in gradients]
    got = trajectory(name, [1.0], rows, lr=0.1, weight_decay=0.1, **hyper)
    assert [row[0] for row in got] == pytest.approx(expected, rel=1e-6)
