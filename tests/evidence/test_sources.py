"""Guards which runs a sweep's cells get, and how a cell says how its runs ended."""

import math
import shlex

import pytest

from powerstep_repro.evidence import Evidence
from powerstep_repro.evidence.sources import is_side
from powerstep_repro.evidence.words import data_label, n_label, rate_label, signed
from powerstep_repro.paper.claims import Side


def cell_of(world, sweep="small", **where):
    source = Evidence(world.results, "h100").source(sweep)
    (cell,) = [
        c for c in source.cells if c.model == where["model"] and c.optimizer == where["optimizer"]
    ]
    return cell


SMALL_ADAMW = {"model": "gpt2_small", "optimizer": "adamw"}


def test_nothing_there_is_not_run(world):
    source = Evidence(world.results, "h100").source("small")
    assert len(source.cells) == 30
    assert {cell.outcome.words() for cell in source.cells} == {"not run"}
    assert data_label(source.cells) == "none yet"
    assert n_label(source.cells) == "n = 0"
    assert source.missing_command() == (
        f"python -m powerstep_repro.sweep small profile=h100 results_dir={world.results} "
        "data.path=FOLDER"
    )


def test_finished_runs_by_seed(world):
    world.add("small", SMALL_ADAMW, losses=(3.0, 3.2))
    cell = cell_of(world, **SMALL_ADAMW)
    assert {seed: final.loss for seed, final in cell.outcome.finals.items()} == {1: 3.0, 2: 3.2}
    assert cell.outcome.words() == "3.100"
    assert cell.outcome.finals[1].windows.mean() == pytest.approx(3.0)
    assert (cell.data_name, cell.data_hash) == ("english-mix", "00aa11bb22cc33dd")


def test_a_mean_never_swallows_a_divergence(world):
    world.add("small", SMALL_ADAMW, losses=(3.0,))
    world.add("small", SMALL_ADAMW, losses=(None,), first_seed=2, diverged_at=700)
    outcome = cell_of(world, **SMALL_ADAMW).outcome
    assert outcome.words() == "3.000; 1 of 2 diverged at step 700"
    assert outcome.n == 2


def test_all_diverged_rank_last(world):
    world.add("small", SMALL_ADAMW, losses=(None, None), diverged_at=1234)
    outcome = cell_of(world, **SMALL_ADAMW).outcome
    assert outcome.words() == "diverged at step 1,234"
    assert outcome.mean == math.inf


@pytest.mark.parametrize("status", ["running", "interrupted"])
def test_unfinished_runs_have_no_result(world, status):
    world.add("small", SMALL_ADAMW, losses=(3.0,), status=status, rows_kept=4)
    outcome = cell_of(world, **SMALL_ADAMW).outcome
    assert outcome.words() == "unfinished at step 200"
    assert outcome.n == 0
    assert math.isnan(outcome.mean)


def test_a_failed_run_is_named_not_shown(world):
    world.add("small", SMALL_ADAMW, losses=(3.0,), status="failed", rows_kept=4)
    assert cell_of(world, **SMALL_ADAMW).outcome.words() == "failed"


def test_data_sets_are_not_mixed(world, caplog):
    world.add("small", SMALL_ADAMW, losses=(3.0, 3.1))
    other = ("books", "ffffffffffffffff")
    world.add("small", {"model": "gpt2_medium", "optimizer": "adamw"}, losses=(9.0,), data=other)
    source = Evidence(world.results, "h100").source("small")
    assert data_label(source.cells) == "english-mix (00aa11bb22cc33dd)"
    assert not cell_of(world, model="gpt2_medium", optimizer="adamw").runs
    assert "on data ffffffffffffffff are left out" in caplog.text


def test_profiles_are_not_mixed(world):
    world.add("small", SMALL_ADAMW)
    assert not any(cell.runs for cell in Evidence(world.results, "tiny").source("small").cells)


def test_overrides_change_what_is_looked_for(world):
    world.add("small", SMALL_ADAMW, overrides=("steps=40",), log_interval=10)
    assert not cell_of(world, **SMALL_ADAMW).runs
    source = Evidence(world.results, "h100", ["steps=40"]).source("small")
    assert sum(len(cell.runs) for cell in source.cells) == 3
    assert "steps=40" in source.command()


def test_a_side_matches_values_and_null(world):
    cells = Evidence(world.results, "h100").source("quant").cells
    dynamic = Side("adamw_int8", {"optimizer.code": "dynamic", "optimizer.code_v": None})
    assert {cell.model for cell in cells if is_side(cell, dynamic)} == {"gpt2_small", "gpt2_medium"}
    assert not [c for c in cells if is_side(c, Side("adamw", {"optimizer.code": "dynamic"}))]
    assert len([c for c in cells if is_side(c, Side("adamw", {"optimizer.code": None}))]) == 2


def test_missing_models_narrow_the_command(world):
    world.add("quant", {"model": "gpt2_small"}, losses=(3.0,))
    command = Evidence(world.results, "h100").source("quant").missing_command()
    assert command == (
        f"python -m powerstep_repro.sweep quant profile=h100 results_dir={world.results} "
        "model=gpt2_medium data.path=FOLDER"
    )


def test_the_default_folder_is_not_written_into_the_command():
    command = Evidence("results", "h100").source("lr").command()
    assert command == "python -m powerstep_repro.sweep lr profile=h100 data.path=FOLDER"


def test_the_command_can_be_pasted_into_a_shell(tmp_path):
    """Every override that was given is in it, quoted; of one key the last."""
    place = tmp_path / "my results"
    given = ["data.path=/some where/tokens", "optimizer=adamw", "optimizer.betas=[0.9,0.99]"]
    command = Evidence(place, "h100", given).source("small").command("optimizer=powerstep")
    words = shlex.split(command)
    assert words[:5] == ["python", "-m", "powerstep_repro.sweep", "small", "profile=h100"]
    assert words[5:] == [f"results_dir={place}", given[0], "optimizer=powerstep", given[2]]


@pytest.mark.parametrize(
    ("lr", "text"), [(6e-4, "6e-4"), (1e-3, "1e-3"), (3.75e-5, "3.75e-5"), (1.0, "1e0")]
)
def test_rates_read_as_people_write_them(lr, text):
    assert rate_label(lr) == text


def test_signs_are_written_and_nothing_is_negative_zero():
    said = [signed(v) for v in (0.012, -0.0004, 0.0004, -0.012, None)]
    assert said == ["+0.012", "0.000", "0.000", "-0.012", "n/a"]
