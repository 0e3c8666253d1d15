"""Guards: the command takes what it was asked for, spares what is there, and says why it fails."""

import json
import sys

import pytest
from wandb_server import StoredRun

from powerstep_repro.errors import UserError
from powerstep_repro.runs import Recorder


def finished(run, rows):
    return run.end("finished", status="finished", steps=rows, rows=rows)


def names(folder):
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


@pytest.fixture
def project(stored):
    """Five runs, the oldest first; wandb's pages of the listing hold two."""
    made = [
        (("optimizer=powerstep", "seed=1"), "first"),
        (("optimizer=powerstep", "seed=2"), "first"),
        (("optimizer=powerstep", "seed=3", "lr=6e-4"), "second"),
        (("optimizer=adamw", "seed=1"), "second"),
        (("optimizer=adamw", "seed=2"), None),
    ]
    return [
        finished(stored(*overrides, rows=3, group=group), 3).display for overrides, group in made
    ]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), [0, 1, 2, 3, 4]),
        (("--filter", "optimizer.name=powerstep", "--filter", "seed=1"), [0]),
        (("--filter", "status=finished", "--group", "second"), [2, 3]),
        (("--limit", "2"), [3, 4]),
        (("--profile", "tiny", "--limit", "1"), [4]),
    ],
)
def test_filters_choose_and_the_limit_takes_the_newest(project, pull, folder, arguments, expected):
    assert pull(*arguments) == 0
    assert names(folder) == {project[at] for at in expected}


def test_a_dry_run_says_what_it_would_do_and_asks_for_no_history(
    project, pull, folder, server, capsys
):
    assert pull("--dry-run", "--limit", "2") == 0
    out = capsys.readouterr().out
    assert out.count("would pull") == 2
    assert "finished, 3 rows" in out
    assert not folder.exists()
    assert "HistoryPage" not in server.asked


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("--filter", "optimizer.name=powrstep"),
            "no run of this harness that matches what was asked for",
        ),
        (("--profile", "tiy"), "--profile: invalid choice: 'tiy' (choose from"),
        (("--limit", "0"), "--limit=0: it must be 1 or more"),
        (("--filter", "seed"), "must be KEY=VALUE"),
    ],
)
def test_bad_arguments_are_one_sentence(project, pull, folder, arguments, words):
    with pytest.raises(UserError, match=r"(?s)^[^\n]*$") as error:
        pull(*arguments)
    assert words in str(error.value)
    assert not folder.exists()


def test_runs_of_other_projects_are_skipped_with_a_sentence(project, server, pull, folder, capsys):
    evil = finished(StoredRun("evil", {}, display="evil"), 0)
    evil.config = {
        "profile": {"value": "../../.."},
        **{name: {"value": {"name": "x"}} for name in ("model", "optimizer", "data")},
        **{name: {"value": 1} for name in ("lr", "seed", "steps")},
    }
    server.add(evil)
    server.add(StoredRun("other", {"epochs": 3, "model": "resnet"}, display="resnet"))
    server.add(StoredRun("empty", {}))
    assert pull() == 0
    out = capsys.readouterr().out
    assert "skipped resnet (me/proj/other): not a run of this harness (config.yaml lacks" in out
    assert "5 pulled, 3 skipped" in out
    assert names(folder) == set(project)


def test_a_directory_with_as_many_rows_is_left_alone_unless_overwritten(
    stored, config, pull, folder, capsys
):
    run = finished(stored(rows=3), 3)
    with Recorder(folder / run.display, config()) as recorder:
        for step in (1, 2, 3, 4):
            recorder.log({"step": step, "train_loss": 1.0})
        recorder.finish("interrupted", steps=4)
    before = (folder / run.display / "metrics.jsonl").read_bytes()
    assert pull() == 0
    assert "it holds 4 rows, W&B 3" in capsys.readouterr().out
    assert (folder / run.display / "metrics.jsonl").read_bytes() == before
    assert pull("--overwrite") == 0
    assert (folder / run.display / "metrics.jsonl").read_bytes().count(b"\n") == 3


def test_a_shorter_directory_is_replaced_and_its_checkpoints_stay(stored, config, pull, folder):
    run = finished(stored(rows=3), 3)
    place = folder / run.display
    with Recorder(place, config()) as recorder:
        recorder.log({"step": 1, "train_loss": 1.0})
        recorder.windows(1, [1.0])
    (place / "checkpoints" / "step-1").mkdir(parents=True)
    (place / "checkpoints" / "step-1" / "model.pt").write_bytes(b"weights")
    (place / "log.txt").write_text("said")
    assert pull() == 0
    assert json.loads((place / "summary.json").read_text())["status"] == "finished"
    assert (place / "checkpoints" / "step-1" / "model.pt").read_bytes() == b"weights"
    assert (place / "log.txt").read_text() == "said"
    # The old evaluation is not this history's.
    assert not (place / "windows.json").exists()
    assert names(folder.parent) == {"runs"}


def test_a_run_that_is_being_trained_here_is_not_touched(stored, config, pull, folder, capsys):
    run = finished(stored(rows=3), 3)
    with Recorder(folder / run.display, config()):
        assert pull("--overwrite") == 0
    assert "a process is writing to it" in capsys.readouterr().out


def test_a_run_pulled_while_it_ran_is_pulled_again_once_it_has_ended(stored, pull, folder):
    run = stored(rows=3)
    assert pull() == 0
    path = folder / run.display / "summary.json"
    assert json.loads(path.read_text())["status"] == "running"
    finished(run, 3)
    assert pull() == 0
    assert json.loads(path.read_text())["status"] == "finished"


def test_a_project_that_does_not_exist_or_is_closed_is_one_sentence(server, stored, pull):
    with pytest.raises(UserError, match="'me' names no project: it must be ENTITY/PROJ"):
        pull(project="me")
    with pytest.raises(UserError, match=r"me/nope.*Could not find project"):
        pull(project="me/nope")
    stored(rows=1)
    server.refused["Runs"] = 403
    with pytest.raises(UserError, match=r"me/proj \(.*permission denied"):
        pull()


def test_without_wandb_or_a_login_the_sentence_says_what_to_do(server, pull, tmp_path, monkeypatch):
    # Of another server this process knows no login.
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.delenv("WANDB_API_KEY")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with pytest.raises(UserError, match=r"no access to W&B .*log in with `wandb login`"):
        pull()
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(
        UserError, match="pull needs wandb, which is not installed: python -m pip install -e"
    ):
        pull()
