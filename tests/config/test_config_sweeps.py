"""Guards: a sweep file expands to exactly its union of grids, and a bad one ends in a sentence."""

import pytest

from powerstep_repro.config import compose, expand, run_id, sweep_names
from powerstep_repro.errors import UserError


@pytest.fixture
def sweep(tmp_path):
    def write(text):
        path = tmp_path / "mine.yaml"
        path.write_text(text)
        return str(path)

    return write


TWO_GRIDS = """
runs:
  - grid: {optimizer: [powerstep], optimizer.beta: [0.0, 0.1]}
  - grid: {optimizer: [adamw, powerstep]}
"""


def test_the_union_keeps_the_files_order_and_drops_duplicates(sweep):
    planned = expand(sweep(TWO_GRIDS))
    found = [(p.config["optimizer"]["name"], p.config["optimizer"].get("beta")) for p in planned]
    # powerstep with its default beta of 0.1 is there from the first grid already.
    assert found == [("powerstep", 0.0), ("powerstep", 0.1), ("adamw", None)]


def test_a_planned_runs_overrides_compose_to_its_config(sweep):
    text = """
runs:
  - grid:
      optimizer: [adamw]
      optimizer.betas: [[0.9, 0.95], [0.8, 0.99]]
      lr: [6e-4, 1.0e-3]
      compile: [true]
      micro_batch: [null]
      data: [tokens]
      data.path: ["a folder, with 'marks'"]
"""
    planned = expand(sweep(text), ["seed=1,2"])
    assert len(planned) == 8
    for run in planned:
        assert compose(run.overrides) == run.config
    assert planned[0].config["lr"] == 6e-4  # plain YAML would have read a string
    assert planned[0].config["data"]["path"] == "a folder, with 'marks'"


def test_a_list_of_values_on_the_command_line_multiplies(sweep):
    planned = expand(sweep(TWO_GRIDS), ["seed=1,2,3"])
    assert len(planned) == 9
    assert len({run_id(run.config) for run in planned}) == 9


def test_an_override_of_a_swept_key_replaces_that_axis(sweep):
    path = sweep("runs: [{grid: {optimizer: [adamw, powerstep], lr: [1e-3, 2e-3, 3e-3]}}]")
    assert [run.config["lr"] for run in expand(path, ["lr=5e-4"])] == [5e-4, 5e-4]
    assert len(expand(path, ["lr=1e-4,2e-4"])) == 4
    assert len(expand(path, ["profile=h100"])) == 6


def test_every_committed_sweep_expands():
    for name in sweep_names():
        assert expand(name)
    assert {run.config["profile"] for run in expand("small", ["profile=h100"])} == {"h100"}


def test_an_unknown_sweep_is_answered_with_the_nearest():
    with pytest.raises(UserError, match=r"unknown sweep 'smal' \(did you mean 'small'\?\).*beta"):
        expand("smal")


def test_a_path_at_which_there_is_no_file_is_said_to_be_none():
    with pytest.raises(UserError, match=r"there is no sweep file 'folder/none\.yaml': .*beta"):
        expand("folder/none.yaml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "list 'runs'"),
        ("runs: 3", "list 'runs'"),
        ("runs: []", "is empty"),
        ("runs: [{grid: {lr: []}}]", "'lr' needs at least one value"),
        ("runs: [{grid: {0: [1]}}]", "key 0 is no name"),
        ("runs: [{grid:{0}}]", "is no name"),
        ("runs: [{grids: {lr: [1]}}]", "every entry of 'runs'"),
        ("runs: [{grid: [1]}]", "must map keys"),
        ("rnus: []\nruns: [{grid: {}}]", r"unknown key 'rnus' \(did you mean 'runs'\?\)"),
        ("runs: [{grid: {learning_rate: [1e-3]}}]", "unknown key 'learning_rate'"),
        ("runs: [{grid: {optimizer: [adam]}}]", "unknown optimizer 'adam'"),
        ("runs: [{grid: {optimizer.beta: [2]}}]", "optimizer.beta must be"),
        ("runs: [{grid: {lr: [{a: 1}]}}]", "cannot read the override"),
        ("runs: [", "not valid YAML"),
    ],
)
def test_a_bad_sweep_file_ends_in_one_sentence(sweep, text, words):
    with pytest.raises(UserError, match=words) as caught:
        expand(sweep(text))
    assert "\n" not in str(caught.value)
    assert "mine.yaml" in str(caught.value)


def test_the_file_is_named_for_its_own_mistakes_alone(sweep):
    path = sweep("runs: [{grid: {optimizer: [powerstep], optimizer.beta: [2]}}]")
    with pytest.raises(UserError, match=r"mine\.yaml: optimizer\.beta must be"):
        expand(path, ["lr=1e-3"])
    with pytest.raises(UserError, match=r"^unknown key 'lrr'"):
        expand(path, ["lrr=1e-3"])
