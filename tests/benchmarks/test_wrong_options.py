"""Guards that what is wrong with a benchmark's options is one sentence, as with any command."""

import runpy
import sys

import pytest

from powerstep_repro.config import ROOT

FOLDER = ROOT / "benchmarks"


@pytest.mark.parametrize(
    ("script", "arguments", "sentence"),
    [
        ("evidence.py", ["--run", "x"], "argument --runs: invalid int value: 'x'"),
        ("evidence.py", ["--steps", "0"], "--steps is 0; it must be at least 1"),
        ("gpu_resume.py", ["--optimizer", "adam"], "argument --optimizer: invalid choice: 'adam'"),
        ("gpu_resume.py", ["--device", "cpu", "--steps", "3"], "--steps is 3; it must be at least"),
        ("import_runs.py", [], "the following arguments are required: source"),
        ("rerun.py", ["run", "--same-card", "maybe"], "invalid choice: 'maybe'"),
        ("same_numbers.py", ["train", "data"], "the following arguments are required: out"),
        (
            "same_numbers.py",
            ["train", "nowhere", "losses.json"],
            "no data set in nowhere: meta.json is missing",
        ),
        ("soak.py", ["--fast"], "unrecognized arguments: --fast"),
        ("soak.py", ["--workers", "0"], "--workers is 0; it must be at least 1"),
        ("soak.py", ["--every", "0"], "--every is 0; it must be more than 0 seconds"),
    ],
)
def test_wrong_options_are_a_sentence(monkeypatch, capsys, script, arguments, sentence):
    monkeypatch.setattr(sys, "argv", [script, *arguments])
    monkeypatch.syspath_prepend(FOLDER)  # as where a script is started by its path
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(FOLDER / script), run_name="__main__")
    assert stop.value.code.startswith("error: ")
    assert sentence in stop.value.code
    assert "\n" not in stop.value.code
    assert capsys.readouterr() == ("", "")
