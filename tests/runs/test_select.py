"""Guards: a figure gets exactly its planned settings, of one data set, seeds as replicates."""

import pytest

from powerstep_repro.config import compose
from powerstep_repro.errors import UserError
from powerstep_repro.runs import load, select


def planned(*settings):
    return [compose(overrides) for overrides in settings]


def test_cells_follow_the_plan_and_hold_all_seeds(record, tmp_path):
    two, one = record("seed=2", "optimizer=adamw"), record("seed=1", "optimizer=adamw")
    record("optimizer=adamw", "steps=100")  # another setting: no cell of this plan
    plan = planned(["optimizer=signsgd"], ["optimizer=adamw"], ["optimizer=adamw", "seed=5"])
    selection = select(load(tmp_path), plan)
    assert [cell.config["optimizer"]["name"] for cell in selection.cells] == ["signsgd", "adamw"]
    assert [cell.runs for cell in selection.cells] == [[], [one, two]]
    assert (selection.profile, selection.data_name) == ("tiny", "builtin")
    assert selection.data_hash == "d" * 16
    assert not selection.warnings


def test_running_and_interrupted_runs_are_shown_and_failed_ones_kept_apart(record, tmp_path):
    live = record(status="interrupted")
    failed = record("seed=2", status="failed")
    (cell,) = select(load(tmp_path), planned([])).cells
    assert (cell.runs, cell.failed) == ([live], [failed])


def test_a_figure_never_mixes_data_sets(record, tmp_path, caplog):
    few = record(data_hash="a" * 16)
    many = [record(f"seed={seed}", data_hash="b" * 16) for seed in (1, 2)]
    selection = select(load(tmp_path), planned([]))
    assert selection.cells[0].runs == many
    assert "1 matching runs on data aaaaaaaaaaaaaaaa are left out" in caplog.text
    assert selection.warnings
    asked = select(load(tmp_path), planned([]), data_hash="a" * 16)
    assert asked.cells[0].runs == [few]


def test_of_equally_many_the_newest_data_set_is_taken(record, tmp_path):
    record(data_hash="f" * 16, updated="2024-01-01T00:00:00+00:00")
    new = record(data_hash="a" * 16)
    assert select(load(tmp_path), planned([])).cells[0].runs == [new]


def test_a_figure_never_mixes_profiles(record, tmp_path):
    record()
    with pytest.raises(UserError, match="one profile, not h100 and tiny"):
        select(load(tmp_path), planned([], ["profile=h100"]))
    (cell,) = select(load(tmp_path), planned(["profile=h100"])).cells
    assert cell.runs == []


def test_where_the_run_was_made_and_how_it_was_cut_up_do_not_matter(record, tmp_path):
    name = record("micro_batch=2", "log_interval=7", "device=cpu", "data_dir=elsewhere")
    assert select(load(tmp_path), planned([])).cells[0].runs == [name]
