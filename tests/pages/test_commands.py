"""Guards the commands: torch is never imported, bad input is one sentence, all names work."""

import os
import subprocess
import sys

import pytest

from powerstep_repro.config.paths import CONF
from powerstep_repro.errors import UserError
from powerstep_repro.evidence import Evidence
from powerstep_repro.pages.figures import CATALOGUE, FigureSpec, by_value, loss_figure
from powerstep_repro.pages.panels import Panel
from powerstep_repro.pages.report import document
from powerstep_repro.plot import main as plot
from powerstep_repro.report import main as report
from powerstep_repro.table import main as table

BLOCKED = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "transformers", "datasets", "tiktoken", "wandb"}:
            raise ImportError(f"{name} must not be imported here")
sys.meta_path.insert(0, Block())
from powerstep_repro.plot import main as plot
from powerstep_repro.table import main as table
arguments = sys.argv[1:]
sys.exit(plot(["all", *arguments]) or table(["all", *arguments]))
"""


@pytest.mark.slow
def test_everything_is_made_without_torch(world):
    """All figures and tables, from logs alone, in one process that cannot import torch."""
    world.add("small", {"model": "gpt2_small"}, losses=(3.0, 3.1))
    command = [sys.executable, "-c", BLOCKED, "profile=h100", f"results_dir={world.results}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    made = {path.name for path in (world.results / "h100").glob("[ft]*/*")}
    figures = ("spt", "small", "hyper", "quant", "large", "lr", "stacey", "mechanism")
    tables = ("memory", "hyperparameters", "parallelism", "valid_small", "quant_valid")
    tables += ("valid_large", "lr_tuned", "cost")
    expected = {f"{name}.{suffix}" for name in figures for suffix in ("pdf", "png")}
    expected |= {f"{name}.{suffix}" for name in tables for suffix in ("md", "csv", "tex")}
    assert made == expected
    command = f"python -m powerstep_repro.sweep large profile=h100 results_dir={world.results}"
    assert command in done.stdout


def test_a_single_table_is_printed(world, capsys):
    assert table(["memory", f"results_dir={world.results}"]) == 0
    printed = capsys.readouterr().out
    assert "| DeepSeek-V2-Lite (16B) | 429.0 | 429.0 |" in printed
    assert f"wrote {world.results}/tiny/tables/memory.csv" in printed


@pytest.mark.parametrize(
    "command",
    [["powerstep_repro.table", "valid_small"], ["powerstep_repro.memory", "--format", "csv"]],
)
def test_a_reader_that_leaves_early_ends_a_command_in_silence(world, command):
    """As ``| head`` does; what was to be written is written all the same."""
    given = [f"results_dir={world.results}"] if command[0].endswith("table") else []
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write) as pipe:
        arguments = [sys.executable, "-m", *command, *given]
        done = subprocess.run(arguments, stdout=pipe, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 141
    assert "Error" not in done.stderr
    assert "Exception" not in done.stderr
    assert not given or (world.results / "tiny" / "tables" / "valid_small.md").is_file()


@pytest.mark.parametrize(
    ("command", "arguments", "sentence"),
    [
        (plot, [], "name a figure: spt, small"),
        (plot, ["smal"], "unknown figure 'smal' (did you mean 'small'?)"),
        (plot, ["small", "profile=h10"], "unknown profile 'h10' (did you mean 'h100'?)"),
        (plot, ["small", "optimzer.beta=0.1"], "unknown key 'optimzer.beta'"),
        (table, ["valid_smal"], "unknown table 'valid_smal' (did you mean 'valid_small'?)"),
        (table, ["valid_small", "lr=-1"], "lr must be"),
        (plot, ["small", "profil=h100"], "unknown key 'profil' (did you mean 'profile'?)"),
        (report, ["result_dir=x"], "unknown key 'result_dir' (did you mean 'results_dir'?)"),
        (
            plot,
            ["hyper", "optimizer=adamw"],
            "sweep beta cannot take optimizer=adamw: it varies optimizer.beta, which adamw does "
            "not have",
        ),
    ],
)
def test_bad_input_is_one_sentence(world, caplog, command, arguments, sentence):
    """And nothing is warned of before it."""
    with pytest.raises(UserError) as error:
        command([*arguments, f"results_dir={world.results}"])
    assert str(error.value).startswith(sentence)
    assert "\n" not in str(error.value)
    assert caplog.messages == []


def test_a_seed_that_is_asked_for_leaves_these_replicates_alone(world, capsys):
    where = {"model": "gpt2_small", "optimizer": "adamw"}
    world.add("small", where, losses=(3.0, 4.0))
    given = ["model=gpt2_small", "profile=h100", f"results_dir={world.results}"]

    def shown(*seed):
        assert table(["valid_small", *seed, *given]) == 0
        return capsys.readouterr().out

    assert "n = 2." in shown()
    second = shown("seed=2")
    assert "4.000" in second
    assert "n = 1, seed 2 alone." in second
    assert "not run: 4 of 5 settings" in second
    both = shown("seed=2,7")
    assert "n = 1, seeds 2, 7 alone." in both
    assert "not run: 5 of 5 settings" in both  # a setting is there when each of its seeds is
    assert "n = 0, seed 5 alone." in shown("seed=5")


def test_what_a_selection_shows_does_not_replace_the_whole(world, capsys):
    world.add("small", {"optimizer": "adamw"}, losses=(3.0,))
    common = ["profile=h100", f"results_dir={world.results}", "data.path=/data", "log_interval=1"]
    chosen = ["model=gpt2_small", "seed=1,2"]
    for command in (plot, table):
        name = {plot: "small", table: "valid_small"}[command]
        assert command([name, *common]) == 0
        assert command([name, *common, *chosen]) == 0
    folder = world.results / "h100"
    figures = {path.name for path in folder.glob("figures/*.png")}
    assert figures == {"small.png", "small-model=gpt2_small-seed=1,2.png"}
    tables = {path.name for path in folder.glob("tables/*.md")}
    assert tables == {"valid_small.md", "valid_small-model=gpt2_small-seed=1,2.md"}
    assert "figures/small-model=gpt2_small-seed=1,2.png" in capsys.readouterr().out


def test_a_selections_report_shows_its_own_figures(world):
    world.add("small", {"model": "gpt2_small", "optimizer": "adamw"}, losses=(3.0, 4.0))
    assert report(["seed=2", "profile=h100", f"results_dir={world.results}"]) == 0
    text = (world.results / "h100" / "REPORT-seed=2.md").read_text()
    assert "](figures/small-seed=2.png)" in text
    assert (world.results / "h100" / "report-seed=2.html").is_file()
    assert not (world.results / "h100" / "REPORT.md").exists()


@pytest.mark.parametrize(
    ("command", "names"), [(plot, ["all"]), (plot, ["small"]), (table, ["cost"]), (report, [])]
)
def test_a_results_folder_that_is_not_there_is_a_sentence_and_is_not_made(tmp_path, command, names):
    with pytest.raises(UserError, match="there is no folder "):
        command([*names, f"results_dir={tmp_path / 'nodir'}"])
    assert list(tmp_path.iterdir()) == []


def test_a_profile_without_runs_is_drawn_as_not_run_with_a_warning(world, caplog):
    """Also what a results folder taken one level too deep looks like."""
    world.add("small", {"model": "gpt2_small", "optimizer": "adamw"}, losses=(3.0,))
    assert plot(["lr", "profile=h100", f"results_dir={world.results}"]) == 0
    assert caplog.messages == []
    assert plot(["lr", "profile=h100", f"results_dir={world.results / 'h100'}"]) == 0
    assert caplog.messages == [
        f"there is no folder {world.results}/h100/h100/runs: nothing was run"
    ]


def test_what_needs_no_run_needs_no_results_folder(tmp_path):
    assert plot(["spt", f"results_dir={tmp_path / 'new'}"]) == 0
    assert table(["memory", "parallelism", f"results_dir={tmp_path / 'new'}"]) == 0
    assert (tmp_path / "new" / "tiny" / "figures" / "spt.pdf").exists()


def test_the_printed_command_names_the_results_folder_and_the_data(world, capsys):
    given = ["data.path=/a b", f"results_dir={world.results}"]
    assert plot(["lr", "profile=h100", *given]) == 0
    printed = capsys.readouterr().out
    assert f"sweep lr profile=h100 results_dir={world.results} 'data.path=/a b'\n" in printed
    assert "FOLDER" not in printed


def test_a_figure_that_lacks_runs_is_not_drawn_where_only_a_complete_one_is_asked_for(
    world, capsys
):
    given = ["small", "model=gpt2_small", "profile=h100", f"results_dir={world.results}"]
    small = {"model": "gpt2_small"}
    world.add("small", small, losses=(3.0,))
    world.add("small", small | {"optimizer": "adamw"}, losses=(3.0,), status="interrupted")
    assert plot([*given, "--if-complete", "--table", "valid_small"]) == 3
    assert capsys.readouterr().out == "small: 4 of 5 settings were run\n"
    assert not (world.results / "h100" / "figures").exists()
    world.add("small", small | {"optimizer": "adamw"}, losses=(None,), diverged_at=9)
    assert plot([*given, "--if-complete", "--table", "valid_small"]) == 0
    assert "tables/valid_small-model=gpt2_small.csv" in capsys.readouterr().out


def test_a_figure_of_ones_own_is_drawn_and_shown_in_the_report(world, monkeypatch):
    """One function is enough, though the paper has no figure of that name (it was a KeyError)."""

    def rates(evidence):
        """Training loss at AdamW's rates, GPT-2 Small.

        More words.
        """
        lines = by_value(evidence.source("lr_tuned").cells[:3], "lr", "lr")
        return loss_figure("rates", evidence, [Panel("AdamW", lines, "")], columns=1)

    monkeypatch.setitem(CATALOGUE, "rates", FigureSpec("rates", ("lr_tuned",), rates))
    world.add("lr_tuned", {"optimizer": "adamw"}, losses=(3.0,))
    assert plot(["rates", "profile=h100", f"results_dir={world.results}"]) == 0
    assert (world.results / "h100" / "figures" / "rates.pdf").is_file()
    heading = "Beyond the paper: Training loss at AdamW's rates, GPT-2 Small"
    assert f"![{heading}](figures/rates.png)" in document(Evidence(world.results, "h100"))


@pytest.mark.parametrize("command", [plot, table, report])
def test_a_folder_that_cannot_be_written_is_a_sentence(world, command):
    world.add("small", {"model": "gpt2_small", "optimizer": "adamw"}, losses=(3.0,))
    for name in ("figures", "tables"):
        (world.results / "h100" / name).write_text("in the way")
    names = {plot: ["spt"], table: ["memory"], report: []}[command]
    with pytest.raises(UserError, match="cannot write under"):
        command([*names, "profile=h100", f"results_dir={world.results}"])


def test_the_makefile_has_a_target_for_every_figure_with_its_sweeps():
    makefile = (CONF.parent / "Makefile").read_text()
    for name, spec in CATALOGUE.items():
        assert f"$(eval $(call figure,{name},{' '.join(spec.sweeps)}," in makefile


def test_help_names_the_figures(capsys):
    with pytest.raises(SystemExit) as stop:
        plot(["--help"])
    assert stop.value.code == 0
    assert "spt, small, hyper, quant, large, lr, stacey" in " ".join(
        capsys.readouterr().out.split()
    )
