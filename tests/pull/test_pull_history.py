"""Guards: the full history comes back, restored and counted, or nothing does."""

import json
import math
from types import SimpleNamespace

import pytest
from wandb_server import row

from powerstep_repro.pull import outcome


def metrics(folder):
    (path,) = folder.glob("*/metrics.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def summary(folder):
    (path,) = folder.glob("*/summary.json")
    return json.loads(path.read_text())


def test_a_history_of_several_pages_comes_whole_and_in_order(stored, server, pull, folder):
    run = stored(rows=2500).end("finished", status="finished", steps=2500, rows=2500)
    assert pull() == 0
    assert metrics(folder) == [row(step) for step in range(1, 2501)]
    # Pages are a thousand steps each, from step 0 on.
    assert server.asked.count("HistoryPage") == 3
    assert run.lines() == summary(folder)["steps"] == 2500


def test_exported_parquet_and_live_rows_are_one_history(stored, pull, folder):
    run = stored().log(*(row(s, **{"val_loss": 3.0} if s % 2 else {}) for s in range(1, 21)))
    run.log(row(21, train_loss=math.nan)).end("finished", status="finished", steps=21, rows=21)
    run.exported = 12
    assert pull() == 0
    rows = metrics(folder)
    assert [r["step"] for r in rows] == list(range(1, 22))
    # A column of the Parquet file has a value in every row; those that were not logged are null.
    assert ["val_loss" in r for r in rows[:12]] == [True, False] * 6
    # The rest was exported since, and the client keeps what it downloads.
    run.exported = 21
    assert pull("--overwrite") == 0
    assert len(metrics(folder)) == 21
    assert math.isnan(metrics(folder)[-1]["train_loss"])


def test_words_for_non_finite_numbers_are_restored(stored, pull, folder):
    run = stored(rows=1)
    run.log(row(2, train_loss=math.nan, grad_norm=math.inf, lr=-math.inf))
    run.end("finished", status="diverged", steps=2, rows=2, final_train_loss=math.nan)
    assert '"train_loss": "NaN"' in run.served(2, 3)[0]
    assert pull() == 0
    assert '"train_loss": NaN, "lr": -Infinity, "grad_norm": Infinity' in (
        next(folder.glob("*/metrics.jsonl")).read_text()
    )
    # summary.json is strict JSON.
    assert summary(folder)["final_train_loss"] is None


def test_of_doubled_rows_the_last_counts_and_given_up_ones_go(stored, pull, folder):
    run = stored(rows=4)
    replayed = row(3, train_loss=7.5)
    run.log(row(5), replayed).log(row(6), row(7))
    run.history[5]["_step"] = 6  # logged again by a resumed process, under W&B's own next step
    run.history[6]["_step"], run.history[7]["_step"] = 7, 8
    # The run's last attempt went on from a checkpoint and diverged before it came that far again.
    run.end("finished", status="diverged", steps=6, diverged_at=6, rows=6)
    assert pull() == 0
    assert metrics(folder) == [row(1), row(2), replayed, row(4), row(5), row(6)]


def test_what_is_not_ours_in_a_row_is_dropped(stored, pull, folder):
    run = stored(rows=2)
    run.history[0] |= {"picture": {"_type": "image-file"}, "note": "hello", "aux_loss": 0.25}
    run.history.append({"_step": 3, "system/heat": 80.0})
    run.end("finished", status="finished", steps=2, rows=2)
    assert pull() == 0
    assert metrics(folder) == [row(1, aux_loss=0.25), row(2)]


@pytest.mark.parametrize("counted_by", ["the run", "W&B"])
def test_with_rows_missing_nothing_is_written(stored, pull, folder, capsys, counted_by):
    run = stored(rows=1200)
    run.hidden = {700, 701}
    if counted_by == "the run":
        run.end("finished", status="finished", steps=1200, rows=1200)
    else:
        run.end("crashed")
    good = stored("seed=2", rows=3).end("finished", status="finished", steps=3, rows=3)
    assert pull() == 1
    out, err = capsys.readouterr()
    assert err.count("\n") == 1
    assert "1198 of the 1200 rows" in err
    assert "nothing of it is written" in err
    assert "1 pulled, 1 failed" in out
    # The other run came all the same; of the broken one, and of the work, nothing is left.
    assert [path.name for path in folder.iterdir()] == [good.display]
    assert [path.name for path in folder.parent.iterdir()] == ["runs"]


@pytest.mark.parametrize(
    ("state", "said", "steps", "status"),
    [
        ("finished", "finished", 9, "finished"),
        ("finished", "diverged", 9, "diverged"),
        ("finished", "interrupted", 9, "interrupted"),
        ("failed", "failed", 9, "failed"),
        ("crashed", None, None, "interrupted"),
        ("killed", None, None, "interrupted"),
        ("preempted", None, None, "interrupted"),
        ("failed", None, None, "failed"),
        ("running", None, None, "running"),
        # W&B closed it, the run never did: its mirror broke, and it may have gone on.
        ("finished", None, None, "interrupted"),
        # Only the last heartbeat is missing.
        ("crashed", "finished", 9, "finished"),
        # An earlier attempt's summary, of which rows and status no longer hold.
        ("crashed", "interrupted", 5, "interrupted"),
        ("crashed", "failed", 5, "interrupted"),
        ("running", "interrupted", 9, "running"),
    ],
)
def test_the_status_is_what_the_run_said_last_or_else_what_wandb_saw(state, said, steps, status):
    given = {"status": said, "steps": steps, "rows": steps}
    given = {key: value for key, value in given.items() if value is not None}
    run = SimpleNamespace(state=state, summary_metrics=given, historyLineCount=9)
    result = outcome(run, last_step=9)
    assert result.status == status
    assert result.rows == 9


def test_a_killed_run_keeps_what_it_has_and_nothing_of_an_older_attempts_end(stored, pull, folder):
    run = stored(rows=7)
    run.end("crashed", status="interrupted", steps=5, rows=5, final_val_loss=3.0, device="a card")
    run.end("crashed", windows={"step": 5, "losses": [1.0]})
    assert pull() == 0
    assert summary(folder) == {
        "status": "interrupted",
        "steps": 7,
        "device": "a card",
        "pulled_from": f"me/proj/{run.name}",
    }
    assert len(metrics(folder)) == 7
    assert not list(folder.glob("*/windows.json"))
    assert not list(folder.glob("*/metrics.parquet"))
