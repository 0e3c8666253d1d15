"""Guards: a figure gets exactly its planned settings, of one data set, seeds as replicates."""

from powerstep_repro.config import compose
from powerstep_repro.runs import load, select


def planned(*settings):
    return [compose(overrides) for overrides in settings]


def test_cells_follow_the_plan_and_hold_all_seeds(record, tmp_path):
    two, one = record("seed=2", "optimizer=adamw"), record("seed=1", "optimizer=adamw")
    record("optimizer=adamw", "steps=100")  # another setting: no cell of this plan
    plan = planned(["optimizer=signsgd"], ["optimizer=adamw"], ["optimizer=adamw", "seed=5"])
    cells = select(load(tmp_path), plan)
    assert [cell.optimizer for cell in cells] == ["signsgd", "adamw"]
    assert [cell.runs for cell in cells] == [[], [one, two]]
    assert {(cell.data_name, cell.data_hash) for cell in cells} == {("builtin", "d" * 16)}
    (chosen, _) = [select(load(tmp_path), plan[1:], seeds)[0] for seeds in ([2], [2, 3])]
    assert chosen.runs == [two]
    assert not chosen.is_missing


def test_running_and_interrupted_runs_are_shown_and_failed_ones_kept_apart(record, tmp_path):
    live = record(status="interrupted")
    failed = record("seed=2", status="failed")
    (cell,) = select(load(tmp_path), planned([]))
    assert (cell.runs, cell.failed) == ([live], [failed])


def test_a_figure_never_mixes_data_sets(record, tmp_path, caplog):
    few = record(data_hash="a" * 16)
    many = [record(f"seed={seed}", data_hash="b" * 16) for seed in (1, 2)]
    (cell,) = select(load(tmp_path), planned([]))
    assert (cell.runs, cell.elsewhere) == (many, [few])
    assert "1 matching runs on data aaaaaaaaaaaaaaaa are left out" in caplog.text


def test_of_equally_many_the_newest_data_set_is_taken(record, tmp_path):
    record(data_hash="f" * 16, updated="2024-01-01T00:00:00+00:00")
    new = record(data_hash="a" * 16)
    assert select(load(tmp_path), planned([]))[0].runs == [new]


def test_a_figure_never_mixes_profiles(record, tmp_path):
    record()
    (cell,) = select(load(tmp_path), planned(["profile=h100"]))
    assert cell.runs == []


def test_where_the_run_was_made_and_how_it_was_cut_up_do_not_matter(record, tmp_path):
    name = record("micro_batch=2", "log_interval=7", "device=cpu", "data_dir=elsewhere")
    assert select(load(tmp_path), planned([]))[0].runs == [name]
