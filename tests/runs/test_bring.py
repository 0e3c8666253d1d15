"""Guards that only whole, ended runs on one data set become evidence, by their small files."""

import json
import tarfile
from pathlib import Path

import pytest

from powerstep_repro.config import ROOT
from powerstep_repro.errors import UserError
from powerstep_repro.runs import bring as importer
from powerstep_repro.runs import load
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
    """Of one trained where there is no Git, too: it tells its revision by a variable there."""
    finished = make_run(git_revision="0123abc")
    diverged = make_run(
        "elsewhere", "lr=1", losses=[5.0] * 9, status="diverged", steps=8, diverged_at=9
    )
    running = make_run("elsewhere", "seed=3", status="interrupted", losses=[5.0] * 9)
    with tarfile.open(tmp_path / "runs.tgz", "w:gz") as tar:
        tar.add(tmp_path / "elsewhere", ".")
    code, said = bring(source=tmp_path / "runs.tgz")
    assert code == 0, said
    assert names(evidence) == sorted([finished.name, diverged.name])
    compact = {"config.yaml", "summary.json", "metrics.parquet", "windows.json"}
    assert {path.name for path in (evidence / "runs" / finished.name).iterdir()} == compact
    assert f"{diverged.name}: diverged at step 9" in said
    assert f"left out  {running.name}: interrupted at step 9" in said
    assert "holds 2 runs" in said
    loaded = load(evidence)
    assert not loaded.problems
    assert loaded.runs.at[finished.name, "git_revision"] == "0123abc"


@pytest.mark.parametrize("renamed", [False, True])
def test_one_run_directory_is_a_source_too(make_run, bring, evidence, renamed):
    """It is who its config says, and gets a Parquet log if it has none; the original stays."""
    run = make_run(parquet=False)
    source = run.rename(run.with_name("mine")) if renamed else run
    assert bring(source=source)[0] == 0
    assert names(evidence) == [run.name]
    assert (evidence / "runs" / run.name / "metrics.parquet").is_file()
    assert not (source / "metrics.parquet").exists()


def _short(run: Path) -> None:
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:12]))
    (run / "metrics.parquet").unlink()


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (_short, "its log ends at step 12, its summary tells of 20"),
        (lambda run: (run / "metrics.parquet").write_bytes(b"PAR1"), "cannot be read"),
        (lambda run: (run / "config.yaml").write_text("just words"), "config.yaml lacks profile"),
        (lambda run: (run / "windows.json").unlink(), "windows.json is missing or damaged"),
    ],
)
def test_a_damaged_run_is_refused_and_the_others_taken(make_run, bring, evidence, damage, sentence):
    bad, good = make_run(), make_run("elsewhere", "seed=2")
    damage(bad)
    code, said = bring()
    assert code == 1
    assert names(evidence) == [good.name]
    (line,) = [line for line in said.splitlines() if line.startswith("refused")]
    assert bad.name in line
    assert sentence in line


def test_other_data_and_other_outcomes_of_what_is_there_are_refused(make_run, bring, evidence):
    first = make_run()
    assert bring()[0] == 0
    other = make_run("elsewhere", "seed=2", data_hash="f" * 16)
    before = (evidence / "runs" / first.name / "summary.json").read_bytes()
    summary = first / "summary.json"
    summary.write_text(json.dumps(json.loads(summary.read_text()) | {"wall_s": 1.0}))
    code, said = bring()
    assert code == 1
    assert f"refused   {first.name}: {evidence}/runs/{first.name} is there already, with" in said
    assert f"refused   {other.name}: it is on data ffffffffffffffff" in said
    assert (evidence / "runs" / first.name / "summary.json").read_bytes() == before
    assert names(evidence) == [first.name]


def test_the_same_import_may_be_made_again(make_run, bring, evidence):
    first = make_run()
    assert bring()[0] == 0
    second = make_run("elsewhere", "seed=2")
    code, said = bring("--dry-run")
    assert (code, names(evidence)) == (0, [first.name])
    code, said = bring()
    assert code == 0
    assert f"is there  {first.name}: the same, left alone\n" in said
    assert f"taken     {second.name}: " in said


def test_a_tar_writes_nothing_outside_of_its_folder(bring, tmp_path):
    (tmp_path / "config.yaml").write_text("seed: 1")
    with tarfile.open(tmp_path / "runs.tar", "w") as tar:
        tar.add(tmp_path / "config.yaml", "../../escaped.yaml")
    with pytest.raises(UserError, match=r"outside of itself: \.\./\.\./escaped\.yaml"):
        bring(source=tmp_path / "runs.tar")


def test_what_is_no_source_is_a_sentence(make_run, bring, evidence, tmp_path):
    make_run("elsewhere", "profile=h100", "data=builtin")
    code, said = bring()
    assert (code, names(evidence)) == (1, [])
    assert "it is of profile h100" in said
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds no run directories"):
        bring(source=tmp_path / "empty")
    (tmp_path / "no.tar").write_text("words")
    with pytest.raises(UserError, match="cannot be unpacked"):
        bring(source=tmp_path / "no.tar")
    with pytest.raises(UserError, match="there is no "):
        bring(source=tmp_path / "nowhere")


def test_the_committed_evidence_would_be_taken_as_it_is(tmp_path):
    for profile in ("h100", "paper"):
        if (runs := ROOT / "results" / profile / "runs").is_dir():
            assert importer.bring(runs, tmp_path / profile) == []
            assert names(tmp_path / profile) == sorted(path.name for path in runs.iterdir())
