"""Guards the log of the mechanism: it moves no number, survives a resume, and comes along."""

import json

import pytest
import yaml
from train_kit import SMALL, rows

from powerstep_repro.evidence import Evidence
from powerstep_repro.pages import style
from powerstep_repro.pages.figures import draw
from powerstep_repro.runs import Recorder, load
from powerstep_repro.runs.bring import copy

HYBRID = ("groups.embeddings.name=adamw", "groups.embeddings.lr=2e-3")


@pytest.mark.parametrize("optimizer", [("optimizer=powerstep_int8",), HYBRID])
def test_it_changes_no_bit_of_a_run_and_follows_it(command, optimizer, tmp_path):
    assert command(*optimizer, "mechanism_interval=0") == 0
    plain = rows(command.run)
    run = command.run.rename(tmp_path / "plain")
    assert not list(run.glob("mechanism*"))
    assert command(*optimizer, "mechanism_interval=5") == 0, command.said
    assert rows(command.run) == plain
    loaded = load(command.folder / "results")
    (name,) = loaded.runs.index
    looks = loaded.mechanism(name)
    assert sorted(set(looks["step"])) == [1, 5, 10]
    assert {"token_embeddings_often", "token_embeddings_seldom", "positions", "matrices"} <= {
        *looks["kind"]
    }
    assert (looks["update_rms"] > 0).all()
    assert (command.run / "mechanism.parquet").is_file()
    # It comes along with the compact files, be it as Parquet or as the log.
    for number, lost in enumerate(("mechanism.jsonl", "mechanism.parquet")):
        (command.run / lost).unlink(missing_ok=True)
        copy(command.run, tmp_path / "copies" / f"{number}" / name)
        copied = load(tmp_path / "copies" / f"{number}")
        assert copied.mechanism(name).equals(looks)
        assert not list((tmp_path / "copies").rglob("*.jsonl"))
        (command.run / "mechanism.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in looks.to_dict("records"))
        )


def test_a_resume_cuts_it_where_it_cuts_the_log(command):
    assert command("mechanism_interval=2") == 0
    folder = command.run
    whole = load(command.folder / "results").mechanism(folder.name)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    with open(folder / "mechanism.jsonl", "a") as file:
        file.write('{"step": 12, "ki')  # a kill
    with Recorder(folder, config) as recorder:
        recorder.resume(6)
        assert not (folder / "mechanism.parquet").exists()
        kept = [json.loads(line) for line in (folder / "mechanism.jsonl").read_text().splitlines()]
        assert sorted({row["step"] for row in kept}) == [1, 2, 4, 6]
        recorder.mechanism([row for row in whole.to_dict("records") if row["step"] > 6])
        for step in range(7, 13):
            recorder.log({"step": step, "tokens": step, "train_loss": 1.0})
        recorder.finish("finished", final_train_loss=1.0, final_val_loss=1.0)
    assert load(command.folder / "results").mechanism(folder.name).equals(whole)


def test_the_figure_draws_every_kind_of_the_runs_that_have_the_log(command):
    data = ("data=text", f"data.path={command.data}", "mechanism_interval=4")
    evidence = Evidence(command.folder / "results", "tiny", (*SMALL, *data))
    (ax,) = draw("mechanism", evidence).axes
    assert "no log" in [text.get_text() for text in ax.texts]
    of_30m = ("model=gpt2_30m", "data.order=permuted", *data)
    assert command(*of_30m, "optimizer=adamw", "lr=2.4e-3") == 0, command.said
    gains = ("groups.gains.name=adamw", "groups.gains.lr=2.4e-3")
    hybrid = ("groups.embeddings.name=adamw", "groups.embeddings.lr=2.4e-3", *gains)
    assert command(*of_30m, "optimizer=powerstep", "lr=6e-4", *hybrid) == 0, command.said
    evidence = Evidence(command.folder / "results", "tiny", (*SMALL, *data))
    figure = draw("mechanism", evidence)
    style.save(figure, command.folder / "drawn")
    titles = [ax.get_title("left").replace("\n", " ") for ax in figure.axes]
    labels = ("AdamW, lr 2.4e-3", "PowerStep, AdamW on embeddings and gains, lr 6e-4")
    assert titles == [f"{said}: {label}" for said in ("Size", "Angle") for label in labels]
    kinds = [label for kind, (label, *_) in style.KINDS.items() if kind != "head"]
    for ax in figure.axes:
        assert [line.get_label() for line in ax.lines] == kinds
        assert all(line.get_xdata().tolist() == [1, 4, 8, 12] for line in ax.lines)
    (adamw,) = [run.name for run in command.runs if "-adamw-" in run.name]
    looks = load(command.folder / "results").mechanism(adamw)
    for ax, column in zip(figure.axes[::2], ("update_rms", "cosine"), strict=True):
        expected = looks.loc[looks["kind"] == "matrices", column].tolist()
        (line,) = [line for line in ax.lines if line.get_label() == "matrices"]
        assert line.get_ydata().tolist() == expected
