"""Twins of an optimizer, one taking reference and one fused steps, and how to compare them."""

import torch

from powerstep_repro.optim import create

# Every rule and every storage of state that has a fused step.
CASES = {
    "powerstep": ("powerstep", {}),
    "powerstep, beta 0": ("powerstep", {"beta": 0.0}),
    "powerstep, beta 0.9": ("powerstep", {"beta": 0.9}),
    "powerstep, beta 1": ("powerstep", {"beta": 1.0}),
    "signsgd": ("signsgd", {}),
    "pbsgdm": ("pbsgdm", {}),
    "adams": ("adams", {}),
    "int8 dynamic": ("powerstep_int8", {}),
    "int8 linear": ("powerstep_int8", {"code": "linear"}),
    "adamw dynamic": ("adamw_int8", {}),
    "adamw linear": ("adamw_int8", {"code": "linear"}),
    "adamw mixed": ("adamw_int8", {"code_m": "linear", "code_v": "dynamic"}),
}
# One of each kind of arithmetic, for tests of what is the same for all rules.
FEW = {name: CASES[name] for name in ("powerstep", "int8 dynamic", "adamw mixed")}

# Sizes around a quantization block, and around what a program takes (1024 to 4096, its tail 512).
SHAPES = [(1,), (127,), (128,), (129,), (3, 171), (2048,), (4099,)]


def twins(name, tensors, **hyperparameters):
    """Return two optimizers over equal parameters: reference and fused."""
    return tuple(
        create(
            name,
            [torch.nn.Parameter(t.clone()) for t in tensors],
            implementation=implementation,
            **{"lr": 1e-3, "weight_decay": 0.1} | hyperparameters,
        )
        for implementation in ("reference", "fused")
    )


def params(optimizer):
    return [p for group in optimizer.param_groups for p in group["params"]]


def set_grads(optimizers, grads):
    for optimizer in optimizers:
        for p, g in zip(params(optimizer), grads, strict=True):
            p.grad = None if g is None else g.clone()


def random_grads(tensors, seed=0):
    """Gradients over six orders of magnitude, as dtypes and shapes of ``tensors`` ask for."""
    generator = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(t.shape, generator=generator)
            * 10 ** torch.empty(t.shape).uniform_(-6, 0, generator=generator)
        ).to(t)
        for t in tensors
    ]


def random_tensors(device, shapes=SHAPES, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(s, generator=generator).to(device, dtype) for s in shapes]


def flat(tensors):
    return torch.cat([t.detach().reshape(-1) for t in tensors]).cpu()


def ulps(a, b):
    """Return how many fp32 numbers apart a and b are; NaN equals NaN, and 0 equals -0."""

    def ordered(x):
        bits = x.float().contiguous().view(torch.int32).long()
        return torch.where(bits < 0, -(bits & 0x7FFFFFFF), bits)

    distance = (ordered(a) - ordered(b)).abs()
    return torch.where(torch.isnan(a) & torch.isnan(b), 0, distance)


def spacing(x):
    """Return the distance between fp32 numbers at ``x``, an ulp, as float64."""
    exponent = torch.frexp(x.abs().double().clamp_min(2.0**-126))[1] - 24
    return torch.exp2(exponent.double())


def state(optimizer, name):
    return flat([optimizer.state[p][name] for p in params(optimizer)])


def state_names(optimizer):
    return [k for k in optimizer.state[params(optimizer)[0]] if k != "step"]


def assert_same_state(reference, fused, ties=2):
    """Codes equal but for a few ties (then neighbours), all else to two ulp."""
    for name in state_names(fused):
        a, b = state(reference, name), state(fused, name)
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        if name.endswith("_codes"):
            apart = (a.int() - b.int()).abs()
            assert apart.max() <= 1, name
            assert (apart != 0).sum() <= ties, name
        else:
            # pbSGDM sums powers, which are equal to an ulp each: sums that cancel keep it.
            power_sum = type(fused).__name__ == "PbSGDM"
            near = (a - b).abs() <= (8 * spacing(torch.ones(())) if power_sum else 0)
            assert ((ulps(a, b) <= 2) | near).all(), name
