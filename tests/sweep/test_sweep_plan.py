"""Guards the plan: states, order of work, and where an estimated time comes from."""

import json

import pytest
import yaml
from rich.console import Console
from sweep_fakes import entry

from powerstep_repro.runs import load
from powerstep_repro.sweep import plan
from powerstep_repro.sweep.estimate import History, duration, makespan
from powerstep_repro.sweep.report import Pace, loss_text
from powerstep_repro.sweep.state import DAMAGED, last_row, last_words


def with_status(folder, name, status, **summary):
    out = entry(folder, name, "steps=200")
    out.run_dir.mkdir(parents=True)
    (out.run_dir / "config.yaml").write_text(yaml.safe_dump(out.config))
    (out.run_dir / "summary.json").write_text(json.dumps({"status": status, **summary}))
    return out


def config(**changes):
    return entry("x", "run", "steps=100").config | changes


def test_the_time_is_measured_on_runs_of_the_same_shape():
    other = config(optimizer={"name": "stacey"})
    history = History(
        [
            (config(), {"wall_s": 10.0, "steps_done": 100, "device": "X"}),
            (config(), {"wall_s": 30.0, "steps_done": 100, "device": "X"}),
            (config(), {"wall_s": 20.0, "steps_done": 100, "device": "X"}),
            (other, {"wall_s": 90.0, "steps_done": 100, "device": "X"}),
            (config(batch=16), {"wall_s": 900.0, "steps_done": 100, "device": "X"}),
            (config(), {"wall_s": None, "steps_done": 100, "device": "Y"}),
            (config(), {"wall_s": float("nan"), "steps_done": 100, "device": "Y"}),
        ]
    )
    assert history.seconds(config()) == (pytest.approx(20.0), "measured on X")
    assert history.seconds(config(steps=50)) == (pytest.approx(10.0), "measured on X")
    assert history.seconds(config(), steps_done=75) == (pytest.approx(5.0), "measured on X")
    assert history.seconds(other) == (pytest.approx(90.0), "measured on X")
    # Another optimizer on the same model: the median over all that were run on it.
    unseen = config(optimizer={"name": "powerstep"})
    assert history.seconds(unseen) == (pytest.approx(25.0), "measured on X")


def test_without_such_runs_tiny_is_guessed_and_the_rest_unknown():
    assert History().seconds(config(steps=200)) == (pytest.approx(15.0), "guess")
    assert History().seconds(config(steps=200), steps_done=100) == (pytest.approx(9.5), "guess")
    assert History().seconds(config(profile="h100")) == (None, "unknown")


def test_makespan_gives_the_next_run_to_whoever_is_free():
    assert makespan([], 3) == 0
    assert makespan([5, 1, 1, 1, 1, 1], 2) == 5
    assert makespan([4, 4, 4], 2) == 8


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (45, "45 s"), (150, "2 min"), (12600, "3.5 h"), (200000, "2.3 d")],
)
def test_durations_read_well(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    "content",
    [
        *(None, b"", b"[1, 2]", b"lr: [", b"\xff\xfe\x00", b"profile: tiny"),
        *({"lr": "fast"}, {"lr": float("inf")}, {"seed": None}, {"model": 3}, {"steps": "x"}),
    ],
)
def test_what_no_figure_would_find_is_not_done(tmp_path, content):
    """A run is done for a sweep if the loader reads it, and is named as damaged if it does not."""
    run = with_status(tmp_path, "run", "finished", steps=200)
    fine = with_status(tmp_path, "fine", "finished", steps=200)
    path = run.run_dir / "config.yaml"
    if content is None:
        path.unlink()
    elif isinstance(content, dict):
        path.write_text(yaml.safe_dump(run.config | content))
    else:
        path.write_bytes(content)
    plan.take_stock([run, fine], History())
    assert load(tmp_path).damaged == ["run"]
    assert (run.state, fine.state) == (DAMAGED, "done")
    assert plan.work_order([run, fine]) == [run]
    assert "1 config.yaml damaged, to do again, 1 done" in plan.headline([run, fine], 1)


def test_states_and_order_of_work(tmp_path):
    entries = [
        with_status(tmp_path, "failed", "failed", steps=3),
        entry(tmp_path, "new", "steps=200"),
        with_status(tmp_path, "finished", "finished", steps=200),
        with_status(tmp_path, "diverged", "diverged", steps=7, diverged_at=8),
        with_status(tmp_path, "killed", "running", steps=50),
        with_status(tmp_path, "interrupted", "interrupted", steps=100),
    ]
    # Killed within seconds of a start: the log is ahead of the summary.
    (entries[4].run_dir / "metrics.jsonl").write_text('{"step": 1}\n{"step": 73}\n{"step": 7')
    plan.take_stock(entries, History())
    assert [e.state for e in entries] == ["retry", "new", "done", "done", "resume", "resume"]
    order = [e.name for e in plan.work_order(entries)]
    assert order == ["killed", "interrupted", "new", "failed"]
    console = Console(width=160, record=True)
    console.print(plan.table(entries, "a sweep"))
    text = console.export_text()
    for words in (
        "diverged at step 8",
        "failed, to retry",
        "guess: 15 s",
        "100/200",
        "73/200",
        "finished",
    ):
        assert words in text
    line = plan.headline(entries, 2)
    assert line.startswith("6 runs: 1 to do, 2 to resume, 1 failed, to retry, 2 done; about ")
    assert line.endswith("on 2 workers (guess)")


def test_several_workers_start_long_and_unknown_runs_first(tmp_path):
    entries = [entry(tmp_path, name) for name in ("short", "unknown", "long")]
    for each, seconds in zip(entries, (10.0, None, 100.0), strict=True):
        each.seconds = seconds
    assert [e.name for e in plan.work_order(entries, 2)] == ["unknown", "long", "short"]
    assert [e.name for e in plan.work_order(entries, 1)] == ["short", "unknown", "long"]
    assert "at least 2 min (1 unknown) on 1 worker" in plan.headline(entries, 1)


def test_a_log_is_read_while_it_is_written(tmp_path):
    assert last_row(tmp_path) == {}
    log = tmp_path / "metrics.jsonl"
    rows = "".join(json.dumps({"step": i, "x": "y" * 100}) + "\n" for i in range(1, 200))
    log.write_text(rows + '{"step": 200, "train_lo')
    assert last_row(tmp_path)["step"] == 199
    log.write_text('{"step": 1, "train_loss": NaN}\n')
    assert loss_text(last_row(tmp_path), "train_loss") == "nan"
    log.write_text("nothing that is JSON\n")
    assert last_row(tmp_path) == {}


def test_the_last_attempts_error_is_found_in_a_log(tmp_path):
    log = tmp_path / "log.txt"
    assert last_words(log) == ""
    log.write_text("--- first\nerror: old\n--- second\n")
    assert last_words(log) == ""
    log.write_text("--- first\nerror: old\n--- second\nstep 1\n  a traceback's end \n\n")
    assert last_words(log) == "a traceback's end"
    noise = "a launcher's page\n" * 500
    log.write_text(f"--- only\nstep 1\nerror: the reason\n{noise}")
    assert last_words(log) == "error: the reason"


def test_the_time_left_is_reckoned_from_the_steps_seen(tmp_path):
    clock = iter([100.0, 110.0]).__next__
    pace = Pace(clock)
    run = entry(tmp_path, "run", "steps=100")
    pace.begin(run, 50)
    assert pace.left(run, 50) is None, "a resumed run's earlier steps tell nothing"
    assert pace.left(run, 60) == pytest.approx(10.0 / 10 * 40)


def test_a_label_tells_what_the_name_does_not(tmp_path):
    entries = [
        entry(tmp_path, "a", "model=x", "optimizer.beta=0.0", "steps=9"),
        entry(tmp_path, "b", "model=y", "optimizer.beta=0.1", "steps=9"),
        entry(tmp_path, "c", "model=y", "lr=1e-3", "steps=9"),
    ]
    plan.take_stock(entries, History())
    labels = [each.label for each in entries]
    assert labels == ["a (optimizer.beta=0.0)", "b (optimizer.beta=0.1)", "c"]
