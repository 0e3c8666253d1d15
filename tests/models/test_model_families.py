"""Guards the wrapper around transformers' models: loss, gradients, seeds, precision, learning."""

import subprocess
import sys

import pytest
import torch

from nanogpt.runtime import Runtime

FAMILIES = ("qwen3_0_6b", "qwen3_30b_a3b", "deepseek_v2_lite")


def transformers_own(module):
    """A model of transformers alone, its own expert layers included, with the same weights."""
    config = type(module.lm.config)(**module.lm.config.to_diff_dict())
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    own = type(module.lm)(config)
    own.load_state_dict(module.lm.state_dict())
    return own


@pytest.mark.parametrize("name", FAMILIES)
def test_loss_and_gradients_equal_cross_entropy_of_transformers_own_logits(small, batch, name):
    module = small(name, aux_loss_coef=0.0)
    tokens, targets = batch(2, 24)
    own = transformers_own(module)
    logits = own(input_ids=tokens, use_cache=False).logits
    normaliser = logits.exp().sum(-1).log()
    by_hand = (normaliser - logits.gather(-1, targets[..., None]).squeeze(-1)).mean()

    out = module(tokens, targets)
    assert out.logits is None
    assert out.aux is None
    torch.testing.assert_close(out.loss, by_hand)
    torch.testing.assert_close(module(tokens).logits, logits)

    out.loss.backward()
    by_hand.backward()
    theirs = dict(own.named_parameters())
    for key, parameter in module.lm.named_parameters():
        torch.testing.assert_close(parameter.grad, theirs[key].grad, msg=lambda m, k=key: k + m)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_prediction_does_not_see_what_follows(small, batch, name):
    module = small(name).eval()
    tokens, _ = batch(1, 16)
    changed = tokens.clone()
    changed[0, 9:] = (changed[0, 9:] + 1) % 257
    with torch.no_grad():
        a, b = module(tokens).logits, module(changed).logits
    torch.testing.assert_close(a[:, :9], b[:, :9])
    assert not torch.allclose(a[:, 9:], b[:, 9:])


@pytest.mark.parametrize("name", FAMILIES)
def test_the_seed_alone_gives_the_weights(small, name):
    first, again, other = small(name), small(name), small(name, seed=1)
    state = first.state_dict()
    for key, value in again.state_dict().items():
        assert torch.equal(value, state[key]), key
    matrices = [k for k, v in state.items() if v.dim() > 1]
    assert all(not torch.equal(other.state_dict()[k], state[k]) for k in matrices)
    # The family's own initialisation: N(0, 0.02) for every matrix, routers too; norms at one.
    for key, value in state.items():
        if value.dim() > 1:
            assert abs(value.std().item() / 0.02 - 1) < 0.1, key
            assert abs(value.mean().item()) < 0.003, key
        else:
            assert torch.equal(value, torch.ones_like(value)), key


@pytest.mark.parametrize("name", ["qwen3_4b", "qwen3_8b"])
def test_the_output_layer_is_tied_where_the_original_is(small, name):
    module = small(name)
    tied = module.lm.lm_head.weight is module.lm.model.embed_tokens.weight
    assert tied == (name == "qwen3_4b")


@pytest.mark.parametrize("name", FAMILIES)
def test_every_precision_gives_the_same_loss_roughly(small, batch, name):
    tokens, targets = batch(2, 64)
    losses = {}
    for precision in ("fp32", "amp_bf16", "bf16"):
        with Runtime("cpu", precision) as runtime:
            module = runtime.place(small(name))
            with runtime.autocast():
                out = module(tokens, targets)
            (out.loss + (out.aux or 0)).backward()
        assert out.loss.dtype == torch.float32
        assert all(p.grad.isfinite().all() for p in module.parameters())
        losses[precision] = out.loss.item()
        # A bf16 frequency would turn late positions by radians.
        assert module.lm.model.rotary_emb.inv_freq.dtype == torch.float32
    assert losses["amp_bf16"] == pytest.approx(losses["fp32"], abs=0.02)
    assert losses["bf16"] == pytest.approx(losses["fp32"], abs=0.02)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_few_steps_lower_the_loss(small, batch, name):
    module = small(name)
    tokens, targets = batch(2, 32)
    optimizer = torch.optim.AdamW(module.parameters(), lr=3e-3)
    losses = []
    for _ in range(12):
        out = module(tokens, targets)
        losses.append(out.loss.item())
        optimizer.zero_grad()
        (out.loss + (out.aux or 0)).backward()
        optimizer.step()
    assert losses[0] == pytest.approx(5.55, abs=0.15)  # ln 257: the start knows nothing
    assert losses[-1] < losses[0] - 0.5


def test_a_dense_model_compiles_without_a_break(small, batch):
    module = small("qwen3_0_6b")
    tokens, targets = batch(2, 16)
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(tokens, targets).loss, module(tokens, targets).loss)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen3_30b_a3b", "deepseek_v2_lite"])
def test_a_mixture_of_experts_runs_under_compile(small, batch, name):
    module = small(name, layers=2, experts=4, experts_per_token=2)
    tokens, targets = batch(2, 16)
    expected = module(tokens, targets)
    out = torch.compile(module, backend="eager")(tokens, targets)
    torch.testing.assert_close(out.loss, expected.loss)
    torch.testing.assert_close(out.aux, expected.aux)


@pytest.mark.slow
def test_imports_stay_narrow():
    """Naming the package costs no torch; building a family imports no other."""
    script = """
import sys
import powerstep_repro.models, powerstep_repro.models.count, powerstep_repro.evidence.memory
assert not {"torch", "transformers"} & set(sys.modules)
powerstep_repro.evidence.memory.rows()
assert "torch" not in sys.modules
from powerstep_repro.config import compose
powerstep_repro.models.build(compose(["model=qwen3_0_6b"])["model"])
families = {m.split(".")[2] for m in sys.modules if m.startswith("transformers.models.")}
assert not families & {"qwen3_moe", "deepseek_v2"}, families
"""
    subprocess.run([sys.executable, "-c", script], check=True)
