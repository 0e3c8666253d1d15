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


def of_30m(name):
    """The configs of a sweep of our own, which are alike in all but what it varies."""
    configs = [each.config for each in expand(name, ["profile=h100"])]
    assert len({run_id(config) for config in configs}) == len(configs)
    for config in configs:
        assert config["model"]["name"] == "gpt2_30m"
        assert (config["steps"], config["batch"], config["context"]) == (750, 120, 1024)
        assert config["data"]["order"] == "permuted"
    return configs


def rules(config):
    """Optimizer and rate, then those of each kind that has its own."""
    by_kind = {kind: (rule["name"], rule["lr"]) for kind, rule in config["groups"].items()}
    return ((config["optimizer"]["name"], config["lr"]), tuple(sorted(by_kind.items())))


def test_where_swaps_the_rules_of_each_kind_in_both_orders():
    found = [rules(config) for config in of_30m("where")]
    adamw, powerstep = ("adamw", 2.4e-3), ("powerstep", 6e-4)
    outside = (("embeddings", adamw), ("gains", adamw))
    alone = {(("powerstep", lr), outside) for lr in (1.5e-4, 3e-4, 6e-4, 8.5e-4)}
    kinds = ("token_embeddings", "positions", "gains", "matrices")
    alone |= {(powerstep, ((kind, adamw),)) for kind in kinds}
    alone |= {(powerstep, (("embeddings", ("adamw_int8", 2.4e-3)), ("gains", adamw)))}
    alone |= {(("adamw", lr), ()) for lr in (1.2e-3, 2.4e-3, 3.4e-3)}
    alone |= {(("powerstep", lr), ()) for lr in (3e-4, 4.2e-4, 6e-4)}
    assert len(found) == len(alone)
    assert set(found) == alone
    assert len(of_30m("embedding_rules")) == 12
    heads = [set(config["groups"]) for config in of_30m("untied")]
    assert heads == [set(), set(), {"head"}, {"token_embeddings"}, {"token_embeddings", "head"}]
    assert not any(config["model"]["tied_head"] for config in of_30m("untied"))


def test_warmup_repeats_and_collapse_vary_what_they_are_named_after():
    warmup = of_30m("warmup")
    lengths = Counter(rules(config) for config in warmup)
    assert set(lengths.values()) == {4}
    assert len(lengths) == 5
    assert {config["warmup_steps"] for config in warmup} == {0, 38, 75, 150}
    repeats = of_30m("repeats")
    assert [(c["repeat"], c["seed"]) for c in repeats[:4]] == [(n, 1337) for n in range(4)]
    assert len({c["seed"] for c in repeats}) == 4
    collapse = Counter(
        (c["warmup_steps"], c["optimizer"]["name"], c["optimizer"]["betas"][1])
        for c in of_30m("collapse")
    )
    names_and_beta2 = (("adamw_int8_released", 0.95), ("adamw_int8_released", 0.999))
    ways = (*names_and_beta2, ("adamw_int8", 0.95))
    assert collapse == once(*((steps, *way) for steps in (38, 150) for way in ways))
