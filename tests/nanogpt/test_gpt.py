"""Guards the model: its size, its initial weights, its arithmetic, and that it sees no future."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from nanogpt.errors import UserError
from nanogpt.model import GPT, GPTConfig
from nanogpt.runtime import seeded

SHAPES = {"small": (12, 12, 768, 124_373_760), "medium": (24, 16, 1024, 354_599_936)}
SMALL = GPTConfig(vocab_size=61, context=16, n_layer=2, n_head=2, n_embd=16)


@pytest.mark.parametrize("shape", SHAPES)
def test_parameter_count_and_flops(shape):
    layers, heads, width, count = SHAPES[shape]
    with torch.device("meta"):
        model = GPT(GPTConfig(50304, 1024, layers, heads, width))
    assert model.n_params() == model.n_active_params() == count
    in_products = count - 1024 * width
    assert model.flops_per_token(1024) == 6 * in_products + 12 * layers * width * 1024


def test_initial_weights():
    seeded(1)
    model = GPT(GPTConfig(vocab_size=500, context=64, n_layer=3, n_head=4, n_embd=128))
    names = dict(model.named_parameters())
    assert not [name for name in names if "bias" in name]
    for name, parameter in names.items():
        if parameter.dim() == 1:
            assert (parameter == 1).all(), name
            continue
        std = 0.02 / math.sqrt(6) if name.endswith("proj.weight") else 0.02
        deviation = 4 * std / math.sqrt(2 * parameter.numel())
        assert abs(parameter.std().item() - std) < deviation, name
        assert abs(parameter.mean().item()) < 4 * std / math.sqrt(parameter.numel()), name


def test_initial_weights_depend_on_the_seed_alone():
    seeded(3)
    first = GPT(SMALL).state_dict()
    torch.rand(5)
    seeded(3)
    second = GPT(SMALL).state_dict()
    seeded(4)
    other = GPT(SMALL).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["wte.weight"], other["wte.weight"])


def test_seeds_of_several_numbers_are_mixed_not_added():
    draws = set()
    for key in [(1,), (2,), (0, 1), (1, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0)]:
        seeded(*key)
        draws.add(torch.rand(1).item())
    assert len(draws) == 7


def by_hand(model: GPT, tokens: torch.Tensor) -> torch.Tensor:
    """The logits, written out from GPT-2's definition in float64."""
    w = {name: p.detach().double() for name, p in model.named_parameters()}
    config = model.config
    size = config.n_embd // config.n_head

    def norm(x, gain):
        return (
            gain
            * (x - x.mean(-1, keepdim=True))
            / torch.sqrt(x.var(-1, unbiased=False, keepdim=True) + 1e-5)
        )

    x = w["wte.weight"][tokens] + w["wpe.weight"][: tokens.shape[1]]
    future = torch.ones(tokens.shape[1], tokens.shape[1]).triu(1).bool()
    for i in range(config.n_layer):
        b = f"blocks.{i}."
        q, k, v = (norm(x, w[b + "ln_1.weight"]) @ w[b + "attn.qkv.weight"].T).chunk(3, dim=-1)
        heads = []
        for h in range(config.n_head):
            part = slice(h * size, (h + 1) * size)
            scores = q[..., part] @ k[..., part].mT / math.sqrt(size)
            heads.append(scores.masked_fill(future, -torch.inf).softmax(-1) @ v[..., part])
        x = x + torch.cat(heads, -1) @ w[b + "attn.proj.weight"].T
        inner = norm(x, w[b + "ln_2.weight"]) @ w[b + "mlp.fc.weight"].T
        gelu = inner * 0.5 * (1 + torch.erf(inner / math.sqrt(2)))
        x = x + gelu @ w[b + "mlp.proj.weight"].T
    return norm(x, w["ln_f.weight"]) @ w["wte.weight"].T


@pytest.fixture
def model():
    seeded(5)
    model = GPT(SMALL)
    with torch.no_grad():
        for parameter in model.parameters():  # away from the start, where all is near zero
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def test_logits_and_loss_equal_those_by_hand(model):
    tokens = torch.randint(61, (3, 17))
    x, y = tokens[:, :-1], tokens[:, 1:]
    logits = model(x).logits
    expected = by_hand(model, x)
    torch.testing.assert_close(logits.double(), expected, rtol=1e-4, atol=1e-4)
    p = np.exp(expected.numpy())
    picked = np.take_along_axis(p, y.numpy()[..., None], -1)[..., 0]
    out = model(x, y)
    assert out.loss.item() == pytest.approx(-np.log(picked / p.sum(-1)).mean(), rel=1e-5)
    assert out.logits is None
    assert out.aux is None


def test_a_later_token_leaves_earlier_logits(model):
    tokens = torch.randint(61, (1, 16))
    before = model(tokens).logits
    for at in (5, 15):
        changed = tokens.clone()
        changed[0, at] = (changed[0, at] + 1) % 61
        after = model(changed).logits
        assert torch.equal(before[:, :at], after[:, :at])
        assert not torch.equal(before[:, at], after[:, at])


def test_dropout_acts_in_training_only():
    seeded(5)
    model = GPT(GPTConfig(61, 16, 2, 2, 16, dropout=0.3))
    tokens = torch.randint(61, (2, 16))
    assert not torch.equal(model(tokens).logits, model(tokens).logits)
    model.eval()
    assert torch.equal(model(tokens).logits, model(tokens).logits)


def test_loss_of_bf16_weights_is_computed_in_fp32(model):
    tokens = torch.randint(61, (2, 17))
    loss = model.to(torch.bfloat16)(tokens[:, :-1], tokens[:, 1:]).loss
    assert loss.dtype == torch.float32
    logits = model(tokens[:, :-1]).logits
    assert loss.item() == F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


def test_refusals():
    with pytest.raises(UserError, match="17 tokens is longer than the model's context, 16"):
        GPT(SMALL)(torch.zeros(1, 17, dtype=torch.long))
    with pytest.raises(UserError, match="n_embd 10 is not a multiple of n_head 4"):
        GPTConfig(n_head=4, n_embd=10)
    with pytest.raises(UserError, match="n_layer is 0"):
        GPTConfig(n_layer=0)
    with pytest.raises(UserError, match=r"dropout is 1\.0"):
        GPTConfig(dropout=1.0)
