"""Guards: the W&B mirror sends a run as it is, once, and never takes the training down with it.

The offline runs are wandb's own, read back from the file that ``wandb sync`` would upload.
"""

import json
import logging
import struct
import sys
import time
from pathlib import Path

import pytest

from powerstep_repro.config import compose, run_id, run_name, with_data
from powerstep_repro.runs import Recorder
from powerstep_repro.runs.wandb_mirror import WandbMirror

wandb = pytest.importorskip("wandb")
CONFIG = with_data(compose(["logger=wandb", "optimizer=adamw"]), "e" * 16, "builtin")


@pytest.fixture(autouse=True)
def _offline(tmp_path, monkeypatch):
    for name in ("WANDB_RUN_ID", "WANDB_SWEEP_ID", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    wandb.teardown()  # it reads its environment once a process


def records(path):
    """The records of a .wandb file: a log in LevelDB's format behind a header of seven bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, at, part = path.read_bytes(), 7, b""
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:  # a block's end, too short for another header
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + 7])
        part += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            record = Record()
            record.ParseFromString(part)
            part = b""
            yield record


def finished_records(path):
    """All records, once wandb's own process has put the last one down."""
    give_up = time.monotonic() + 20
    while time.monotonic() < give_up:
        found = list(records(path))
        if found and found[-1].HasField("exit"):
            return found
        time.sleep(0.1)
    raise AssertionError(f"{path} has no end")


def test_an_offline_run_holds_nested_config_step_metric_and_rows(tmp_path):
    rows = [{"step": s, "train_loss": 5.0 / s} for s in (1, 2, 3)]
    with Recorder(tmp_path / "run", CONFIG, WandbMirror(CONFIG)) as recorder:
        for row in rows:
            recorder.log(row)
        recorder.finish("finished", steps=3, final_val_loss=2.0)
    (path,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    found = finished_records(path)
    run = next(r.run for r in found if r.WhichOneof("record_type") == "run")
    assert (run.run_id, run.display_name) == (run_id(CONFIG), run_name(CONFIG))
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert config["optimizer"] == {"name": "adamw", "betas": [0.9, 0.95], "eps": 1e-8}
    assert config["data"]["hash"] == "e" * 16
    metrics = {r.metric.name or r.metric.glob_name: r.metric for r in found if r.HasField("metric")}
    assert metrics["*"].step_metric == "step"
    sent = [r.history for r in found if r.WhichOneof("record_type") == "history"]
    values = [
        {".".join(i.nested_key) or i.key: json.loads(i.value_json) for i in history.item}
        for history in sent
    ]
    assert [{key: v[key] for key in ("step", "train_loss")} for v in values] == rows
    assert [history.step.num for history in sent] == [1, 2, 3]
    exits = [r.exit.exit_code for r in found if r.WhichOneof("record_type") == "exit"]
    assert exits == [0]


class FakeRun:
    """Stands for a W&B run that a resumed process finds with ``step`` steps sent."""

    def __init__(self, step):
        self.step, self.sent, self.summary, self.ended = step, [], {}, None

    def define_metric(self, *_, **__):
        pass

    def log(self, row, step):
        self.sent.append((row["step"], step))

    def finish(self, exit_code):
        self.ended = exit_code


@pytest.fixture
def fake_wandb(monkeypatch):
    import wandb

    def install(run):
        calls = []
        monkeypatch.setattr(wandb, "init", lambda **options: (calls.append(options), run)[1])
        return calls

    return install


def test_a_resumed_run_goes_on_in_the_same_wandb_run_and_sends_no_step_twice(fake_wandb):
    run = FakeRun(step=5)  # W&B counts from 0: steps 1 to 4 are there
    calls = fake_wandb(run)
    mirror = WandbMirror(CONFIG)
    assert (calls[0]["id"], calls[0]["resume"]) == (run_id(CONFIG), "allow")
    for step in (3, 4, 5, 6, 6, 5):
        mirror.log({"step": step})
    assert run.sent == [(5, 5), (6, 6)]
    mirror.finish("failed", {"steps": 6})
    assert (run.summary, run.ended) == ({"steps": 6}, 1)


def test_under_a_wandb_agent_the_agent_chooses_the_run(fake_wandb, monkeypatch):
    monkeypatch.setenv("WANDB_SWEEP_ID", "abc")
    calls = fake_wandb(FakeRun(step=0))
    WandbMirror(CONFIG)
    assert calls[0]["id"] is None


def train_three_steps(tmp_path):
    with Recorder(tmp_path / "run", CONFIG, WandbMirror(CONFIG)) as recorder:
        for step in (1, 2, 3):
            recorder.log({"step": step, "train_loss": 1.0})
        recorder.finish("finished")
    return (tmp_path / "run" / "metrics.jsonl").read_text().count("\n")


@pytest.mark.parametrize("broken", ["init", "log", "finish", "login"])
def test_wherever_wandb_fails_training_ends_well_with_one_warning(
    tmp_path, fake_wandb, monkeypatch, caplog, broken
):
    import wandb

    def fail(*_, **__):
        # A refused login leaves through SystemExit.
        raise SystemExit(1) if broken == "login" else OSError("no space left on device")

    run = FakeRun(step=0)
    fake_wandb(run)
    monkeypatch.setattr(*((wandb, "init") if broken in ("init", "login") else (run, broken)), fail)
    with caplog.at_level(logging.WARNING):
        assert train_three_steps(tmp_path) == 3
    assert [r.getMessage().split(",")[0] for r in caplog.records] == ["W&B failed"]


def test_a_missing_wandb_is_a_warning_too(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with caplog.at_level(logging.WARNING):
        assert train_three_steps(tmp_path) == 3
    assert "W&B failed" in caplog.text


def test_a_folder_that_cannot_be_written_does_not_stop_the_run(tmp_path, monkeypatch):
    # A file in the folder's place refuses root as well.
    blocked = Path(tmp_path / "blocked")
    blocked.write_text("")
    monkeypatch.setenv("WANDB_DIR", str(blocked))
    assert train_three_steps(tmp_path) == 3
