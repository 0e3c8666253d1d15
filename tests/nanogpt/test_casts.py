"""Guards that weights cast once a step give the very numbers of weights cast in each pass."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from trainer_kit import Run, assert_identical, small_model

from nanogpt.casts import CastOnce, Linear
from nanogpt.runtime import Runtime


class CastInEachPass(Runtime):
    """The runtime without copies, as autocast does by itself."""

    def cast_once(self, model, passes):
        return nullcontext()


@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize("micro_batch", [1, 2])
def test_no_bit_differs_from_casting_in_each_pass(tmp_path, data, compile, micro_batch):
    """Evaluations in between too, which see the weights and not copies of a step before."""
    once, each = (
        Run(
            tmp_path / kind.__name__,
            data,
            runtime=kind("cpu", "amp_bf16", compile=compile),
            micro_batch=micro_batch,
            eval_interval=4,
            dropout=0.0 if compile else 0.1,
        )
        for kind in (Runtime, CastInEachPass)
    )
    assert once.recorder.rows() == each.recorder.rows()
    assert_identical(once.left(), each.left())


@pytest.mark.parametrize(
    ("precision", "passes", "casts"),
    [("amp_bf16", 2, True), ("amp_bf16", 1, False), ("fp32", 2, False), ("bf16", 2, False)],
)
def test_copies_are_made_where_they_save_a_cast(precision, passes, casts):
    model = small_model(Runtime("cpu"))
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    with Runtime("cpu", precision).cast_once(model, passes):
        copies = [layer.copy for layer in model.modules() if isinstance(layer, Linear)]
        assert len(copies) == 8
        assert [copy is not None for copy in copies] == [casts] * 8
        assert_identical(dict(model.state_dict()), before)  # checkpoints hold no copies
    assert all(layer.copy is None for layer in model.modules() if isinstance(layer, Linear))


def test_frozen_weights_and_other_layers_take_no_part():
    model = nn.Sequential(nn.Linear(2, 2), Linear(2, 2))
    model[1].weight.requires_grad_(False)
    with CastOnce(model, torch.bfloat16) as casts:
        casts.refresh()
        assert model[1].copy is None


def test_gradients_are_summed_in_the_weights_precision():
    """In bfloat16 the small one of the second pass would be lost."""
    layer = Linear(1, 1)
    with CastOnce(layer, torch.bfloat16) as casts:
        casts.refresh()
        for x in (1.0, 2.0**-12):
            layer(torch.tensor([[x]], dtype=torch.bfloat16)).sum().backward()
        casts.finish()
        assert layer.copy.grad is None
    assert layer.weight.grad.item() == 1 + 2.0**-12


@pytest.mark.parametrize("passes", [1, 2, 3])
def test_each_pass_is_counted_once_in_every_step(passes):
    layer = Linear(1, 1)
    with CastOnce(layer, torch.bfloat16) as casts:
        for step in (1, 2):
            casts.refresh()
            for x in range(1, passes + 1):
                layer(torch.tensor([[step * x]], dtype=torch.bfloat16)).sum().backward()
            casts.finish()
            assert layer.weight.grad.dtype == torch.float32
            assert layer.weight.grad.item() == step * sum(range(1, passes + 1))
            layer.weight.grad = None
