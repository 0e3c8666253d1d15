"""Guards what the make targets hand on to their commands, and what `make clean` leaves alone."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ARGS = "'results_dir=my results' --workers 2 seed=1,2"
WORDS = "results_dir=my results seed=1,2"
PLOT = "plot small --table valid_small profile=tiny"


pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def commands_of(tmp_path, target, args="", missing=False, profile="tiny"):
    """What a target runs; nothing is run, and ``--if-complete`` says whether runs are missing."""
    python = tmp_path / "python"
    python.write_text(
        '#!/bin/sh\nshift; echo "$@"\n'
        f'case "$*" in *--if-complete) exit {3 if missing else 0};; esac\n'
    )
    python.chmod(0o755)
    (tmp_path / "ready").touch()
    ready = [f"{name}_READY={tmp_path}/ready" for name in ("FIGURES", "TRAIN")]
    given = [f"PROFILE={profile}", f"ARGS={args}", f"PY={python}", *ready]
    done = subprocess.run(
        ["make", "-s", target, *given], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [line.removeprefix("powerstep_repro.") for line in done.stdout.splitlines()]


def test_a_figure_that_has_its_runs_is_one_process(tmp_path):
    assert commands_of(tmp_path, "fig-small") == [f"{PLOT} --if-complete"]
    assert commands_of(tmp_path, "fig-small", profile="h100") == [PLOT.replace("tiny", "h100")]


def test_what_is_missing_is_trained_and_options_reach_the_sweep_alone(tmp_path):
    plot = f"{PLOT} {WORDS}"
    sweep = "sweep small profile=tiny results_dir=my results --workers 2 seed=1,2"
    commands = commands_of(tmp_path, "fig-small", ARGS, missing=True)
    assert commands == [f"{plot} --if-complete", sweep, plot]
    sweeps = [c for c in commands_of(tmp_path, "fig-hyper", missing=True) if c.startswith("sweep")]
    assert sweeps == ["sweep beta profile=tiny", "sweep gamma profile=tiny"]


@pytest.mark.parametrize(
    ("target", "command"),
    [("tables", "table all"), ("report", "report"), ("sweep", "sweep small")],
)
def test_a_target_of_one_command_hands_it_everything(tmp_path, target, command):
    """An option that the command does not have is its to refuse, not make's to drop."""
    expected = f"{command} profile=tiny results_dir=my results --foo"
    assert commands_of(tmp_path, target, "'results_dir=my results' --foo") == [expected]


@pytest.mark.parametrize("runs", [True, False])
def test_clean_takes_what_make_made_and_neither_data_nor_evidence(tmp_path, runs):
    """Pages of a profile without runs can be drawn again; with runs they may be evidence."""
    pages = [f"paper/{name}" for name in ("figures/a.png", "tables/a.md", "REPORT.md")]
    made = ["../.venv/x", "tiny/runs/x", *pages, "paper/report-lr=1.html"]
    stays = ["h100/figures/a.png", "bench/a.json", "../data/x", "paper/notes.md"]
    if runs:
        stays += [*pages, "paper/runs/x/summary.json"]
        made = made[:2]
    results = tmp_path / "results"
    for name in (*made, *stays):
        (results / name).parent.mkdir(parents=True, exist_ok=True)
        (results / name).touch()
    clean = ["make", "-s", "-f", str(ROOT / "Makefile"), "clean", "VENV=.venv"]
    subprocess.run(clean, cwd=tmp_path, check=True)
    assert not [name for name in made if (results / name).exists()]
    assert not [name for name in stays if not (results / name).exists()]
    if not runs:
        (results / "paper" / "notes.md").unlink()
        subprocess.run(clean, cwd=tmp_path, check=True)
        assert not (results / "paper").exists(), "what is left is an empty folder"


def test_a_larger_set_of_packages_contains_the_smaller_ones(tmp_path):
    """`make tables` after `make setup` installs nothing, asks no network; locked or not are two."""
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"  # prints what it is asked for; nothing is installed there
    python.write_text('#!/bin/sh\necho "$@"; [ "$1" != .ci/installed ]\n')
    python.chmod(0o755)
    set_up = ["make", "-s", f"VENV={tmp_path}", "PROFILE=h100"]

    def installs(*arguments):
        command = [*set_up, *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        return [line for line in done.stdout.splitlines() if "pip install" in line]

    assert [line.split()[-1] for line in installs("sweep")] == [".[train]"]
    assert not installs("tables")
    assert [line.split()[-1] for line in installs("setup")] == [".[test]"]
    assert not installs("setup")
    (locked,) = installs("setup", "LOCK=1")
    assert "--constraint requirements.lock" in locked


@pytest.mark.slow
def test_an_environment_that_holds_all_of_it_is_left_alone(tmp_path):
    """One that others use, too: neither their project nor the network is touched."""
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    script = f'echo "$@"\n[ "$2" != pip ] || exit 1\nexec "{sys.executable}" "$@"'
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    words = ["make", "-s", "tables", f"VENV={tmp_path}", f"ARGS='results_dir={tmp_path}/a=b (1)'"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode != 0
    assert "pip" not in done.stdout
    assert f"error: there is no folder '{tmp_path}/a=b (1)'" in done.stderr
    options = [*words[:-1], "ARGS=--foo"]
    done = subprocess.run(options, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode != 0
    assert "error: unrecognized arguments: --foo" in done.stderr
