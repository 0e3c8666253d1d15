"""The trainer's kernels compute what plain torch computes, forward and backward.

Guards: a softmax that overflows; tails that are not a whole block; the gradient's factor lost or
applied twice; rows or programs left out of a weight's gradient; rounding other than once, on
writing. Without a GPU they run under Triton's interpreter.
"""

import pytest
import torch
import torch.nn.functional as F

from nanogpt import kernels
from nanogpt.kernels import activation
from nanogpt.kernels import norm as norm_kernels
from nanogpt.kernels.activation import GeluLinear
from nanogpt.kernels.cross_entropy import LinearCrossEntropy
from nanogpt.kernels.norm import AddNorm
from nanogpt.kernels.projection import SplitLinear
from nanogpt.model import GPT, GPTConfig

TOLERANCE = {torch.float32: 2e-6, torch.float16: 3e-3, torch.bfloat16: 2e-2}


@pytest.fixture(autouse=True)
def _few_programs(device, monkeypatch):
    """An interpreter runs them one after the other."""
    if device.type == "cpu":
        monkeypatch.setattr(norm_kernels, "PROGRAMS", 3)


def draw(device, *shape, dtype=torch.float32, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    values = scale * torch.randn(*shape, generator=generator)
    return values.to(device, dtype).requires_grad_()


def close(a, b, precision):
    """Within the precision's tolerance, relative to the largest element."""
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    a, b = a.detach().float(), b.detach().float()
    assert (a - b).abs().max() <= TOLERANCE[precision] * b.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("classes", [5, 1025, 16384, 20001])
def test_cross_entropy_and_its_gradients(device, classes, dtype):
    """Of the same logits the loss is taken in float64.

    Plain torch's own in float32 depends on the processor: over 20,001 classes it is 1.1e-6 of the
    largest gradient off under AVX-512, and 2.7e-6 under AVX2; the kernel 1e-6 at most under both.
    """
    hidden = draw(device, 3, 4, 16, dtype=dtype)
    weight = draw(device, classes, 16, dtype=dtype, seed=1)
    targets = torch.arange(12, device=device).view(3, 4) % classes
    targets[0, 0] = classes - 1

    expected = F.cross_entropy(F.linear(hidden, weight).flatten(0, 1).double(), targets.flatten())
    wanted = torch.autograd.grad(0.3 * expected, [hidden, weight])
    loss = LinearCrossEntropy.apply(hidden.flatten(0, 1), weight, targets.flatten(), 1)
    got = torch.autograd.grad(0.3 * loss, [hidden, weight])
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected.float(), rtol=2e-6, atol=0)
    for a, b in zip(got, wanted, strict=True):
        close(a, b, dtype)


@pytest.mark.parametrize("passes", [2, 3, 6])
def test_a_batch_in_passes_has_the_same_logit_gradients(device, passes):
    """Bit for bit: they are rounded at their final size, whatever a micro-batch's is."""
    logits = draw(device, 12, 70, dtype=torch.bfloat16)
    itself = torch.eye(70, dtype=torch.bfloat16, device=device)
    targets = torch.arange(12, device=device)

    def gradient(rows, labels, passes):
        loss = LinearCrossEntropy.apply(rows, itself, labels, passes)
        return torch.autograd.grad(loss, rows)[0]

    parts = zip(logits.chunk(passes), targets.chunk(passes), strict=True)
    parts = [gradient(rows, labels, passes) for rows, labels in parts]
    assert torch.cat(parts).equal(gradient(logits, targets, 1))


def test_cross_entropy_of_huge_logits(device):
    hidden = torch.tensor([[3e4], [-3e4]], device=device)
    weight = torch.tensor([[1.0], [0.5], [-1.0]], device=device)
    targets = torch.tensor([0, 0], device=device)
    assert LinearCrossEntropy.apply(hidden, weight, targets, 1).item() == pytest.approx(3e4)


@pytest.mark.parametrize("target", [-1, 5, -100])
def test_an_unknown_target_is_no_number(device, target):
    loss = LinearCrossEntropy.apply(
        draw(device, 2, 4), draw(device, 5, 4), torch.tensor([1, target], device=device), 1
    )
    assert loss.isnan()


@pytest.mark.parametrize(
    ("stream", "branch"),
    [(torch.float32,) * 2, (torch.float32, torch.bfloat16), (torch.bfloat16,) * 2],
)
@pytest.mark.parametrize(("rows", "width"), [((1,), 128), ((7,), 96), ((2, 5), 100), ((3, 3), 8)])
def test_add_norm_and_its_gradients(device, rows, width, stream, branch):
    residual = draw(device, *rows, width, dtype=stream)
    added = draw(device, *rows, width, dtype=branch, seed=1)
    norm = torch.nn.LayerNorm(width, bias=False).to(device, stream)
    with torch.no_grad():
        norm.weight.copy_(draw(device, width, seed=2))
    above = draw(device, *rows, width, seed=3), draw(device, *rows, width, seed=4)

    def gradients(outputs):
        total = sum((o.float() * a.detach()).sum() for o, a in zip(outputs, above, strict=True))
        return torch.autograd.grad(total, [residual, added, norm.weight])

    total = residual + added
    expected = total, norm(total).to(branch)
    outputs = AddNorm.apply(residual, added, norm.weight, norm.eps)
    close(outputs[0], expected[0], stream)  # the interpreter cuts bfloat16 off instead of rounding
    if stream == torch.float32:
        assert torch.equal(outputs[0], expected[0])
    close(outputs[1], expected[1], branch)
    for a, b in zip(gradients(outputs), gradients(expected), strict=True):
        close(a, b, max(stream, branch, key=lambda dtype: TOLERANCE[dtype]))


def test_every_row_reaches_the_weights_gradient(device):
    """More rows than programs take at once, and an odd number of them."""
    rows = 4 * norm_kernels.PROGRAMS + 3
    residual, branch = draw(device, rows, 8), draw(device, rows, 8, seed=1)
    weight = torch.ones(8, device=device, requires_grad=True)
    total = (residual + branch).detach()
    expected = (F.layer_norm(total, (8,))).sum(0)
    _, normed = AddNorm.apply(residual, branch, weight, 1e-5)
    (got,) = torch.autograd.grad(normed.sum(), [weight])
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 5), (3, 700), (2, 64, 256), (1280, 128)])
def test_gelu_its_product_and_their_gradients(device, monkeypatch, shape, dtype, tiled):
    """Where whole tiles of the product fit, and more rows of them than a group has; else apart."""
    if tiled and device.type == "cpu" and dtype == torch.bfloat16:
        pytest.skip("Triton's interpreter multiplies the bits of bfloat16 numbers")
    monkeypatch.setattr(activation, "IN_REGISTERS", tiled)
    x = draw(device, *shape, dtype=dtype, scale=3.0)
    weight = draw(device, 128, shape[-1], dtype=dtype, seed=1)
    above = draw(device, *shape[:-1], 128, dtype=dtype, seed=2).detach()
    expected, got = F.linear(F.gelu(x), weight), GeluLinear.apply(x, weight)
    close(got, expected, dtype)
    wanted = torch.autograd.grad(expected, [x, weight], above)
    for a, b in zip(torch.autograd.grad(got, [x, weight], above), wanted, strict=True):
        close(a, b, dtype)


def gelu(x):
    """GELU alone, as the product with one shows it."""
    return GeluLinear.apply(x[:, None], torch.ones(1, 1, device=x.device, dtype=x.dtype))[:, 0]


@pytest.mark.parametrize("size", [1, 2047, 3000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gelu_and_its_gradient(device, dtype, size):
    x = draw(device, size, dtype=dtype, scale=3.0)
    above = draw(device, size, dtype=dtype, seed=1).detach()
    expected, got = F.gelu(x.double()), gelu(x)
    (wanted,) = torch.autograd.grad(expected, [x], above.double())
    (gradient,) = torch.autograd.grad(got, [x], above)
    close(got, expected.to(dtype), dtype)
    close(gradient, wanted, dtype)


def test_gelu_keeps_its_precision_in_the_tail(device):
    """Relative to the result, where 1 + erf cancels; and beyond, where it is zero or x itself."""
    x = torch.linspace(-8, 8, 4097, dtype=torch.float64)
    exact = (0.5 * x * torch.special.erfc(-x / 2**0.5)).float()
    got = gelu(x.float().to(device)).cpu()
    assert ((got - exact).abs() <= 4e-6 * exact.abs()).all()
    far = torch.tensor([-1e4, 1e4, 3e38, float("inf"), float("nan")], device=device)
    assert gelu(far).tolist()[:4] == [0.0, 1e4, pytest.approx(3e38), float("inf")]
    assert gelu(far)[4].isnan()


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_split_layer_and_its_gradients(device, dtype, compiled):
    """Parts in their order, each with its own gradient, from tensors that lie anywhere."""
    x, weight = draw(device, 2, 3, 8, dtype=dtype), draw(device, 12, 8, dtype=dtype, seed=1)
    above = [draw(device, 3, 2, 4, dtype=dtype, seed=seed).detach() for seed in (2, 3, 4)]

    def gradients(parts):
        total = sum((part.transpose(0, 1) * a).sum() for part, a in zip(parts, above, strict=True))
        return torch.autograd.grad(total, [x, weight])

    expected = F.linear(x, weight).chunk(3, -1)
    split = torch.compile(SplitLinear.apply, backend="aot_eager") if compiled else SplitLinear.apply
    got = split(x, weight)
    for a, b in zip((*got, *gradients(got)), (*expected, *gradients(expected)), strict=True):
        close(a, b, dtype)


@pytest.fixture
def loss_and_gradients(device, monkeypatch):
    """Of one model and one batch, in float32 or mixed precision, with the kernels or plain."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=101, context=16, n_layer=2, n_head=2, n_embd=32)).to(device)
    tokens = torch.randint(0, 101, (2, 17), device=device)

    def compute(precision, fused):
        monkeypatch.setattr(kernels, "_fused", lambda tensor: fused)
        model.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "amp_bf16"):
            loss = model(tokens[:, :-1], tokens[:, 1:]).loss
        loss.backward()
        return loss.detach(), [p.grad for p in model.parameters()]

    return compute


@pytest.mark.parametrize("precision", ["fp32", "amp_bf16"])
def test_a_model_is_the_same_with_and_without(loss_and_gradients, precision):
    plain, plain_gradients = loss_and_gradients(precision, fused=False)
    loss, gradients = loss_and_gradients(precision, fused=True)
    dtype = torch.float32 if precision == "fp32" else torch.bfloat16
    torch.testing.assert_close(loss, plain, rtol=TOLERANCE[dtype] / 10, atol=0)
    for a, b in zip(gradients, plain_gradients, strict=True):
        assert a.dtype == torch.float32
        close(a, b, dtype)


def test_gradients_are_as_near_to_float32_as_autocast_brings_them(device, loss_and_gradients):
    """What rounds elsewhere is no less precise; the interpreter, which cuts off, is (up to 1.6)."""

    def error(gradients):
        return sum((g - e).square().sum() for g, e in zip(gradients, exact, strict=True)).sqrt()

    _, exact = loss_and_gradients("fp32", fused=False)
    plain, fused = (loss_and_gradients("amp_bf16", fused)[1] for fused in (False, True))
    assert error(fused) <= error(plain) * (1.1 if device.type == "cuda" else 2)


def test_plain_torch_where_there_is_no_gpu(monkeypatch):
    """On a CPU nothing changes, interpreter or not; and the kernels can be switched off."""
    assert not kernels._fused(torch.zeros(1))
    monkeypatch.setattr(kernels, "enabled", False)
    if torch.cuda.is_available():
        assert not kernels._fused(torch.zeros(1, device="cuda"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_compiled_in_one_graph(device, monkeypatch):
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=997, context=64, n_layer=2, n_head=2, n_embd=128)).to(device)
    tokens = torch.randint(0, 997, (4, 65), device=device)

    def loss_and_gradients(enabled):
        monkeypatch.setattr(kernels, "enabled", enabled)
        model.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.compile(model, fullgraph=True)(tokens[:, :-1], tokens[:, 1:]).loss
        loss.backward()
        return loss.detach(), [p.grad for p in model.parameters()]

    plain, plain_gradients = loss_and_gradients(False)
    loss, gradients = loss_and_gradients(True)
    torch.testing.assert_close(loss, plain, rtol=1e-3, atol=0)
    for a, b in zip(gradients, plain_gradients, strict=True):
        close(a, b, torch.bfloat16)
