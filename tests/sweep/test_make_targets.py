"""Guards what the make targets hand on to their commands, and what `make clean` leaves alone."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ARGS = "'results_dir=my results' --workers 2 seed=1,2"
SWEEP = "sweep small profile=tiny"
WORDS = "results_dir=my results seed=1,2"
ALL_WORDS = "results_dir=my results --workers 2 seed=1,2"


pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


@pytest.mark.parametrize(
    ("target", "args", "commands"),
    [
        ("fig-small", "", [f"{SWEEP} --missing", "plot small profile=tiny"]),
        ("fig-small", ARGS, [f"{SWEEP} {WORDS} --missing", f"plot small profile=tiny {WORDS}"]),
        ("tables", ARGS, [f"table all profile=tiny {ALL_WORDS}"]),
        ("report", ARGS, [f"report profile=tiny {ALL_WORDS}"]),
        ("sweep", ARGS, [f"{SWEEP} {ALL_WORDS}"]),
    ],
)
def test_one_command_gets_all_of_args_and_of_several_only_the_sweep_its_options(
    tmp_path, target, args, commands
):
    """An option that a lone command does not know is refused by it, not dropped before it."""
    (tmp_path / "ready").touch()
    ready = [f"{name}_READY={tmp_path}/ready" for name in ("FIGURES", "TRAIN")]
    # The commands are printed, not run.
    done = subprocess.run(
        ["make", "-s", target, "PROFILE=tiny", f"ARGS={args}", "PY=echo", *ready],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    expected = [f"-m powerstep_repro.{command}" for command in commands]
    if target == "fig-small":
        expected.append(expected[-1].replace("plot small", "table valid_small"))
    assert done.stdout.splitlines() == expected


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
    (tmp_path / "bin" / "python").touch()
    set_up = ["make", "-s", "PY=echo", f"VENV={tmp_path}", "PROFILE=h100"]

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
