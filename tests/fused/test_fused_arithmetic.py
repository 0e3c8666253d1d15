"""The kernels' building blocks against float64 and against the plain search for the nearest code.

Guards: the signed power's error at every magnitude and at zero, infinity, NaN and subnormals; the
8-bit codes at every border between two of them.
"""

import math

import pytest
import torch
import triton
import triton.language as tl
from fused_kit import spacing, ulps

from powerstep_repro.optim.functional import signed_power
from powerstep_repro.optim.fused import arithmetic
from powerstep_repro.optim.quantize import block_code, dynamic_map

LENGTH = 1 << 15


@triton.jit
def power_kernel(x, y, beta, POWER: tl.constexpr, FAST: tl.constexpr, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(y + at, arithmetic.signed_power(tl.load(x + at), beta, POWER, FAST))


@triton.jit
def encode_kernel(x, y, CODE: tl.constexpr, SIGNED: tl.constexpr, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    if CODE == "dynamic":
        codes = arithmetic.encode_dynamic(tl.load(x + at), SIGNED)
    else:
        codes = arithmetic.encode_linear(tl.load(x + at), SIGNED)
    tl.store(y + at, codes)


@triton.jit
def decode_kernel(codes, y, SIGNED: tl.constexpr):
    at = tl.arange(0, 256)
    tl.store(y + at, arithmetic.decode_linear(tl.load(codes + at), SIGNED))


@triton.jit
def divide_kernel(x, y, maxima, ROWS: tl.constexpr):
    row = tl.arange(0, ROWS)
    at = row[:, None] * 128 + tl.arange(0, 128)[None, :]
    block = tl.load(x + at)
    maximum = arithmetic.row_maximum(block)
    tl.store(maxima + row, maximum)
    tl.store(y + at, arithmetic.divide_by_row(block, maximum))


@triton.jit
def correction_kernel(steps, y, log_beta, N: tl.constexpr):
    for i in range(N):
        tl.store(y + i, arithmetic.bias_correction(tl.load(steps + i), log_beta))


def padded(x):
    return torch.cat([x, x.new_ones(-len(x) % LENGTH)])


def power(x, beta, kind, fast=False):
    y = torch.empty_like(padded(x))
    grid = (len(y) // LENGTH,)
    power_kernel[grid](padded(x), y, beta, POWER=kind, FAST=fast, N=LENGTH, enable_fp_fusion=False)
    return y[: len(x)]


def encode(x, code, signed):
    y = torch.empty_like(padded(x), dtype=torch.int32)
    encode_kernel[(len(y) // LENGTH,)](padded(x), y, CODE=code, SIGNED=signed, N=LENGTH)
    return y[: len(x)]


def numbers(device):
    """Positive floats of every magnitude, subnormals and their neighbours among them."""
    generator = torch.Generator().manual_seed(0)
    bits = torch.cat(
        [
            torch.randint(1, 0x7F800000, (LENGTH,), generator=generator, dtype=torch.int32),
            torch.randint(1, 0x00800000, (LENGTH // 4,), generator=generator, dtype=torch.int32),
            torch.tensor([1, 0x007FFFFF, 0x00800000, 0x3F800000, 0x3F3504F3, 0x7F7FFFFF]).int(),
        ]
    )
    return bits.view(torch.float32).to(device)


@pytest.mark.parametrize(
    ("beta", "kind"),
    [(0.1, "root"), (0.05, "root"), (0.5, "root"), (0.8, "root"), (0.1, "any"), (0.99, "any")],
)
@pytest.mark.parametrize("fast", [False, True])
def test_signed_power_is_within_its_error(device, beta, kind, fast):
    bound = 1.5 + 2.8 * beta * fast
    x = numbers(device)
    y = power(x, beta, kind, fast).cpu().double()
    exact = x.cpu().double() ** torch.tensor(beta, dtype=torch.float32).double()
    assert ((y - exact).abs() / spacing(exact)).max() <= bound


@pytest.mark.parametrize(("beta", "kind"), [(0.0, "sign"), (0.3, "root"), (0.9, "any")])
def test_signed_power_of_special_numbers(device, beta, kind):
    x = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0], device=device)
    assert ulps(power(x, beta, kind).cpu(), signed_power(x, beta).cpu()).max() == 0


def test_identity_is_exact(device):
    x = numbers(device)
    assert torch.equal(power(x, 1.0, "identity"), x)


@pytest.mark.parametrize("signed", [True, False])
def test_dynamic_codes_at_every_border(device, signed):
    """Farther than the stated error from a border the code is the search's; at it, a neighbour."""
    entries = dynamic_map(signed).double()
    borders = ((entries[1:] + entries[:-1]) / 2).float()
    x = (borders.view(torch.int32)[:, None] + torch.arange(-40, 41).int()).view(torch.float32)
    got = encode(x.reshape(-1).to(device), "dynamic", signed).cpu().view(x.shape)
    border = torch.arange(255)[:, None]
    expected = border + (x > borders[:, None]).int()
    assert (got - border).clamp(0, 1).equal(got - border), "not next to its border"
    # In units of the distance between the two entries.
    apart = (x.double() - borders.double()[:, None]).abs() / entries.diff()[:, None]
    assert (got == expected)[apart > 2e-5].all()


@pytest.mark.parametrize("signed", [True, False])
def test_dynamic_codes_of_random_numbers(device, signed):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(LENGTH, generator=generator)
    x = torch.where(torch.rand(LENGTH, generator=generator) < 0.5, x, x ** (20 * x))
    if signed:
        x = torch.where(torch.rand(LENGTH, generator=generator) < 0.5, x, -x)
    got = encode(x.to(device), "dynamic", signed).cpu()
    expected = block_code("dynamic", signed=signed).encode(x)
    assert (got != expected).sum() <= 2


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("code", ["dynamic", "linear"])
def test_entries_have_their_own_codes(device, code, signed):
    """What was read back is stored again as it was; NaN has the code of the reference."""
    reference = block_code(code, signed=signed)
    codes = torch.arange(-128, 128, dtype=torch.int32).to(reference.dtype).to(device)
    values = torch.cat([reference.decode(codes), torch.tensor([math.nan], device=device)])
    values = values[values.isnan() | (values.abs() <= 1)]
    got = encode(values, code, signed).to(reference.dtype)
    assert torch.equal(got, reference.encode(values).to(reference.dtype))


@pytest.mark.parametrize("signed", [True, False])
def test_linear_codes_read_back_exactly(device, signed):
    reference = block_code("linear", signed=signed)
    codes = torch.arange(256, dtype=torch.int32).to(reference.dtype).to(device)
    y = torch.empty(256, device=device)
    decode_kernel[(1,)](codes, y, SIGNED=signed, enable_fp_fusion=False)
    assert torch.equal(y, reference.decode(codes))


def test_division_by_row_maximum(device):
    """At every scale down to subnormal; zero and infinite rows; a NaN fills its row."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(16, 128, generator=generator)
    x *= 10.0 ** torch.linspace(-45, 37, 16)[:, None]
    x[3] = 0.0
    x[4, 7] = math.inf
    x[5, 9] = math.nan
    x = x.to(device)
    y, maxima = torch.empty_like(x), torch.empty(16, device=device)
    divide_kernel[(1,)](x, y, maxima, ROWS=16, enable_fp_fusion=False)
    expected = x.abs().amax(dim=1)
    assert ulps(maxima.cpu(), expected.cpu()).max() == 0
    quotient = x / torch.where(expected == 0, 1, expected)[:, None]
    assert ulps(y.cpu(), quotient.cpu()).max() <= 1


def test_bias_correction_keeps_its_precision(device):
    steps = torch.tensor([1.0, 2.0, 3.0, 7.0, 50.0, 1e3, 1e5], device=device)
    for beta in (0.9, 0.95, 0.999):
        y = torch.empty_like(steps)
        correction_kernel[(1,)](steps, y, math.log(beta), N=7, enable_fp_fusion=False)
        exact = -torch.expm1(steps.cpu().double() * math.log(beta))
        torch.testing.assert_close(y.cpu().double(), exact, rtol=2e-7, atol=0)
