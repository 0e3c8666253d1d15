"""Guards the log of the mechanism: it moves no number, survives a resume, and comes along."""

import json

import pytest
import yaml
from train_kit import rows

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
