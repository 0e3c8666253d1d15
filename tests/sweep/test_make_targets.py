"""Guards what the make targets hand on: the words of ARGS reach every command that takes them."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ARGS = "'results_dir=my results' --workers 2 seed=1,2"
SWEEP = "sweep small profile=tiny"
WORDS = "results_dir=my results seed=1,2"


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize(
    ("target", "args", "commands"),
    [
        ("fig-small", "", [f"{SWEEP} --missing", "plot small profile=tiny"]),
        ("fig-small", ARGS, [f"{SWEEP} {WORDS} --missing", f"plot small profile=tiny {WORDS}"]),
        ("tables", ARGS, [f"table all profile=tiny {WORDS}"]),
        ("report", ARGS, [f"report profile=tiny {WORDS}"]),
        ("sweep", ARGS, [f"{SWEEP} results_dir=my results --workers 2 seed=1,2"]),
    ],
)
def test_overrides_reach_every_command_and_options_the_sweep_alone(
    tmp_path, target, args, commands
):
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
