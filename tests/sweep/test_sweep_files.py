"""Guards the sweep files against the paper's experiments: which models, optimizers and values."""

from collections import Counter

import pytest

from powerstep_repro.config import canonical, expand, matching_view, run_id
from powerstep_repro.paper import FIGURES

GPT2 = ("gpt2_small", "gpt2_medium")


def runs(name, *keys, overrides=()):
    """The values of dotted ``keys`` in every run of a sweep, as a multiset."""

    def value(config, key):
        for part in key.split("."):
            config = config[part]
        return config

    planned = expand(name, overrides)
    return Counter(tuple(value(each.config, key) for key in keys) for each in planned)


def once(*tuples):
    return Counter(dict.fromkeys(tuples, 1))


def test_small_is_five_optimizers_on_the_six_models_of_figure_2():
    models = list(FIGURES["small"].panels)
    optimizers = ("adamw", "adams", "signsgd", "pbsgdm", "powerstep")
    assert runs("small", "model.name", "optimizer.name") == once(
        *((model, optimizer) for model in models for optimizer in optimizers)
    )


def test_hyper_varies_one_hyperparameter_of_powerstep_on_medium():
    keys = ("model.name", "optimizer.name", "optimizer.beta", "optimizer.gamma")
    start = ("gpt2_medium", "powerstep")
    assert runs("beta", *keys) == once(*((*start, beta, 0.9) for beta in (0, 0.1, 0.2)))
    assert runs("gamma", *keys) == once(*((*start, 0.1, gamma) for gamma in (0.85, 0.9, 0.95)))


def test_quant_has_both_codes_of_both_optimizers():
    def code(config):
        return config["optimizer"].get("code")

    expected = [
        ("adamw", None),
        ("powerstep", None),
        ("adamw_int8", "dynamic"),
        ("adamw_int8_released", None),
        ("powerstep_int8", "dynamic"),
        ("powerstep_int8", "linear"),
    ]
    found = Counter(
        (each.config["model"]["name"], each.config["optimizer"]["name"], code(each.config))
        for each in expand("quant")
    )
    assert found == once(*((model, *rest) for model in GPT2 for rest in expected))


def test_large_is_adamw_and_powerstep_int8_on_the_four_models_of_figure_5():
    models = list(FIGURES["large"].panels)
    assert runs("large", "model.name", "optimizer.name", overrides=["profile=paper"]) == once(
        *((model, optimizer) for model in models for optimizer in ("adamw", "powerstep_int8"))
    )


def test_lr_and_stacey_sweep_the_papers_rates():
    rates = (1e-4, 2e-4, 4e-4, 6e-4, 8e-4, 1e-3)
    keys = ("model.name", "optimizer.name", "lr")
    assert runs("lr", *keys) == once(
        *(("gpt2_small", optimizer, lr) for optimizer in ("adamw", "powerstep") for lr in rates)
    )
    assert runs("stacey", *keys) == once(
        *(
            (model, optimizer, lr)
            for model in GPT2
            for optimizer in ("powerstep", "stacey")
            for lr in (6e-4, 1e-3)
        )
    )
    stacey = [p.config for p in expand("stacey") if p.config["optimizer"]["name"] == "stacey"]
    for config in stacey:
        assert config["optimizer"]["power"] == 11
        assert config["min_lr_ratio"] == 0.1


def test_quant_seeds_are_replicates_of_all_of_quant_on_small():
    quant = expand("quant", ["profile=h100", "model=gpt2_small"])
    planned = expand("quant_seeds", ["profile=h100"])
    cells = {canonical(matching_view(each.config)) for each in planned}
    assert cells == {canonical(matching_view(each.config)) for each in quant}
    assert len(planned) == 2 * len(quant)
    assert {run_id(each.config) for each in quant} < {run_id(each.config) for each in planned}


@pytest.mark.parametrize(
    ("profile", "names"),
    [
        ("tiny", ("gamma", "large", "stacey")),
        ("h100", ("small_released", "quant", "quant_parts", "quant_seeds", "lr_tuned", "seeds")),
        ("paper", ("small", "beta", "lr")),
    ],
)
def test_sweeps_expand_in_the_profiles_that_run_them_without_repeats(profile, names):
    for name in names:
        planned = expand(name, [f"profile={profile}"])
        assert planned
        assert len({run_id(each.config) for each in planned}) == len(planned)
