"""Guards that each command answers a misspelt key, a wrong value and a missing file in one clear
sentence and a non-zero code, before it writes anything; and that all commands read a path alike.
"""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from malformed import ask
from reliability_kit import SMALL

ROOT = Path(__file__).parents[2]
TEXT = ("data=text", "data.path=text.txt")


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A folder to work in, with a text, and no way to the network."""
    monkeypatch.chdir(tmp_path)
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    Path("text.txt").write_text("The quick brown fox jumps over the lazy dog.\n" * 100)
    return tmp_path


@pytest.mark.parametrize(
    ("command", "arguments", "words"),
    [
        # A misspelt key or name.
        ("train", ["optimizer.bta=1"], ["'optimizer.bta'", "'optimizer.beta'"]),
        ("train", ["-m", "seeed=1,2"], ["'seeed'", "'seed'"]),
        ("sweep", ["beta", "lrr=1e-3"], ["'lrr'", "'lr'"]),
        ("sweep", ["bta"], ["'bta'", "'beta'"]),
        ("prepare", ["txt", "path=text.txt"], ["'txt'", "'text'"]),
        ("prepare", ["text", "pth=text.txt"], ["'pth'", "'data.path'"]),
        ("table", ["valid_smal"], ["'valid_smal'", "'valid_small'"]),
        ("table", ["valid_small", "modle=gpt2_small"], ["'modle'", "'model'"]),
        ("plot", ["smal"], ["'smal'", "'small'"]),
        ("report", ["profil=h100"], ["'profil'", "'profile'"]),
        ("memory", ["--model", "gpt2_smal"], ["'gpt2_smal'", "'gpt2_small'"]),
        # A wrong value.
        ("train", ["lr=fast"], ["lr", "a number above 0", "'fast'"]),
        ("train", ["-m", "lr=1e-3,0"], ["lr", "a number above 0", "got 0"]),
        ("sweep", ["beta", "seed=-1", "--dry-run"], ["seed", "from 0", "-1"]),
        ("prepare", ["text", "path=text.txt", "val_fraction=2"], ["data.val_fraction", "(0, 1)"]),
        ("table", ["valid_small", "profile=h200"], ["'h200'", "'h100'"]),
        ("plot", ["small", "profile=big"], ["'big'", "tiny"]),
        ("memory", ["--devices", "0"], ["--devices", "at least 1"]),
        ("pull", ["nobody"], ["'nobody'", "ENTITY/PROJECT"]),
        # A missing file.
        ("train", ["data=text", "data.path=none.txt"], ["none.txt"]),
        ("train", ["data=tokens", "data.path=none"], ["none"]),
        ("sweep", ["none.yaml"], ["'none.yaml'", "beta"]),
        ("sweep", ["beta", "data=text", "data.path=none.txt"], ["none.txt"]),
        ("prepare", ["text", "path=none.txt"], ["none.txt"]),
        ("plot", ["small", "results_dir=none"], ["'none'"]),
        ("table", ["valid_small", "results_dir=none"], ["'none'"]),
        ("report", ["results_dir=none"], ["'none'"]),
        # A wrong option.
        ("prepare", [], ["are required: NAME ("]),
        ("prepare", ["text", "--path=text.txt"], ["--path=text.txt"]),
        ("sweep", [], ["are required: name ("]),
        ("sweep", ["beta", "--workers", "two"], ["--workers", "'two'"]),
        ("sweep", ["beta", "--missing", "--dry-run"], ["not allowed with"]),
        ("pull", ["someone/something", "--limit"], ["--limit"]),
        ("plot", ["small", "--profile", "tiny"], ["--profile"]),
        ("table", ["--all"], ["--all"]),
        ("report", ["--html"], ["--html"]),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_nothing(command, arguments, words):
    answer = ask(command, *arguments)
    assert answer.code == 1
    assert answer.out == ""
    (line,) = answer.err.splitlines()
    assert line.startswith("error: ")
    for word in words:
        assert word in line
    assert [path.name for path in Path().iterdir() if path.name != "data"] == ["text.txt"]


# What shells, Hydra, OmegaConf and rich each take for something else.
AWKWARD = ["a=b #1", "~x", "[new], (old)", "é√🙂 'q'", "2026.10", "${lr}"]


@pytest.mark.parametrize("name", AWKWARD)
def test_all_commands_read_a_path_as_it_stands(name):
    shutil.copy("text.txt", f"{name}.txt")
    place = f"results_dir={name}"
    given = (*SMALL, "steps=1", "data=text", f"data.path={name}.txt", f"data_dir={name} data")
    assert ask("train", place, *given, "seed=3").code == 0
    (run,) = Path(name, "tiny", "runs").iterdir()
    assert Path(f"{name} data").is_dir()
    planned = ask("sweep", "beta", place, *given, "--dry-run")
    assert (planned.code, planned.err) == (0, "")
    missing = ask("sweep", "small", place, "model=gpt2_small", "optimizer=powerstep", "--missing")
    assert missing.code == 3
    assert ask("plot", "spt", place).code == 0
    table = ask("table", "valid_small", place)
    assert table.code == 0
    # What is printed can be pasted.
    (command,) = [line for line in table.out.splitlines() if "powerstep_repro.sweep" in line][:1]
    words = shlex.split(command)
    assert ask("sweep", *words[words.index("powerstep_repro.sweep") + 1 :], "--missing").code == 3
    assert {path.name for path in Path().iterdir()} == {
        *("text.txt", f"{name}.txt", name, f"{name} data")
    }
    assert run.name in ask("train", place, *given, "seed=3").out


def test_a_home_folder_is_found_in_a_value(monkeypatch, tmp_path):
    """No shell expands ~ after an equals sign."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert ask("train", *SMALL, "steps=1", *TEXT, "results_dir=~/mine").code == 0
    assert (tmp_path / "home" / "mine" / "tiny" / "runs").is_dir()
    answer = ask("plot", "hyper", "results_dir=~/mine")
    assert answer.code == 0, answer.err


def test_a_console_without_greek_letters_ends_no_command():
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(
        [sys.executable, "-m", "powerstep_repro.table", "hyperparameters"],
        env=environment,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    assert b"?" in done.stdout  # where a β stands in the table
