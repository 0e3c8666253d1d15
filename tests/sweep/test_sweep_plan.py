"""Guards the plan: states, order of work, and what a log says of a run that is not done."""

import json

import yaml
from rich.console import Console
from sweep_fakes import entry

from powerstep_repro.config import Planned
from powerstep_repro.sweep import overview, plan
from powerstep_repro.sweep.local import last_words, why_it_ended


def with_status(folder, name, status, **summary):
    out = entry(folder, name, "steps=200")
    out.run_dir.mkdir(parents=True)
    (out.run_dir / "config.yaml").write_text(yaml.safe_dump(out.config))
    (out.run_dir / "summary.json").write_text(json.dumps({"status": status, **summary}))
    return out


def test_states_and_order_of_work(tmp_path):
    entries = [
        with_status(tmp_path, "failed", "failed", steps=3),
        entry(tmp_path, "new", "steps=200"),
        with_status(tmp_path, "finished", "finished", steps=200),
        with_status(tmp_path, "diverged", "diverged", steps=7, diverged_at=8),
        with_status(tmp_path, "killed", "running", steps=50),
        with_status(tmp_path, "interrupted", "interrupted", steps=100),
    ]
    states = [each.refresh() for each in entries]
    assert states == ["retry", "new", "done", "done", "resume", "resume"]
    order = [each.label for each in plan.work_order(entries)]
    assert order == ["killed", "interrupted", "new", "failed"]
    console = Console(width=160, record=True)
    console.print(plan.table(entries, "a sweep"))
    text = console.export_text()
    for words in ("diverged at step 8", "failed, to retry", "100/200", "50/200", "finished"):
        assert words in text
    line = plan.headline(entries)
    assert line == "6 runs: 2 to resume, 1 to do, 1 failed, to retry, 2 done"


def test_the_last_attempts_error_is_found_in_a_log(tmp_path):
    run = entry(tmp_path, "run")
    assert last_words(run) == ""
    run.run_dir.mkdir()
    log = run.run_dir / "log.txt"
    log.write_text("--- first\nerror: old\n--- second\n")
    assert last_words(run) == ""
    log.write_text("--- first\nerror: old\n--- second\nstep 1\n  a traceback's end \n\n")
    assert last_words(run) == "a traceback's end"
    noise = "a launcher's page\n" * 500
    log.write_text(f"--- only\nstep 1\nerror: the reason\n{noise}")
    assert why_it_ended(run, 1) == "exit code 1: error: the reason"
    for code in (-9, 137):
        assert why_it_ended(run, code) == "killed by SIGKILL: error: the reason"


def test_a_label_tells_what_the_name_does_not():
    overrides = [
        ("model=x", "optimizer.beta=0.0", "steps=9"),
        ("model=y", "optimizer.beta=0.1", "steps=9"),
        ("model=y", "lr=1e-3", "steps=9"),
    ]
    labels = plan._varied([Planned(each, {}) for each in overrides])
    assert labels == ["optimizer.beta=0.0", "optimizer.beta=0.1", ""]


def test_the_time_left_assumes_the_pace_so_far():
    shown = overview.Overview(9, 3, Console())
    shown.began -= 60
    assert shown.state == "3 done, 0 running, 6 to do; 0:01:00 so far"
    shown.done, shown.failed, shown.running = 4, 1, 2
    expected = "4 done, 2 running, 2 to do, 1 failed; 0:01:00 so far, about 0:02:00 left"
    assert shown.state == expected
