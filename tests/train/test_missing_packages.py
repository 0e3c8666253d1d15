"""Guards every command where its packages are not installed: one sentence, no traceback."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from powerstep_repro import errors

ROOT = Path(__file__).parents[2]
COMMANDS = (
    "bench",
    "memory",
    "plot",
    "prepare",
    "pull",
    "report",
    "runs",
    "sweep",
    "table",
    "train",
)


def python(*arguments, path=ROOT):
    """Run an interpreter in the project; -S among the arguments hides what is installed."""
    return subprocess.run(
        [sys.executable, *arguments], cwd=path, env={}, capture_output=True, text=True
    )


def test_every_command_is_listed():
    package = ROOT / "powerstep_repro"
    files = [path for path in package.rglob("*.py") if "\nif __name__ ==" in path.read_text()]
    found = {path.parent.name if path.stem == "__main__" else path.stem for path in files}
    assert found - {"launch"} == set(COMMANDS)  # launch is started by path, by a sweep alone


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_without_its_packages_says_what_to_install(command):
    done = python("-S", "-m", f"powerstep_repro.{command}", "--help")
    name = re.escape(f"python -m powerstep_repro.{command}")
    sentence = rf"error: {name} needs \w+, which is not installed: .*-e '\.\[(.+)\]'\n"
    said = re.fullmatch(sentence, done.stderr)
    assert said, done.stderr
    assert (done.returncode, done.stdout) == (1, "")
    project = (ROOT / "pyproject.toml").read_text()
    for extra in said[1].split(","):
        assert f"\n{extra} = [" in project


def test_importing_the_library_leaves_pythons_own_hook():
    code = "import sys, powerstep_repro; sys.exit(sys.excepthook is not sys.__excepthook__)"
    assert python("-S", "-c", code).returncode == 0


def test_the_optimizers_without_torch_say_what_to_install():
    done = python("-S", "-c", "import powerstep_repro.optim")
    wanted = "powerstep_repro.optim needs torch, which is not installed: "
    assert done.stderr.endswith(f"{wanted}python -m pip install -e '.[optim]'\n")


def test_the_line_to_install_is_that_of_a_clone_or_of_a_wheel(tmp_path, monkeypatch):
    start = "x needs y, which is not installed: python -m pip install"
    monkeypatch.chdir(tmp_path)
    assert errors.lacking("y", "x", "train") == f"{start} -e {shlex.quote(f'{ROOT}[train]')}"
    monkeypatch.setattr(errors, "__file__", str(tmp_path / "powerstep_repro" / "errors.py"))
    assert errors.lacking("y", "x", "train") == f"{start} 'powerstep-repro[train]'"
