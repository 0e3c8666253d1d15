"""Guards: no damage to a run's files ends a figure, a table or the report; each is named."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from powerstep_repro.evidence import Evidence
from powerstep_repro.evidence.benchmarks import read, step_ms
from powerstep_repro.pages.figures import draw
from powerstep_repro.pages.html import html
from powerstep_repro.pages.report import document
from powerstep_repro.pages.tables import CATALOGUE
from powerstep_repro.paper import FIGURES
from powerstep_repro.plot import main as plot
from powerstep_repro.report import main as report
from powerstep_repro.table import main as table

ADAMW = {"model": "gpt2_small", "optimizer": "adamw"}


def edit(path, **changes):
    """Change fields of a JSON or YAML file."""
    content = yaml.safe_load(path.read_text())
    path.write_text(json.dumps(content | changes))


def keep_lines(run, count):
    """Cut a log after a number of lines, and take the Parquet away."""
    (run / "metrics.parquet").unlink(missing_ok=True)
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:count]))


def lossless_end(run):
    keep_lines(run, 1)
    with open(run / "metrics.jsonl", "a") as log:
        log.write('{"step": 1500}\n')


def foreign_parquet(run):
    keep_lines(run, 30)
    pq.write_table(pa.table({"step": ["a"], "train_loss": [None]}), run / "metrics.parquet")


DAMAGES = {
    # what is done to a run: what is then said of it, on the figure and as a warning
    "a last row without a loss": (
        lossless_end,
        "log cut, step 50",
        "no row between the steps 50 and 1,500",
    ),
    "an empty log": (
        lambda run: keep_lines(run, 0),
        "AdamW: no data (validation 3.000)",
        "holds no row",
    ),
    "half a log": (lambda run: keep_lines(run, 15), "log cut, step 750", "log ends at step 750"),
    "no log": (
        lambda run: [path.unlink() for path in run.glob("metrics.*")],
        "AdamW: no data",
        "holds no row",
    ),
    "a foreign Parquet": (foreign_parquet, "AdamW (n=1)", "cannot be read"),
    "no summary": (
        lambda run: (run / "summary.json").unlink(),
        "end unknown, step 1,500",
        "summary.json is missing or damaged",
    ),
    "a summary of another kind": (
        lambda run: (run / "summary.json").write_text('{"status": ["finished"], "seed": "x"}'),
        "end unknown, step 1,500",
        "summary.json is missing or damaged",
    ),
    "windows of another kind": (
        lambda run: (run / "windows.json").write_text('{"losses": [[1], "a"]}'),
        "AdamW (n=1)",
        "holds no list of losses",
    ),
    "a config that is cut": (
        lambda run: (run / "config.yaml").write_text("profile: h1"),
        "1 damaged run left out",
        "is skipped: config.yaml lacks model",
    ),
    "a seed that is no number": (
        lambda run: edit(run / "config.yaml", seed="x"),
        "1 damaged run left out",
        "is skipped: config.yaml has seed = 'x'",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_named_on_the_figure_in_a_warning_and_in_the_report(world, texts, caplog, damage):
    (run,) = world.add("quant", ADAMW, losses=(3.0,))
    world.add("quant", {"model": "gpt2_small", "optimizer": "powerstep"}, losses=(3.0,))
    do, face, warning = DAMAGES[damage]
    do(run)
    evidence = Evidence(world.results, "h100")
    assert face in " ".join(texts(draw("quant", evidence)))
    text = document(evidence)
    (named,) = [line for line in caplog.messages if run.name in line and warning in line]
    assert f"- {named}" in text.splitlines()
    assert "damaged or incomplete: named under" in text


def test_a_sound_run_has_no_warnings(world, caplog):
    world.add("small", ADAMW, losses=(3.0, 3.1))
    signsgd = {"model": "gpt2_small", "optimizer": "signsgd"}
    world.add("small", signsgd, losses=(None,), diverged_at=640)
    evidence = Evidence(world.results, "h100")
    draw("small", evidence)
    assert "damaged" not in document(evidence).partition("## The paper's claims")[0]
    assert caplog.messages == []


def test_a_seed_whose_log_is_cut_does_not_shorten_the_mean_of_the_others(world, texts):
    _, _, third = world.add("small", ADAMW, losses=(3.0, 3.1, 3.2))
    keep_lines(third, 10)
    figure = draw("small", Evidence(world.results, "h100"))
    assert "AdamW (n=3, 1 log cut)" in texts(figure)
    (mean,) = [line for line in figure.axes[0].lines if line.get_label().startswith("AdamW")]
    assert mean.get_xdata()[-1] == 1500 * 120 * 1024


def test_a_seed_without_a_log_is_counted(world, texts):
    first, _ = world.add("small", ADAMW, losses=(3.0, 3.1))
    keep_lines(first, 0)
    assert "AdamW (n=1, 1 without data)" in texts(draw("small", Evidence(world.results, "h100")))


def test_a_run_that_diverged_at_once_is_no_run_that_was_not_made(world, texts):
    signsgd = {"model": "gpt2_small", "optimizer": "signsgd"}
    world.add("small", signsgd, losses=(None,), diverged_at=1)
    said = texts(draw("small", Evidence(world.results, "h100")))
    assert "no data" in said
    assert any(text.startswith("SignSGD: no data (diverged at step 1)\n") for text in said)
    world.add("small", ADAMW, losses=(3.0,))
    said = texts(draw("small", Evidence(world.results, "h100")))
    assert "SignSGD: no data (diverged at step 1)" in said
    assert "PowerStep: not run" in said


def test_tokens_that_cannot_be_are_left_out(world, caplog):
    def shuffled(lines):
        rows = [json.loads(line) for line in lines]
        rows[3]["tokens"], rows[7]["tokens"], rows[9]["tokens"] = 0, 10**18, None
        return [json.dumps(row) for row in rows] + [""]

    (run,) = world.add("small", ADAMW, losses=(3.0,), log=shuffled)
    figure = draw("small", Evidence(world.results, "h100"))
    assert any(f"{run.name}: 3 rows of its log are left out" in m for m in caplog.messages)
    figure.canvas.draw()


_NUMBER = st.none() | st.integers(-10, 2000) | st.integers() | st.floats() | st.just("x")
_ROWS = st.lists(
    st.fixed_dictionaries(
        {"step": st.integers(-2, 1600) | _NUMBER},
        optional=dict.fromkeys(("tokens", "train_loss", "step_ms", "tokens_per_s"), _NUMBER),
    ),
    max_size=5,
)
_FIELDS = ("steps", "final_val_loss", "diverged_at", "blown_up_at", "wall_s", "n_params", "seed")
_FIELDS += ("world_size", "device", "optimizer_state_bytes", "peak_memory_bytes")
_SUMMARY = st.fixed_dictionaries(
    {"status": st.sampled_from(["finished", "diverged", "running", "failed", "?", None])},
    optional=dict.fromkeys(_FIELDS, _NUMBER | st.lists(st.integers(), max_size=2)),
)


@pytest.fixture(scope="module")
def pair(make_world):
    """Runs that a panel, a row and a departure compare; one's files are then overwritten."""
    world = make_world("pair")
    powerstep = {"model": "gpt2_small", "optimizer": "powerstep", "lr": 6e-4}
    (run,) = world.add("stacey", powerstep, losses=(3.0,))
    world.add("small", ADAMW, losses=(3.0,))
    world.add("small", powerstep, losses=(3.0,), overrides=("weight_decay_on=all",))
    (world.results / "h100" / "figures").mkdir()
    for name in FIGURES:  # the page takes the pictures in as they are
        (world.results / "h100" / "figures" / f"{name}.png").touch()
    return world, run


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@example([], {"status": "finished", "steps": float("inf"), "diverged_at": 2**70}, [], False)
@given(_ROWS, _SUMMARY, st.lists(st.floats(), max_size=3) | st.text(max_size=3), st.booleans())
def test_no_log_and_no_summary_ends_a_figure_a_table_or_the_report(
    pair, rows, summary, windows, replace
):
    world, run = pair
    sound = [{"step": s, "tokens": s * 122880, "train_loss": 9 - s / 300} for s in (1, 700, 1500)]
    lines = rows if replace else sound + rows
    (run / "metrics.parquet").unlink(missing_ok=True)
    (run / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    (run / "summary.json").write_text(json.dumps(summary))
    (run / "windows.json").write_text(json.dumps({"losses": windows}))
    evidence = Evidence(world.results, "h100")
    draw("stacey", evidence).canvas.draw()
    text = document(evidence)
    assert html(text, evidence.folder).endswith("</html>\n")
    assert text.count("\n## ") == 7


def test_the_commands_end_well_on_every_damage_at_once(world, capsys):
    optimizers = ("adamw", "powerstep", "signsgd", "adams", "pbsgdm")
    runs = [world.add("small", {"optimizer": name}, losses=(3.0,)) for name in optimizers]
    for (do, *_), run in zip(DAMAGES.values(), [r for made in runs for r in made], strict=False):
        do(run)
    arguments = ["profile=h100", f"results_dir={world.results}"]
    assert plot(["small", *arguments]) == 0
    assert table(["all", *arguments]) == 0
    assert report(arguments) == 0
    assert len(list((world.results / "h100" / "tables").iterdir())) == 3 * len(CATALOGUE)


@pytest.mark.parametrize("content", ["{", "[]", '{"rows": 3}', '{"rows": [1, "a"]}'])
def test_a_damaged_benchmark_is_named(world, content):
    (world.results / "bench").mkdir()
    (world.results / "bench" / "optimizers-a-card.json").write_text(content)
    text = document(Evidence(world.results, "h100"))
    assert "optimizers-a-card.json holds no rows of a benchmark" in text
    assert "Speed, measured side by side" not in text


def test_a_time_that_is_no_number_is_not_printed_as_one(world, caplog):
    (world.results / "bench").mkdir()
    row = {"model": "gpt2_small", "label": "adamw (fused)", "ms": 1.5, "floor_ms": float("nan")}
    rows = [row | {"ms": ms} for ms in (float("nan"), "fast", -1.0, True, 1.5)]
    content = json.dumps({"device": "a card", "copy_bytes_per_s": float("inf"), "rows": rows})
    (world.results / "bench" / "optimizers-a-card.json").write_text(content)
    evidence = Evidence(world.results, "h100")
    text = document(evidence)
    assert "optimizers-a-card.json: 9 values of a benchmark are no measurements" in caplog.text
    assert "One record is damaged or incomplete" in text
    shown = text.partition("## Speed, measured side by side")[2].partition("\n## ")[0]
    for damage in ("nan", "inf", "fast |"):
        assert damage not in shown
    assert shown.count("| gpt2_small | adamw (fused) | n/a | n/a |") == 4
    assert step_ms(read(evidence)) == {("gpt2_small", "adamw", "a card"): 1.5}


@pytest.mark.parametrize("command", [plot, table, report])
def test_a_folder_that_cannot_be_written_is_a_sentence(world, command):
    world.add("small", ADAMW, losses=(3.0,))
    for name in ("figures", "tables", "REPORT.md"):
        path = world.results / "h100" / name
        path.mkdir() if name == "REPORT.md" else path.write_text("in the way")
    names = {plot: ["spt"], table: ["memory"], report: []}[command]
    with pytest.raises(ValueError, match="cannot write under") as error:
        command([*names, "profile=h100", f"results_dir={world.results}"])
    assert "\n" not in str(error.value)


def test_what_was_held_against_a_damaged_run_is_not_called_damaged(world):
    """The subject's own state, or that of its reference by name."""
    for optimizer in ("adamw", "adams"):
        where = {"model": "gpt2_small", "optimizer": optimizer}
        world.add("small", where, losses=(3.0,))
    where = {"model": "gpt2_small", "optimizer": "powerstep"}
    world.add("small", where, losses=(3.0,), summary={"final_val_loss": None})
    text = document(Evidence(world.results, "h100"))
    claim = text[text.index("### others_slower") :].partition("\n### ")[0]
    assert "AdamS (PowerStep, its reference: damaged)" in claim
    assert "(350M): AdamS;" in claim
    assert "AdamS (damaged)" not in claim
