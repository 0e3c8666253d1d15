"""Guards mixtures of experts: the balancing loss, the experts' computation, gradients, resume."""

import pytest
import torch
import torch.nn.functional as F

from nanogpt.checkpoint import CheckpointStore
from nanogpt.evaluate import evaluate
from nanogpt.loop import train
from nanogpt.runtime import Runtime, seeded
from nanogpt.settings import Settings
from powerstep_repro.config import compose
from powerstep_repro.models import build, moe
from powerstep_repro.models.moe import load_balancing_loss
from powerstep_repro.optim import create_for_model

MOE = ("qwen3_30b_a3b", "deepseek_v2_lite")


def by_hand(logits, top_k):
    """E * sum of f_i P_i with plain loops."""
    tokens, n_experts = logits.shape
    total = 0.0
    for expert in range(n_experts):
        assigned, probability = 0, 0.0
        for row in logits:
            p = row.softmax(0)
            assigned += int(expert in p.topk(top_k).indices.tolist())
            probability += p[expert].item()
        total += assigned / (tokens * top_k) * probability / tokens
    return n_experts * total


def test_the_balancing_loss_by_hand():
    generator = torch.Generator().manual_seed(0)
    layers = [torch.randn(10, 6, generator=generator) * 3 for _ in range(2)]
    expected = sum(by_hand(logits, 2) for logits in layers)
    assert load_balancing_loss(layers, 2).item() == pytest.approx(expected, rel=1e-5)


def test_the_balancing_loss_at_its_ends():
    even = torch.eye(4).repeat(5, 1) * 1e-4  # each expert first choice of a quarter
    assert load_balancing_loss([even], 1).item() == pytest.approx(1.0, abs=1e-3)
    collapsed = torch.tensor([[50.0, 0, 0, 0]]).repeat(20, 1)
    assert load_balancing_loss([collapsed], 1).item() == pytest.approx(4.0, abs=1e-3)


def test_the_balancing_loss_pushes_towards_balance():
    """Descent on it alone evens out a router that prefers one expert."""
    logits = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    logits[:, 0] += 3
    logits.requires_grad_()
    start = load_balancing_loss([logits], 2)
    (gradient,) = torch.autograd.grad(start, logits)
    after = load_balancing_loss([logits - 20 * gradient], 2)
    assert after < start
    assert gradient[:, 0].sum() > 0  # the preferred expert goes down


@pytest.mark.parametrize("name", MOE)
def test_both_families_use_that_formula_on_their_own_routers(small, batch, name):
    module = small(name)
    tokens, targets = batch(2, 16)
    inputs = {}
    blocks = [layer.mlp for layer in module.lm.model.layers if hasattr(layer.mlp, "experts")]
    assert len(blocks) == 2
    for block in blocks:
        block.register_forward_pre_hook(lambda b, args: inputs.update({b: args[0].detach()}))
    out = module(tokens, targets)
    logits = [F.linear(inputs[b].flatten(0, 1), b.gate.weight.detach()) for b in blocks]
    expected = 1e-3 * sum(by_hand(part, module.experts_per_token) for part in logits)
    assert out.aux.item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("name", MOE)
def test_the_router_is_the_one_that_chooses(small, batch, name):
    """The logits that are balanced rank the experts as the layer's own choice does."""
    module = small(name).eval()
    chosen = []
    for layer in module.lm.model.layers:
        if hasattr(layer.mlp, "experts"):
            layer.mlp.experts.register_forward_pre_hook(lambda _, args: chosen.append(args[1]))
    module._router_logits = observed = []
    body, (tokens, _) = module.lm.model, batch(2, 16)
    hidden, positions = body.embed_tokens(tokens), torch.arange(16)[None]
    rotary = body.rotary_emb(hidden, positions)
    for layer in body.layers:
        hidden = layer(hidden, position_ids=positions, position_embeddings=rotary)
    for logits, experts in zip(observed, chosen, strict=True):
        ours = logits.topk(module.experts_per_token).indices
        assert torch.equal(ours.sort().values, experts.sort().values)


@pytest.mark.parametrize("name", MOE)
def test_nothing_is_left_over_from_one_call_to_the_next(small, batch, name):
    module = small(name)
    first, other = batch(2, 16), batch(3, 8, seed=1)
    expected = module(*first).aux
    module(*other)
    module(other[0])
    assert module(*first).aux.item() == expected.item()
    assert module._router_logits is None


@pytest.mark.parametrize("name", MOE)
def test_validation_is_pure_cross_entropy(small, batch, name):
    """The loss is the same whatever the coefficient; only ``aux`` and training see it."""
    tokens, targets = batch(2, 16)
    windows = torch.cat([tokens, targets[:, -1:]], dim=1).numpy()
    losses = []
    for coefficient in (0.0, 1e-3, 1.0):
        module = small(name, aux_loss_coef=coefficient)
        out = module(tokens, targets)
        assert (out.aux is None) == (coefficient == 0)
        with Runtime("cpu") as runtime:
            validation = evaluate(module, windows, runtime, 2)
        assert sum(validation) / 2 == pytest.approx(out.loss.item(), rel=1e-5)
        losses.append(out.loss.item())
    assert len(set(losses)) == 1


@pytest.mark.parametrize("name", MOE)
def test_both_losses_are_shared_out_over_the_passes_of_a_step(small, batch, name):
    module = small(name)
    whole, part = module(*batch(2, 16)), module(*batch(2, 16), passes=4)
    torch.testing.assert_close(4 * part.loss, whole.loss)
    torch.testing.assert_close(4 * part.aux, whole.aux)


@pytest.mark.parametrize("name", MOE)
def test_the_balancing_loss_alone_moves_the_routers(small, batch, name):
    module = small(name)
    module(*batch(2, 16)).aux.backward()
    for layer in module.lm.model.layers:
        if hasattr(layer.mlp, "experts"):
            assert layer.mlp.gate.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("name", MOE)
def test_gradients_reach_every_parameter_and_every_expert(small, batch, name):
    module = small(name)
    reached = {key: torch.zeros_like(p, dtype=torch.bool) for key, p in module.named_parameters()}
    for step in range(6):
        module.zero_grad()
        out = module(*batch(8, 64, seed=step))
        (out.loss + out.aux).backward()
        for key, parameter in module.named_parameters():
            reached[key] |= parameter.grad != 0
    for key, hit in reached.items():
        # Each expert's slice, each row of any other matrix; byte 256 of the embedding included.
        rows = hit.flatten(1).any(1) if hit.dim() > 1 else hit
        assert rows.all(), key


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_grouped_kernel_and_the_loop_agree(monkeypatch, dtype):
    """One of them runs here, the other elsewhere; an expert without tokens included."""
    if not hasattr(F, "grouped_mm"):
        pytest.skip("this torch has no grouped kernel")
    generator = torch.Generator().manual_seed(0)
    loads = torch.tensor([5, 0, 17, 10], dtype=torch.int32)
    rows = torch.randn(32, 24, generator=generator, dtype=dtype, requires_grad=True)
    weights = torch.randn(4, 16, 24, generator=generator, dtype=dtype, requires_grad=True)

    def outcome():
        out = moe._grouped_linear(rows, weights, loads)
        return out, *torch.autograd.grad(out.square().sum(), (rows, weights))

    grouped = outcome()
    monkeypatch.delattr(F, "grouped_mm")
    for a, b in zip(grouped, outcome(), strict=True):
        assert torch.equal(a, b) or dtype == torch.bfloat16
        torch.testing.assert_close(a, b)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", MOE)
def test_bf16_experts_on_a_gpu(batch, small, name):
    """The grouped kernel under autocast, plain and compiled, against fp32 on the CPU."""
    tokens, targets = batch(4, 64)
    expected = small(name)(tokens, targets)
    module = small(name).cuda()
    for model in (module, torch.compile(module)):
        with torch.autocast("cuda", torch.bfloat16):
            out = model(tokens.cuda(), targets.cuda())
        (out.loss + out.aux).backward()
        assert out.loss.item() == pytest.approx(expected.loss.item(), abs=0.02)
        assert out.aux.item() == pytest.approx(expected.aux.item(), rel=0.02)
    assert all(p.grad.isfinite().all() for p in module.parameters())


def settings(config, **more):
    names = Settings.__dataclass_fields__
    return Settings(**{**{k: v for k, v in config.items() if k in names}, **more})


class _KilledError(Exception):
    pass


@pytest.mark.parametrize("name", MOE)
@pytest.mark.parametrize("optimizer_name", ["adamw", "powerstep_int8"])
def test_a_killed_run_resumes_bit_for_bit(tmp_path, corpus, name, optimizer_name):
    config = compose([f"model={name}", f"optimizer={optimizer_name}", "steps=6", "context=32"])
    config |= {"batch": 4, "eval_interval": 3, "eval_windows": 4, "checkpoint_interval": 2}

    def run(folder, kill_at=None):
        rows = []

        def progress(row, _):
            rows.append({k: v for k, v in row.items() if k not in ("step_ms", "tokens_per_s")})
            if row["step"] == kill_at:
                raise _KilledError

        with Runtime("cpu") as runtime:
            seeded(config["seed"])
            model = runtime.place(build(config["model"]))
            optimizer = create_for_model(optimizer_name, model, lr=config["lr"], weight_decay=0.1)
            train(
                settings(config, micro_batch=2),
                model=model,
                optimizer=optimizer,
                data=corpus,
                runtime=runtime,
                checkpoints=CheckpointStore(tmp_path / folder, {}, keep=2),
                progress=progress,
            )
        return model.state_dict(), optimizer.state_dict()["state"], rows

    weights, state, rows = run("straight")
    with pytest.raises(_KilledError):
        run("killed", kill_at=5)
    resumed_weights, resumed_state, tail = run("killed")

    assert [row["step"] for row in tail] == [5, 6]
    assert tail == rows[4:]
    assert all(row["aux_loss"] > 0 for row in rows)
    for key, value in weights.items():
        assert torch.equal(value, resumed_weights[key]), key
    for key, entry in state.items():
        for field, value in entry.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(resumed_state[key][field]))
