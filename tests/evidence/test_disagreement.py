"""Guards: a run that contradicts itself, repeats another or lacks a part counts for no more."""

import json
import shutil

import numpy as np
import pytest
import yaml

from powerstep_repro.evidence import Evidence
from powerstep_repro.evidence.compare import gap_of, gap_words
from powerstep_repro.evidence.curves import read_strand
from powerstep_repro.pages.figures import draw
from powerstep_repro.pages.report import document
from powerstep_repro.pages.tables import build

SMALL = {"model": "gpt2_small"}
ADAMW, POWERSTEP = SMALL | {"optimizer": "adamw"}, SMALL | {"optimizer": "powerstep"}


def cell_of(evidence, optimizer):
    return next(c for c in evidence.source("small").find("gpt2_small") if c.optimizer == optimizer)


def evaluated_at_the_end(lines):
    """A log whose last row holds a validation loss."""
    last = json.loads(lines[-1]) | {"val_loss": 3.796}
    return [*lines[:-1], json.dumps(last)]


def test_a_copied_run_under_another_seed_is_no_replicate(world, caplog):
    (run,) = world.add("small", ADAMW, losses=(3.0,), first_seed=1337)
    copy = run.with_name(run.name.replace("s1337", "s2"))
    shutil.copytree(run, copy)
    config = yaml.safe_load((copy / "config.yaml").read_text())
    (copy / "config.yaml").write_text(yaml.safe_dump(config | {"seed": 2}))
    world.add("small", ADAMW, losses=(3.1,), first_seed=3)
    evidence = Evidence(world.results, "h100")
    assert sorted(cell_of(evidence, "adamw").outcome.finals) == [3, 1337]
    said = f"{copy.name} (seed 2) has the training losses of {run.name} (seed 1337) in every row"
    assert said in caplog.text
    assert said in document(evidence).partition("## Runs, devices, versions")[2]


def test_a_run_without_windows_does_not_narrow_the_interval(world, caplog):
    for where in (ADAMW, POWERSTEP):
        runs = world.add("small", where, losses=(3.0, 3.1, 3.2), window_noise=0.5)
    whole = Evidence(world.results, "h100")
    before = gap_of(cell_of(whole, "powerstep"), cell_of(whole, "adamw"))
    (runs[2] / "windows.json").unlink()
    lacking = Evidence(world.results, "h100")
    after = gap_of(cell_of(lacking, "powerstep"), cell_of(lacking, "adamw"))
    assert (before.n, after.n) == (3, 2)
    assert after.high - after.low > before.high - before.low
    assert "(n=2, 1 more without windows)" in gap_words(after)
    assert f"{runs[2] / 'windows.json'} is missing" in caplog.text


def test_windows_of_another_evaluation_are_left_out(world, caplog):
    (run,) = world.add("small", ADAMW, losses=(3.0,))
    (run / "windows.json").write_text(json.dumps({"losses": [3.5, 3.6, 3.7]}))
    final = cell_of(Evidence(world.results, "h100"), "adamw").outcome.finals[1]
    assert (final.loss, final.windows) == (3.0, None)
    assert f"{run.name}: its windows.json does not average" in caplog.text


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (3.0, "tells of a final validation loss of 3.0000, its log of 3.7960"),
        (-5, "tells of a validation loss of -5, which must be from 0 to below 1,000"),
        (float("nan"), "holds no final validation loss"),
        ("3.796", "holds no final validation loss"),
        (None, "holds no final validation loss"),
    ],
)
def test_a_final_loss_that_is_missing_or_is_not_the_logs_counts_as_damaged(
    world, caplog, told, said
):
    (run,) = world.add("lr_tuned", ADAMW | {"lr": 6e-4}, losses=(3.796,), log=evaluated_at_the_end)
    sound = Evidence(world.results, "h100")
    assert cell_of(sound, "adamw").outcome.words() == "3.796"
    assert caplog.messages == []
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps(summary | {"final_val_loss": told}))
    evidence = Evidence(world.results, "h100")
    assert cell_of(evidence, "adamw").outcome.words() == "damaged"
    assert [line for line in caplog.messages if run.name in line and said in line]
    for name in ("valid_small", "lr_tuned"):
        (row,) = [
            r
            for r in build(name, evidence).long
            if r["optimizer"] == "adamw" and r["model"] == "gpt2_small"
        ]
        assert row["ours"] == "damaged"
    text = document(evidence)
    assert "1 runs (1 damaged)" in text
    assert "unfinished" not in text
    assert f"- {run.name}: " in text


def test_no_curve_crosses_a_hole_in_a_log(world, caplog):
    def with_a_hole(lines):
        return [line for line in lines if not 500 < json.loads(line)["step"] <= 900]

    (run,) = world.add("small", ADAMW, losses=(3.0,), log=with_a_hole)
    evidence = Evidence(world.results, "h100")
    strand = read_strand(cell_of(evidence, "adamw"), run.name)
    assert (strand.status, strand.ended_at, strand.steps[-1]) == ("log cut", 500, 500)
    assert np.isfinite(strand.smooth).all()
    said = f"{run.name}: its log has no row between the steps 500 and 950: a curve ends there"
    assert caplog.messages == [said]
    assert f"- {said}" in document(evidence).splitlines()


def test_a_run_on_other_data_is_not_called_not_run(world, texts):
    for where in (ADAMW, SMALL | {"optimizer": "signsgd"}):
        world.add("small", where, losses=(3.0, 3.1))
    (run,) = world.add("small", POWERSTEP, losses=(3.0,), data=("another-mix", "ff" * 8))
    evidence = Evidence(world.results, "h100")
    for name in ("valid_small", "lr_tuned"):
        (row,) = [
            r
            for r in build(name, evidence).long
            if r["optimizer"] == "powerstep" and r["model"] == "gpt2_small"
        ]
        assert (row["ours"], row["verdict"]) == ("other data", "other data")
    said = texts(draw("small", evidence))
    assert "PowerStep: other data" in said
    assert "AdamS: not run" in said
    text = document(evidence)
    findings = text.partition("## The paper's claims")[0]
    assert f"another-mix ({'ff' * 8}, 1 run)" in findings
    assert "english-mix (00aa11bb22cc33dd, 4 runs)" in findings
    left_out = "Left out beside runs on other data, of which there are more"
    assert f"{left_out}: {run.name} (another-mix)." in findings
    assert "Sweeps are on different data and are not compared: " in findings
    assert "GPT-2-Small (124M): PowerStep (other data)" in text


def test_a_panel_whose_runs_are_all_on_other_data_or_failed_says_so(world, texts):
    medium = {"model": "gpt2_medium"}
    world.add("small", ADAMW, losses=(3.0, 3.1, 3.2))
    world.add("small", medium | {"optimizer": "adamw"}, losses=(3.0,), data=("another", "ff" * 8))
    world.add("small", medium | {"optimizer": "adams"}, losses=(None,), status="failed")
    world.add("small", {"model": "qwen3_0_6b", "optimizer": "adams"}, losses=(3,), status="failed")
    evidence = Evidence(world.results, "h100")
    said = texts(draw("small", evidence))
    assert "other data" in said
    (reasons,) = [text for text in said if text.startswith("AdamW: other data\n")]
    assert "AdamS: failed\n" in reasons
    assert any(text.startswith("AdamS: failed\npython -m") for text in said)
    for row in build("valid_small", evidence).long:
        if row["model"] == "gpt2_medium" and row["optimizer"] in ("adamw", "adams"):
            assert row["ours"] == {"adamw": "other data", "adams": "failed"}[row["optimizer"]]


def test_a_state_that_no_optimizer_can_have_is_left_out(world, caplog):
    (run,) = world.add("quant", ADAMW, losses=(3.0,), summary={"optimizer_state_bytes": 1})
    evidence = Evidence(world.results, "h100")
    assert np.isnan(evidence.loaded.runs.at[run.name, "optimizer_state_bytes"])
    assert f"{run.name}: its summary tells of 1 bytes of optimizer state" in caplog.text
