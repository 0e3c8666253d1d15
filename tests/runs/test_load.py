"""Guards: live, killed, damaged and ended runs load to tables that lose and invent nothing."""

import json
import logging
import math
import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from powerstep_repro.runs import load
from powerstep_repro.runs.files import frame_of_rows, jsonl_rows, read_jsonl


def run_path(root, name):
    return root / "tiny" / "runs" / name


def config_text(**changes):
    """A run's config with some of its lines changed."""
    lines = {"profile": "tiny", "lr": "1e-3", "seed": "1", "steps": "1"}
    lines |= dict.fromkeys(("model", "optimizer", "data"), "{name: x}") | changes
    return "\n".join(f"{key}: {value}" for key, value in lines.items())


def test_ended_runs_make_one_table(record, tmp_path):
    adamw = record("optimizer=adamw", final_val_loss=2.5, device="a card")
    power = record("optimizer=powerstep", "lr=5e-4", "seed=2", final_val_loss=None)
    runs = load(tmp_path).runs
    assert set(runs.index) == {adamw, power}
    assert runs.index.name == "run"
    assert runs.loc[adamw, "optimizer.betas"] == [0.9, 0.95]
    assert math.isnan(runs.loc[adamw, "optimizer.beta"])  # AdamW has no such hyperparameter
    assert runs.loc[power, "optimizer.beta"] == 0.1
    assert (runs.loc[power, "lr"], runs.loc[power, "seed"]) == (5e-4, 2)
    assert (runs.loc[adamw, "steps"], runs.loc[adamw, "steps_done"]) == (200, 5)
    assert runs.loc[adamw, "device"] == "a card"  # the summary's, not the config's "auto"
    assert pd.isna(runs.loc[power, "device"])
    assert runs["final_val_loss"].dtype == "float64"
    assert math.isnan(runs.loc[power, "final_val_loss"])
    assert load(tmp_path).configs[power]["optimizer"]["gamma"] == 0.9


def test_any_folder_above_will_do_and_an_empty_one_is_empty(record, tmp_path):
    name = record()
    for root in (tmp_path, tmp_path / "tiny", tmp_path / "tiny" / "runs", run_path(tmp_path, name)):
        assert list(load(root).runs.index) == [name]
    for root in (tmp_path / "h100", tmp_path / "nowhere"):
        empty = load(root)
        assert empty.runs.empty
        assert {"status", "lr", "final_val_loss", "model.name"} <= set(empty.runs.columns)
        assert empty.steps.empty


def test_values_that_are_not_finite_stay(record, tmp_path):
    rows = [
        {"step": 1, "tokens": 10, "train_loss": 4.0, "val_loss": math.inf},
        {"step": 2, "tokens": 20, "train_loss": math.nan},
    ]
    for status in ("diverged", "interrupted"):  # from Parquet, and from the jsonl
        name = record(f"seed={len(status)}", rows=rows, status=status, diverged_at=2)
        history = load(tmp_path).history(name)
        assert history["step"].tolist() == [1, 2]
        assert history["step"].dtype == history["tokens"].dtype == "int64"
        assert history["val_loss"][0] == math.inf
        assert math.isnan(history["train_loss"][1])
    table = read_parquet_nulls(run_path(tmp_path, record(rows=rows)) / "metrics.parquet")
    assert table == ([False, False], [False, True])  # NaN was logged, no val_loss was


def read_parquet_nulls(path):
    table = pq.read_table(path)
    return tuple(table[name].is_null().to_pylist() for name in ("train_loss", "val_loss"))


def test_a_live_log_is_read_up_to_its_last_whole_row_and_doubled_rows_once(record, tmp_path):
    name = record(status="interrupted")
    log = run_path(tmp_path, name) / "metrics.jsonl"
    with open(log, "a") as file:
        file.write('{"step": 4, "train_loss": 40.0}\n{"step": 6, "train_loss": 60.0}\n{"step": 7')
    loaded = load(tmp_path)
    history = loaded.history(name, ["step", "train_loss", "absent"])
    assert history["step"].tolist() == [1, 2, 3, 4, 5, 6]
    assert history["train_loss"][3] == 40.0
    assert list(history.columns) == ["step", "train_loss", "absent"]
    assert history["absent"].isna().all()
    assert not loaded.problems  # a cut last line is how a live log looks


def test_lines_that_are_no_rows_are_left_out_and_counted(record, tmp_path, caplog):
    name = record(status="interrupted")
    log = run_path(tmp_path, name) / "metrics.jsonl"
    log.write_bytes(
        b'garbage\n{"step": 1}\n[1]\n{"loss": 2}\n{"step": true}\n\xff\xfe\n{"step": 2}\n'
    )
    with caplog.at_level(logging.WARNING):
        assert load(tmp_path).history(name)["step"].tolist() == [1, 2]
    assert "has 5 lines that are no rows" in caplog.text


def test_committed_evidence_may_hold_parquet_alone(record, tmp_path):
    name = record()
    before = load(tmp_path).history(name)
    (run_path(tmp_path, name) / "metrics.jsonl").unlink()
    pd.testing.assert_frame_equal(load(tmp_path).history(name), before)


def test_a_damaged_parquet_gives_way_to_the_jsonl(record, tmp_path):
    name = record()
    parquet = run_path(tmp_path, name) / "metrics.parquet"
    before = load(tmp_path).history(name)
    parquet.write_bytes(parquet.read_bytes()[:-20])
    loaded = load(tmp_path)
    pd.testing.assert_frame_equal(loaded.history(name), before)
    assert any(str(parquet) in sentence for sentence in loaded.problems)


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"tokens": [1, 2], "train_loss": [4.0, 3.0]}, "no column of whole steps"),
        ({"step": [1, None], "train_loss": [4.0, 3.0]}, "no column of whole steps"),
        ({"step": [1, 2], "train_loss": ["a", "b"]}, "column train_loss holds what is no number"),
    ],
)
def test_a_parquet_that_is_no_log_gives_way_to_the_jsonl(record, tmp_path, columns, reason):
    name = record()
    pq.write_table(pa.table(columns), run_path(tmp_path, name) / "metrics.parquet")
    loaded = load(tmp_path)
    assert len(loaded.history(name, ["train_loss"])) == 5
    assert reason in " ".join(loaded.problems)


def test_doubled_steps_of_a_parquet_count_once(record, tmp_path):
    name = record()
    log = pa.table({"step": [1, 2, 3, 2, 3], "train_loss": [5.0, 4.0, 3.0, 4.5, 3.5]})
    pq.write_table(log, run_path(tmp_path, name) / "metrics.parquet")
    history = load(tmp_path).history(name, ["train_loss"])
    assert history["train_loss"].tolist() == [5.0, 4.5, 3.5]


@pytest.mark.parametrize("left", [None, "", "\n", '{"step": 1, "tok'])
def test_a_log_without_a_row_is_named(record, tmp_path, left):
    name = record(status="interrupted")
    log = run_path(tmp_path, name) / "metrics.jsonl"
    log.unlink() if left is None else log.write_text(left)
    loaded = load(tmp_path)
    assert loaded.history(name, ["step", "train_loss"]).empty
    (problem,) = loaded.problems
    assert str(log) in problem
    assert "holds no row" in problem


def test_parquet_and_jsonl_tell_the_same(record, tmp_path):
    rows = [{"step": s, "tokens": s, "lr": 1e-3 / s} for s in (1, 2, 3)]
    rows[1]["val_loss"] = 3.25
    name = record(rows=rows)
    from_parquet = load(tmp_path).history(name)
    (run_path(tmp_path, name) / "metrics.parquet").unlink()
    pd.testing.assert_frame_equal(load(tmp_path).history(name), from_parquet)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "no config.yaml"),
        ("a: [", "not valid YAML"),
        ("", "lacks profile"),
        ("- 1", "lacks profile"),
        (
            "profile: tiny\nlr: 1\nseed: 1\nsteps: 1\ndata: 3\noptimizer: {}\nmodel: {}",
            "model.name",
        ),
        ("\x00\x01", "not valid YAML"),
        (config_text(seed="null"), "seed = None, which is no whole number"),
        (config_text(steps="1.5"), "steps = 1.5, which is no whole number"),
        (config_text(lr=".nan"), "lr = nan, which is no finite number"),
        (config_text(lr="fast"), "'fast'"),
        (config_text(profile="3"), "profile = 3, which is no text"),
        (config_text(extra="2020-01-01"), "no run's config"),
        (config_text(extra="&a [*a]"), "no run's config"),
    ],
)
def test_a_damaged_directory_is_skipped_and_named(record, tmp_path, caplog, content, reason):
    good, bad = record(), record("seed=2")
    path = run_path(tmp_path, bad) / "config.yaml"
    path.unlink() if content is None else path.write_text(content)
    with caplog.at_level(logging.WARNING):
        loaded = load(tmp_path)
    assert list(loaded.runs.index) == [good]
    assert loaded.damaged == [bad]
    assert bad in caplog.text
    assert reason in caplog.text


def test_a_run_without_a_summary_is_there_with_nothing_known(record, tmp_path):
    name = record()
    (run_path(tmp_path, name) / "summary.json").write_text('{"status": "fini')
    loaded = load(tmp_path)
    assert loaded.runs.loc[name, "status"] is None or pd.isna(loaded.runs.loc[name, "status"])
    assert len(loaded.history(name)) == 5
    (problem,) = loaded.problems
    assert name in problem
    assert "summary.json is missing or damaged" in problem


def test_a_summary_changes_no_setting_and_keeps_what_is_of_its_type(record, tmp_path):
    name = record(final_val_loss=2.5)
    wrong = {"seed": "x", "lr": 9, "path": 3, "device": [1], "steps": "many", "world_size": {}}
    path = run_path(tmp_path, name) / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | wrong))
    row = load(tmp_path).runs.loc[name]
    assert (row["seed"], row["lr"], row["final_val_loss"]) == (
        1337,
        load(tmp_path).configs[name]["lr"],
        2.5,
    )
    assert row["path"] == str(path.parent)
    assert pd.isna(row["device"])
    assert pd.isna(row["steps_done"])


def test_batch_and_context_are_numbers_also_where_a_config_lacks_them(record, tmp_path):
    name = record()
    bare = tmp_path / "tiny" / "runs" / "bare"
    bare.mkdir()
    (bare / "config.yaml").write_text(config_text())
    runs = load(tmp_path).runs
    assert runs.loc[name, "batch"] > 0
    assert math.isnan(runs.loc["bare", "batch"])
    assert runs["context"].dtype == "float64"


def test_hidden_folders_hold_no_runs(record, tmp_path):
    """A pull that was killed leaves one, with a whole run in it."""
    name = record()
    scratch = tmp_path / "tiny" / ".pull-abc" / "new"
    scratch.mkdir(parents=True)
    (scratch / "config.yaml").write_text((run_path(tmp_path, name) / "config.yaml").read_text())
    loaded = load(tmp_path)
    assert list(loaded.runs.index) == [name]
    assert not loaded.problems


def test_two_runs_of_one_name_are_not_mixed(record, tmp_path):
    name = record()
    copy = tmp_path / "copy" / name
    copy.mkdir(parents=True)
    (copy / "config.yaml").write_text((run_path(tmp_path, name) / "config.yaml").read_text())
    loaded = load(tmp_path)
    assert list(loaded.runs.index) == [name]
    assert any("same name" in sentence for sentence in loaded.problems)


def test_windows_are_an_array_or_none(record, tmp_path):
    name = record()
    loaded = load(tmp_path)
    np.testing.assert_array_equal(loaded.windows(name), [3.0, math.nan, 2.5])
    (run_path(tmp_path, name) / "windows.json").unlink()
    assert loaded.windows(name) is None
    for damaged in ({"a": 1}, ["x"], [[1.0], [2.0]], 3, []):
        (run_path(tmp_path, name) / "windows.json").write_text(json.dumps({"losses": damaged}))
        loaded = load(tmp_path)
        assert loaded.windows(name) is None
        assert "holds no list of losses" in loaded.problems[0]


def test_many_runs_load_without_reading_a_history_until_it_is_asked_for(
    record, tmp_path, monkeypatch
):
    name = record()
    source = run_path(tmp_path, name)
    text = (source / "config.yaml").read_text()
    for seed in range(200):
        path = tmp_path / "h100" / "runs" / f"run-{seed:03d}"
        path.mkdir(parents=True)
        (path / "config.yaml").write_text(text.replace("seed: 1337", f"seed: {seed}"))
        (path / "metrics.jsonl").write_text(f'{{"step": 1, "train_loss": {seed}.5}}\n')
    (source / "metrics.parquet").write_bytes(b"damaged")
    loaded = load(tmp_path / "h100")
    assert len(loaded.runs) == 200
    reads = []
    monkeypatch.setattr(
        "powerstep_repro.runs.loading.read_jsonl",
        lambda path: (reads.append(path), (pd.DataFrame({"step": [1]}), 0))[1],
    )
    loaded.history("run-007")
    assert len(reads) == 1
    monkeypatch.undo()
    steps = loaded.steps
    assert len(steps) == 200
    assert steps.set_index("run").loc["run-042", "train_loss"] == 42.5
    assert loaded.steps is steps


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(st.sampled_from(["config.yaml", "metrics.jsonl", "summary.json", "windows.json"]), st.data())
def test_no_content_of_a_file_makes_loading_fail(tmp_path, name, data):
    folder = tmp_path / "any"
    folder.mkdir(exist_ok=True)
    config = {"profile": "tiny", "lr": 1e-3, "seed": 1, "steps": 2}
    config |= {part: {"name": "x"} for part in ("model", "optimizer", "data")}
    (folder / "config.yaml").write_text(json.dumps(config))
    text = st.text() | st.recursive(
        st.none() | st.booleans() | st.floats() | st.text() | st.integers(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ).map(json.dumps)
    (folder / name).write_bytes(
        data.draw(st.binary() | text.map(lambda t: t.encode("utf-8", "replace")))
    )
    loaded = load(tmp_path)
    for run in loaded.runs.index:
        loaded.history(run)
        loaded.windows(run)
    assert loaded.steps is not None
    (folder / name).unlink()


_ROW = st.fixed_dictionaries(
    {"step": st.integers(1, 4), "tokens": st.integers(0, 9)},
    optional=dict.fromkeys(("train_loss", "lr"), st.floats() | st.integers(0, 5)),
).map(json.dumps)
_NO_ROW = """
[1]
{"step": 1
"b": 2}
1, 2
{}
{"step": 1.5}
{"step": true, "tokens": 1}
{"step": 2, "tokens": 2.0}
{"step": 9223372036854775808, "tokens": 1}
{"step": 3, "tokens": null}
{"step": 4, "tokens": 1, "lr": "x"}
{"step": 5}
""".splitlines()


@given(
    st.lists(_ROW, max_size=6),
    st.lists(st.sampled_from(_NO_ROW), max_size=2),
    st.booleans(),
    st.randoms(),
)
def test_a_log_read_in_one_go_is_as_one_read_line_by_line(
    tmp_path_factory, rows, odd, ended, random
):
    lines = rows + odd
    random.shuffle(lines)
    path = tmp_path_factory.getbasetemp() / "log.jsonl"
    path.write_text("\n".join(lines) + "\n" * ended)
    expected, bad = jsonl_rows(path)
    frame, counted = read_jsonl(path)
    assert counted == bad
    expected = frame_of_rows(json.loads(line) for line in expected.values())
    pd.testing.assert_frame_equal(frame, expected, check_like=True)


def test_neither_torch_nor_wandb_is_imported_to_load():
    code = (
        "import sys, powerstep_repro.config, powerstep_repro.runs\n"
        "assert not {'torch', 'wandb', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
