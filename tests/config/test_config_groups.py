"""Guards ``groups``: what they compose to, the sentences that refuse them, identity and names."""

import pytest

from powerstep_repro.config import compose, expand, groups_label, run_id, run_name
from powerstep_repro.config.groups import KINDS
from powerstep_repro.errors import UserError

ADAMW = ("groups.embeddings.name=adamw", "groups.embeddings.lr=2.4e-3")


def test_a_rule_has_its_optimizers_defaults_and_the_runs_rate_and_decay():
    config = compose(["lr=5e-4", "weight_decay=0.2", "groups.gains.name=powerstep", *ADAMW])
    assert config["groups"] == {
        "embeddings": {
            "name": "adamw",
            "betas": [0.9, 0.95],
            "eps": 1e-8,
            "lr": 2.4e-3,
            "weight_decay": 0.2,
        },
        "gains": {"name": "powerstep", "gamma": 0.9, "beta": 0.1, "lr": 5e-4, "weight_decay": 0.2},
    }
    assert config["optimizer"] == compose([])["optimizer"]
    own = compose([*ADAMW, "groups.embeddings.betas=[0.8,0.9]"])["groups"]["embeddings"]
    assert own["betas"] == [0.8, 0.9]


def test_no_groups_are_the_run_of_before():
    config = compose([])
    assert config["groups"] == {}
    before = {key: value for key, value in config.items() if key != "groups"}
    assert run_id(before) == run_id(config)
    assert run_id(compose(["groups.gains.name=null", "groups.gains.lr=1"])) == run_id(config)


def test_every_value_of_a_rule_is_part_of_the_identity():
    ways = [ADAMW, (*ADAMW, "groups.embeddings.eps=1e-6"), (*ADAMW, "groups.embeddings.lr=1e-3")]
    ways += [("groups.positions.name=adamw",), ("groups.embeddings.name=signsgd",), ()]
    assert len({run_id(compose(way)) for way in ways}) == len(ways)
    # A rate that is given and equals the run's is the same run.
    same = ("groups.gains.name=adamw", "lr=1e-3")
    assert run_id(compose(same)) == run_id(compose([*same, "groups.gains.lr=0.001"]))


def test_names_for_files_and_for_people():
    config = compose(["optimizer=powerstep_int8", "groups.gains.name=adamw", *ADAMW])
    start, _, end = run_name(config).rpartition("-")
    assert start == "gpt2_small-powerstep_int8-adamw_on_embeddings_gains-lr7e-04-s1337"
    assert end == run_id(config)
    assert groups_label(config) == ", AdamW on embeddings and gains"
    several = compose(["groups.token_embeddings.name=adamw_int8", "groups.positions.name=signsgd"])
    assert groups_label(several) == ", AdamW int8 on token embedding, SignSGD on positions"
    assert groups_label(compose([])) == ""


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (
            ["groups.embedding.name=adamw"],
            r"unknown key 'groups.embedding.name' \(did you mean 'embeddings'\?\): "
            r"write groups.KIND.name=OPTIMIZER, KIND being one of token_embeddings, positions",
        ),
        (["groups=adamw"], "unknown key 'groups': write groups.KIND.name=OPTIMIZER"),
        (["groups.gains=adamw"], "unknown key 'groups.gains': write groups.KIND.name=OPTIMIZER"),
        (
            ["groups.gains.name=adam"],
            r"unknown optimizer 'adam' in groups.gains.name \(did you mean 'adamw'\?\): choose one",
        ),
        (["groups.gains.lr=1"], "groups.gains.lr needs groups.gains.name=OPTIMIZER beside it"),
        (
            [*ADAMW, "groups.embeddings.beta=0.1"],
            r"unknown key 'groups.embeddings.beta' \(did you mean 'groups.embeddings.betas'\?\); "
            "groups.embeddings.name=adamw has betas, eps, lr, weight_decay",
        ),
        ([*ADAMW, "groups.embeddings.lr=0"], "groups.embeddings.lr must be a number above 0, got"),
        (
            [*ADAMW, "groups.embeddings.betas=0.9"],
            "groups.embeddings.betas must be a list of two numbers in",
        ),
        ([*ADAMW, "groups.embeddings.weight_decay=-1"], "weight_decay must be a number of at"),
    ],
)
def test_mistakes_are_one_sentence(overrides, sentence):
    with pytest.raises(UserError, match=sentence):
        compose(overrides)


def test_a_sweep_runs_through_groups(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(
        "runs:\n"
        "  - grid:\n"
        "      groups.embeddings.name: [null, adamw]\n"
        "      groups.embeddings.lr: [1.0e-3, 2.4e-3]\n"
        "      groups.embeddings.betas: [[0.9, 0.95]]\n"
    )
    groups = [planned.config["groups"] for planned in expand(str(file))]
    assert [each.get("embeddings", {}).get("lr") for each in groups] == [None, 1e-3, 2.4e-3]


def test_the_kinds_are_the_librarys():
    from powerstep_repro.optim import KINDS as LIBRARY

    assert tuple(KINDS) == LIBRARY
