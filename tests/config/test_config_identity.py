"""Guards: equal settings are one run, whatever cannot change its numbers; anything else is not."""

import copy
import random

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from powerstep_repro.config import (
    ROOT,
    compose,
    identity_view,
    lacking_keys,
    matching_view,
    run_dir,
    run_id,
    run_name,
    with_data,
)
from powerstep_repro.config.identity import ADDED

RUNS = sorted((ROOT / "results").glob("*/runs/*/config.yaml"))
BASE = with_data(compose(["optimizer=powerstep"]), "0123456789abcdef", "builtin")


def changed(path, value):
    config = copy.deepcopy(BASE)
    node = config
    *parents, leaf = path.split(".")
    for name in parents:
        node = node[name]
    node[leaf] = value
    return config


def shuffled(node, rng):
    if not isinstance(node, dict):
        return node
    keys = list(node)
    rng.shuffle(keys)
    return {key: shuffled(node[key], rng) for key in keys}


@given(st.randoms(use_true_random=False))
def test_the_order_of_keys_does_not_matter(rng: random.Random):
    assert run_id(shuffled(BASE, rng)) == run_id(BASE)


@settings(deadline=None)
@given(st.floats(min_value=1e-8, max_value=10.0))
def test_a_rate_is_the_same_in_every_spelling(rate):
    spellings = (f"{rate!r}", f"{rate:.17e}", f"'{rate:.17g}'")
    assert len({run_id(compose([f"lr={text}"])) for text in spellings}) == 1


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_two_seeds_are_two_runs(one, other):
    ids = {run_id(changed("seed", one)), run_id(changed("seed", other))}
    assert len(ids) == (1 if one == other else 2)


def test_6e_4_is_0_0006_and_1_is_1_0():
    assert run_id(compose(["lr=6e-4"])) == run_id(compose(["lr=0.0006"]))
    assert run_id(changed("grad_clip", 1)) == run_id(changed("grad_clip", 1.0))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("results_dir", "elsewhere"),
        ("data_dir", "elsewhere"),
        ("data.path", "elsewhere"),
        ("data.workers", 7),
        ("data.name", "another name of the same tokens"),
        ("logger.name", "wandb"),
        ("device", "cuda"),
        ("micro_batch", 2),
        ("log_interval", 10),
        ("checkpoint_interval", 10),
        ("keep_checkpoints", 5),
        ("mechanism_interval", 10),
        ("model.lr", 1.0),
        ("model.steps", 1),
    ],
)
def test_what_cannot_change_the_numbers_is_no_part_of_it(key, value):
    assert run_id(changed(key, value)) == run_id(BASE)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seed", 1),
        ("lr", 5e-4),
        ("steps", 201),
        ("batch", 16),
        ("context", 96),
        ("data.hash", "f" * 16),
        ("optimizer.beta", 0.2),
        ("model.layers", 4),
        ("precision", "bf16"),
        ("compile", True),
        ("implementation", "reference"),
        ("weight_decay_on", "all"),
        ("eval_windows", 3),
    ],
)
def test_what_can_change_them_is(key, value):
    assert run_id(changed(key, value)) != run_id(BASE)


def test_data_counts_by_its_options_until_its_hash_is_known():
    folders = [compose(["data=tokens", f"data.path={name}"]) for name in ("a", "b")]
    assert run_id(folders[0]) != run_id(folders[1])
    same = [with_data(config, "00ff" * 4, "mix") for config in folders]
    assert run_id(same[0]) == run_id(same[1])


def test_a_config_read_back_from_yaml_is_the_same_run():
    assert run_id(yaml.safe_load(yaml.safe_dump(BASE))) == run_id(BASE)


def test_matching_leaves_out_data_and_seed_and_nothing_else():
    assert matching_view(changed("seed", 9)) == matching_view(BASE)
    assert matching_view(changed("data.hash", "f" * 16)) == matching_view(BASE)
    assert matching_view(changed("lr", 5e-4)) != matching_view(BASE)
    assert set(identity_view(BASE)) - set(matching_view(BASE)) == {"seed", "data"}


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.parent.name)
def test_the_committed_runs_keep_their_names(path):
    config = yaml.safe_load(path.read_text())
    assert run_name(config) == path.parent.name
    assert lacking_keys(config) == []


def test_there_are_committed_runs():
    assert len(RUNS) >= 30


@pytest.mark.parametrize(("key", "other"), [("repeat", 1), ("data.order", "permuted")])
def test_a_key_that_came_later_leaves_earlier_runs_as_they_are(key, other):
    """A run from before the key has the value that it had then; at another value it is another."""
    before = changed(key, None)
    section, dot, name = key.rpartition(".")
    (before[section] if dot else before).pop(name)
    now = changed(key, ADDED[key])
    assert (run_id(now), matching_view(now)) == (run_id(before), matching_view(before))
    assert lacking_keys(before) == []
    assert run_id(changed(key, other)) != run_id(now)
    assert matching_view(changed(key, other)) != matching_view(now)


def test_a_section_that_came_later_counts_as_its_value(monkeypatch):
    monkeypatch.setitem(ADDED, "rules", {"kind": {"name": None}})
    assert run_id(BASE | {"rules": {"kind": {"name": None}}}) == run_id(BASE)
    assert run_id(BASE | {"rules": {"kind": {"name": "adamw"}}}) != run_id(BASE)


@pytest.mark.parametrize("key", ["weight_decay_on", "lr", "optimizer.beta", "model.layers"])
def test_a_run_that_lacks_any_other_key_of_today_can_be_named(key):
    config = changed(key, None)
    section, dot, name = key.rpartition(".")
    (config[section] if dot else config).pop(name)
    assert lacking_keys(config) == [key]


def test_the_name_reads_well_and_ends_in_the_id():
    assert run_name(BASE) == f"gpt2_small-powerstep-lr7e-04-s1337-{run_id(BASE)}"
    assert "-lr1.2e-03-" in run_name(changed("lr", 1.2e-3))
    assert run_dir(BASE) == f"results/tiny/runs/{run_name(BASE)}"
