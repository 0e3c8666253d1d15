"""Guards the ten architectures: a wrong width, tie or expert count changes a number here.

The totals are those of the published models; closed form and the real modules (on the meta
device, no weights) must both give them, and each other's split into routed, one-dimensional and
active parameters.
"""

import pytest
import torch
from omegaconf import OmegaConf

from powerstep_repro.config import CONF, choices, compose
from powerstep_repro.errors import UserError
from powerstep_repro.models import build
from powerstep_repro.models.count import count
from powerstep_repro.paper import NUMBERS, value

PAPER = {
    "gpt2_small": 124_373_760,
    "gpt2_medium": 354_599_936,
    "qwen3_0_6b": 596_049_920,
    "qwen3_1_7b": 1_720_574_976,
    "qwen3_4b": 4_022_468_096,
    "qwen3_8b": 8_190_735_360,
    "qwen3_32b": 32_762_123_264,
    "deepseek_v2_lite": 15_706_484_224,
    "qwen3_30b_a3b": 30_532_122_624,
    "qwen3_235b_a22b": 235_093_634_560,
}
# GPT-2 at sizes of our own: (50304 + 1024) * hidden, 12 * hidden ** 2 a block, and the norms.
TOTALS = PAPER | {"gpt2_16m": 16_288_000, "gpt2_30m": 30_331_776, "gpt2_51m": 51_454_464}
ROUTED = {
    "deepseek_v2_lite": 14_394_851_328,
    "qwen3_30b_a3b": 28_991_029_248,
    "qwen3_235b_a22b": 227_096_395_776,
}


def original(name):
    return OmegaConf.to_container(OmegaConf.load(CONF / "model" / f"{name}.yaml"))


def shape(name, profile):
    return (
        original(name)
        if profile == "paper"
        else compose([f"model={name}", f"profile={profile}"])["model"]
    )


def test_every_model_has_a_number():
    assert set(choices("model")) == set(TOTALS)


@pytest.mark.parametrize("name", TOTALS)
def test_closed_form_gives_the_published_totals(name):
    counts = count(original(name))
    assert counts.n_params == TOTALS[name]
    assert counts.routed_expert_params == ROUTED.get(name, 0)
    assert counts.n_active_params == TOTALS[name] or name in ROUTED


def test_norms_of_the_dense_giant():
    assert count(original("qwen3_32b")).one_dim_params == 676_864


@pytest.mark.parametrize("profile", ["paper", "tiny", "h100"])
@pytest.mark.parametrize("name", TOTALS)
def test_real_modules_agree_with_the_closed_form(name, profile):
    model = shape(name, profile)
    with torch.device("meta"):
        module = build(model)
    counts = count(model)
    assert module.n_params() == counts.n_params
    assert module.n_active_params() == counts.n_active_params
    parameters = list(module.parameters())
    assert sum(p.numel() for p in parameters if p.dim() == 1) == counts.one_dim_params
    # Experts are the only three-dimensional parameters of any family.
    assert sum(p.numel() for p in parameters if p.dim() == 3) == counts.routed_expert_params
    assert module.vocab_size == model["vocab_size"]


def test_flops_follow_active_parameters_and_attention():
    model = original("qwen3_8b")
    with torch.device("meta"):
        module = build(model)
    # Untied: the input embedding is looked up, not multiplied. 12 * layers * heads * width * T.
    in_products = TOTALS["qwen3_8b"] - 151936 * 4096
    assert module.flops_per_token(2048) == 6 * in_products + 12 * 36 * 32 * 128 * 2048


@pytest.mark.parametrize("profile", ["tiny", "h100"])
@pytest.mark.parametrize("name", TOTALS)
def test_scaled_models_keep_their_family_features(name, profile):
    full, scaled = original(name), shape(name, profile)
    assert scaled["family"] == full["family"]
    if full["family"] == "gpt2":
        return
    assert scaled["tied"] == full["tied"]
    if "kv_heads" in full:
        assert scaled["heads"] // scaled["kv_heads"] == full["heads"] // full["kv_heads"]
        assert scaled["head_dim"] * scaled["heads"] != scaled["hidden"] or profile == "h100"
    if "experts" in full:
        assert scaled["experts_per_token"] < scaled["experts"]
        assert scaled["aux_loss_coef"] == 1e-3
    if full["family"] == "deepseek_v2":
        assert scaled["dense_layers"] == 1 < scaled["layers"]
        assert scaled["shared_experts"] == full["shared_experts"]


@pytest.mark.parametrize("name", PAPER)
def test_training_setup_is_the_papers(name):
    model = original(name)
    for ours, paper in (("batch", "batch"), ("context", "context"), ("lr", "lr")):
        assert model[ours] == value("hyperparameters", name, paper)
    assert model["steps"] == (50_000 if model["family"] == "gpt2" else 20_000)


@pytest.mark.parametrize("name", sorted(TOTALS.keys() - PAPER.keys()))
def test_models_of_our_own_train_like_gpt2_small(name):
    set_up = ("family", "dropout", "tied_head", "vocab_size", "tokenizer", "lr", "batch", "steps")
    small, ours = original("gpt2_small"), original(name)
    assert {key: ours[key] for key in set_up} == {key: small[key] for key in set_up}


def test_devices_are_the_product_of_the_parallel_dimensions():
    for model in {n.model for n in NUMBERS if n.table == "parallelism"}:
        npus, dp, tp, pp = (value("parallelism", model, c) for c in ("npus", "dp", "tp", "pp"))
        assert npus == dp * tp * pp, model


@pytest.mark.parametrize(
    ("name", "changes", "sentence"),
    [
        ("qwen3_0_6b", {"family": "llama"}, "family='llama'"),
        ("qwen3_0_6b", {"heads": 5}, "heads=5 must be a multiple of model.kv_heads=2"),
        ("qwen3_0_6b", {"head_dim": 31}, "head_dim=31 must be even"),
        ("qwen3_0_6b", {"layers": 0}, "layers=0 must be a whole number"),
        ("qwen3_30b_a3b", {"experts_per_token": 17}, "at most model.experts=16"),
        ("qwen3_30b_a3b", {"aux_loss_coef": -1.0}, "aux_loss_coef=-1.0"),
        ("deepseek_v2_lite", {"dense_layers": 3}, "dense_layers=3 must be below model.layers=3"),
        ("deepseek_v2_lite", {"hidden": 97}, "hidden=97 must be a multiple of model.heads=4"),
    ],
)
def test_shapes_that_do_not_fit_are_one_sentence(name, changes, sentence):
    with pytest.raises(UserError, match=sentence):
        build({**shape(name, "tiny"), **changes})
