"""Guards that a rerun is of the very same run, stops where it should, and is compared honestly."""

import json

import numpy as np
import pytest
import yaml

from powerstep_repro.bench import rerun
from powerstep_repro.config import compose, with_data
from powerstep_repro.data import resolve
from powerstep_repro.errors import UserError

LOSSES = np.linspace(5, 4, 20)


def test_equal_runs_have_no_differing_step(make_run):
    report = rerun.compare(make_run("a"), make_run("b", parquet=False), 10)
    assert report["first_differing_step"] is None
    assert (report["max_abs_diff"], report["mean_abs_diff"]) == (0.0, 0.0)
    assert report["train_loss"][0] == report["train_loss"][1] == LOSSES[9]
    assert report["device"] == "card"
    assert report["same_card"] is None
    assert report["revisions"] == ["abc", "abc"]


def test_differences_are_taken_up_to_the_step_and_no_further(make_run):
    other = LOSSES.copy()
    other[3] += 0.5
    other[6] -= 0.25
    other[15] += 9  # beyond the step
    interrupted = make_run("b", losses=other[:18], status="interrupted", parquet=False)
    report = rerun.compare(make_run("a"), interrupted, 10, same_card=True)
    assert report["first_differing_step"] == 4
    assert report["max_abs_diff"] == pytest.approx(0.5)
    assert report["mean_abs_diff"] == pytest.approx(0.075)
    assert report["steps_compared"] == 10
    assert report["same_card"] is True


def test_a_loss_that_is_finite_in_one_alone_is_no_small_difference(make_run):
    other = LOSSES.copy()
    other[9] = np.nan
    both, one = make_run("b", losses=other), make_run("c", losses=other)
    report = rerun.compare(make_run("a"), both, 10)
    assert report["first_differing_step"] == 10
    assert report["max_abs_diff"] is None
    assert report["train_loss"] == [LOSSES[9], None]
    json.dumps(report, allow_nan=False)
    assert rerun.compare(both, one, 10)["first_differing_step"] is None


def test_other_kinds_of_card_are_not_the_same_card(make_run):
    report = rerun.compare(make_run("a"), make_run("b", device="other"), 10, same_card=True)
    assert report["device"] == "card and other"
    assert report["same_card"] is False


@pytest.mark.parametrize(("again", "same"), [("GPU-1", True), ("GPU-2", False)])
def test_a_cards_own_identity_decides(make_run, again, same):
    first, second = make_run("a", device_uuid="GPU-1"), make_run("b", device_uuid=again)
    assert rerun.compare(first, second, 10, same_card=not same)["same_card"] is same


def test_another_run_or_a_short_one_is_refused_in_a_sentence(make_run, tmp_path):
    run = make_run("a")
    with pytest.raises(UserError, match=r"not the same run: they differ in .*seed"):
        rerun.compare(run, make_run("b", "seed=1"), 10)
    short = make_run("c", losses=LOSSES[:7], status="interrupted")
    with pytest.raises(UserError, match=r"no row of step 10: its last is of step 7"):
        rerun.compare(run, short, 10)
    with pytest.raises(UserError, match="no run directory"):
        rerun.compare(run, tmp_path, 10)


@pytest.mark.parametrize(
    "overrides",
    [
        ("profile=h100", "data=tokens", "data.path=/x é=y", "data.name=mix-1", "micro_batch=40"),
        ("profile=tiny", "optimizer=adamw_int8", "optimizer.code_v=linear", "optimizer.eps=1e-12"),
        ("profile=paper", "model=qwen3_30b_a3b", "optimizer.beta=0", "lr=1e-4", "steps=7"),
        ("profile=h100", "model.hidden=96", "logger=wandb", "logger.group=g", "compile=false"),
    ],
)
def test_a_recorded_config_starts_the_same_run_again(overrides):
    config = with_data(compose(overrides), "0" * 16, compose(overrides)["data"]["name"])
    recorded = yaml.safe_load(yaml.safe_dump(config))
    again = compose(rerun.overrides_of(recorded))
    rerun.check_identity(recorded, with_data(again, "0" * 16, "any"))
    assert again["micro_batch"] == config["micro_batch"]
    assert again["data"]["path"] == config["data"]["path"]
    assert again["logger"]["name"] == "none"


@pytest.mark.slow
def test_trained_again_until_the_step_it_is_equal_and_keeps_its_schedule(tmp_path):
    """Two trainings of 20,000 planned steps, both stopped soon after the fifth."""
    text = tmp_path / "words.txt"
    text.write_text("".join(f"{n} plus {n % 7} is {n + n % 7}.\n" for n in range(3000)))
    config = compose(
        [
            *("profile=tiny", "data=text", f"data.path={text}", "device=cpu", "steps=20000"),
            *("model.layers=1", "model.hidden=16", "model.heads=2", "batch=4", "context=16"),
            *("eval_interval=20000", "eval_windows=4", "log_interval=1"),
        ]
    )
    places = [f"data_dir={tmp_path / 'data'}"]
    hash = resolve(config["data"], tmp_path / "data").hash
    original = rerun.train_until(
        with_data(config, hash, "text"), 5, [f"results_dir={tmp_path / 'a'}", *places]
    )
    again = ["--results-dir", str(tmp_path / "b"), "--data-dir", str(tmp_path / "data")]
    assert rerun.main([str(original), "--step", "5", "--same-card", "yes", *again]) == 0
    report = json.loads((tmp_path / "a/tiny/reruns" / f"{original.name}.json").read_text())
    assert report["run"] == original.name
    assert report["first_differing_step"] is None
    assert report["steps_compared"] == 5
    assert report["same_card"] is True
    (other,) = (tmp_path / "b/tiny/runs").iterdir()
    assert other.name == original.name
    summary = json.loads((other / "summary.json").read_text())
    assert (summary["status"], summary["steps"] < 20000) == ("interrupted", True)
    # On other data it would be another run.
    text.write_text("something else\n" * 3000)
    with pytest.raises(UserError, match=r"the data there has the hash"):
        rerun.main([str(original), "--step", "5", "--data-dir", str(tmp_path / "fresh")])
