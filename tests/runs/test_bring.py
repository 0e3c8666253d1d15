"""Guards that only whole, ended runs on one data set become evidence, by their small files."""

import json
import tarfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from powerstep_repro.config import ROOT
from powerstep_repro.errors import UserError
from powerstep_repro.runs import bring as importer
from powerstep_repro.runs.__main__ import main


@pytest.fixture
def evidence(tmp_path) -> Path:
    (tmp_path / "results/tiny/runs").mkdir(parents=True)
    return tmp_path / "results/tiny"


@pytest.fixture
def bring(tmp_path, evidence, capsys):
    """Import ``elsewhere``; returns the exit code and what was said."""

    def bring(*options: str, source: Path = tmp_path / "elsewhere"):
        code = main(["import", str(source), str(evidence), *options])
        said = capsys.readouterr()
        return code, said.out + said.err

    return bring


def names(evidence: Path) -> list[str]:
    return sorted(path.name for path in (evidence / "runs").iterdir())


def test_the_compact_files_of_ended_runs_are_taken_from_a_tar(make_run, bring, evidence, tmp_path):
    finished = make_run()
    diverged = make_run(
        "elsewhere", "lr=1", losses=[5.0] * 9, status="diverged", steps=8, diverged_at=9
    )
    running = make_run("elsewhere", "seed=3", status="interrupted", losses=[5.0] * 9)
    with tarfile.open(tmp_path / "runs.tgz", "w:gz") as tar:
        tar.add(tmp_path / "elsewhere", ".")
    code, said = bring(source=tmp_path / "runs.tgz")
    assert code == 0
    assert names(evidence) == sorted([finished.name, diverged.name])
    compact = {"config.yaml", "summary.json", "metrics.parquet", "windows.json"}
    assert {path.name for path in (evidence / "runs" / finished.name).iterdir()} == compact
    assert f"{diverged.name}: diverged at step 9, " in said
    assert f"left out  {running.name}: interrupted at step 9" in said
    assert "of which 2 runs" in said


def test_a_run_without_parquet_gets_one_and_the_original_stays(make_run, bring, evidence):
    run = make_run(parquet=False)
    assert bring()[0] == 0
    assert (evidence / "runs" / run.name / "metrics.parquet").is_file()
    assert not (run / "metrics.parquet").exists()


def test_a_single_run_directory_is_a_source_too(make_run, bring, evidence):
    run = make_run()
    assert bring(source=run)[0] == 0
    assert names(evidence) == [run.name]


def _cut(run: Path) -> None:
    log = run / "metrics.parquet"
    log.write_bytes(log.read_bytes()[:100])


def _gap(run: Path) -> None:
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:5] + lines[9:]))
    (run / "metrics.parquet").unlink()


def _short(run: Path) -> None:
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:12]))
    (run / "metrics.parquet").unlink()


def _no_start(run: Path) -> None:
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[6:]))
    (run / "metrics.parquet").unlink()


def _no_loss(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps(summary | {"final_val_loss": None}))


def _other_loss(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps(summary | {"final_val_loss": 3.0}))


def _other_config(run: Path) -> None:
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text.replace("grad_clip: 1.0", "grad_clip: 2.0"))


def _no_config(run: Path) -> None:
    (run / "config.yaml").write_text("just words")


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (_cut, "metrics.parquet cannot be read"),
        (_gap, "its log has no row between the steps 5 and 10"),
        (_short, "its log ends at step 12, its summary at 20"),
        (_no_start, "its log has no row between the steps 0 and 7"),
        (_no_loss, "it has ended, but its summary holds no final validation loss"),
        (_other_loss, "windows.json has the mean 4.5000, its summary says 3.0000"),
        (_other_config, "its config is that of gpt2_small-powerstep"),
        (_no_config, "its config is no run's"),
        (lambda run: (run / "windows.json").unlink(), "windows.json is missing or damaged"),
    ],
)
def test_a_damaged_run_is_refused_and_the_others_taken(make_run, bring, evidence, damage, sentence):
    damaged, good = make_run(), make_run("elsewhere", "seed=2")
    damage(damaged)
    code, said = bring()
    assert code == 1
    assert f"refused   {damaged.name}: " in said
    assert sentence in said
    assert names(evidence) == [good.name]


def test_other_data_and_other_outcomes_of_what_is_there_are_refused(make_run, bring, evidence):
    make_run("results")
    make_run()  # the same run with another number
    other = make_run("elsewhere", "seed=2", data_hash="f" * 16)
    (run,) = (evidence / "runs").iterdir()
    before = (run / "summary.json").read_bytes()
    again = evidence.parents[1] / "elsewhere/tiny/runs" / run.name / "summary.json"
    again.write_text(json.dumps(json.loads(again.read_text()) | {"wall_s": 1.0}))
    code, said = bring()
    assert code == 1
    kept = f"results/tiny/runs/{run.name}, which is there already, differ in summary.json: move"
    assert f"refused   {run.name}: elsewhere/tiny/runs/{run.name} and " in said
    assert kept in said
    assert f"refused   {other.name}: it is on data ffffffffffffffff" in said
    assert (run / "summary.json").read_bytes() == before
    assert names(evidence) == [run.name]


def test_what_is_there_already_is_left_alone_and_what_was_cut_short_is_completed(
    make_run, bring, evidence
):
    first, second = make_run(), make_run("elsewhere", "seed=2")
    assert bring()[0] == 0
    there = evidence / "runs" / first.name
    # Another version of the writer leaves other bytes with the same rows.
    table = pq.read_table(first / "metrics.parquet")
    pq.write_table(table, first / "metrics.parquet", compression="none")
    before = (there / "metrics.parquet").read_bytes()
    assert (first / "metrics.parquet").read_bytes() != before
    for name in ("config.yaml", "windows.json"):
        (evidence / "runs" / second.name / name).unlink()
    code, said = bring()
    assert code == 0
    assert f"is there  {first.name}: the same in every value, left alone\n" in said
    assert f"taken     {second.name}: " in said
    assert (there / "metrics.parquet").read_bytes() == before
    assert len(list((evidence / "runs" / second.name).iterdir())) == 4


@pytest.mark.parametrize("name", ["config.yaml", "metrics.parquet", "windows.json"])
def test_what_is_there_and_damaged_is_not_replaced(make_run, bring, evidence, name):
    run = make_run()
    assert bring()[0] == 0
    (evidence / "runs" / run.name / name).write_text("words")
    code, said = bring()
    assert code == 1
    assert f"which is there already, differ in {name}: move" in said
    assert (evidence / "runs" / run.name / name).read_text() == "words"


def test_a_tar_writes_nothing_outside_of_its_folder(bring, tmp_path):
    (tmp_path / "config.yaml").write_text("seed: 1")
    with tarfile.open(tmp_path / "runs.tar", "w") as tar:
        tar.add(tmp_path / "config.yaml", "../../escaped.yaml")
    with pytest.raises(UserError, match=r"outside of itself: \.\./\.\./escaped\.yaml"):
        bring(source=tmp_path / "runs.tar")


def test_size_profile_and_an_empty_source_are_watched(make_run, bring, evidence, tmp_path):
    make_run("elsewhere", "profile=h100", "data=builtin")
    code, said = bring()
    assert (code, names(evidence)) == (1, [])
    assert "it is of profile h100" in said
    make_run()
    code, said = bring("--limit-mb", "0.0001", "--dry-run")
    assert names(evidence) == []
    assert bring("--limit-mb", "0.0001")[1].endswith("that is over 0.0001 MB\n")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds no run directories"):
        bring(source=tmp_path / "empty")
    (tmp_path / "no.tar").write_text("words")
    with pytest.raises(UserError, match="cannot be unpacked"):
        bring(source=tmp_path / "no.tar")


def test_the_committed_evidence_would_be_taken_as_it_is(tmp_path, capsys):
    for profile in (ROOT / "results").iterdir():
        if profile.name in ("h100", "paper") and (profile / "runs").is_dir():
            assert importer.bring(profile / "runs", tmp_path / profile.name) == []
            assert importer.size(profile) < 8 * importer.MB
    capsys.readouterr()
