"""Guards every figure on runs of known numbers: what is drawn, what is said, what is marked."""

import re

import numpy as np
import pytest
from matplotlib.colors import to_hex

from powerstep_repro.config import compose
from powerstep_repro.evidence import Evidence
from powerstep_repro.evidence.curves import mean_over_seeds, read_curve
from powerstep_repro.evidence.words import rate_label
from powerstep_repro.pages import style
from powerstep_repro.pages.figures import CATALOGUE, draw
from powerstep_repro.paper import FIGURES, OPTIMIZERS

LOSS_FIGURES = [name for name in FIGURES if name != "spt"]


def lines_of(ax, width=1.0):
    """The smoothed curves of a panel: its lines that are not the faint raw ones."""
    return [
        line for line in ax.lines if line.get_linewidth() >= width and len(line.get_xdata()) > 2
    ]


def test_the_catalogue_is_the_papers_and_one_beyond():
    assert list(CATALOGUE) == [*FIGURES, "mechanism"]


@pytest.mark.parametrize("name", LOSS_FIGURES)
def test_empty_panels_say_so_with_the_command(world, texts, name):
    figure = draw(name, Evidence(world.results, "h100"))
    said = texts(figure)
    panels = FIGURES[name].panels.values()
    assert said.count("not run") == len(panels) == len(figure.axes)
    commands = [" ".join(t.split()) for t in said if "powerstep_repro.sweep" in t]
    assert len(set(commands)) == len(panels)
    sweeps = CATALOGUE[name].sweeps
    assert all(any(f"sweep {s} profile=h100" in c for s in sweeps) for c in commands)
    for panel, ax in zip(panels, figure.axes, strict=True):
        assert panel in ax.get_title("left")


@pytest.mark.parametrize("name", LOSS_FIGURES)
def test_full_figures_draw_every_cell(world, texts, name):
    evidence = Evidence(world.results, "h100")
    for sweep in CATALOGUE[name].sweeps:
        world.add(sweep, losses=(3.0, 3.1))
    figure = draw(name, evidence)
    said = " ".join(texts(figure))
    assert "not run" not in said
    assert f"Figure {FIGURES[name].number}" in said
    for face in ("profile h100", "english-mix (00aa11bb22cc33dd)", "n = 2", "steps"):
        assert face in said
    cells = sum(len(evidence.source(sweep).cells) for sweep in CATALOGUE[name].sweeps)
    assert sum(len(lines_of(ax)) for ax in figure.axes) == cells
    for ax in figure.axes:
        for line in ax.lines:
            assert np.isfinite(np.asarray(line.get_ydata(), dtype=float)).all()


def test_the_mean_and_the_band_are_those_of_the_seeds(world):
    world.add("small", {"model": "gpt2_small", "optimizer": "adamw"}, losses=(3.0, 3.1, 3.5))
    evidence = Evidence(world.results, "h100")
    cell = evidence.source("small").cells[0]
    curve = read_curve(cell)
    mean = mean_over_seeds(curve.finished)
    ends = np.array([strand.smooth[-1] for strand in curve.strands])
    assert mean.middle[-1] == pytest.approx(ends.mean())
    assert (mean.low[-1], mean.high[-1]) == (ends.min(), ends.max())
    # The last value is the loss at the end (3.2 on average) plus what is left of the fall.
    assert curve.last == pytest.approx(3.2 + 6 * np.exp(-6), abs=0.05)


def test_seeds_logged_at_different_intervals_meet_where_both_have_rows(world):
    where = {"model": "gpt2_small", "optimizer": "adamw"}
    world.add("small", where, losses=(3.0,), log_interval=10)
    world.add("small", where, losses=(3.0,), first_seed=2, log_interval=75)
    cell = Evidence(world.results, "h100").source("small").cells[0]
    mean = mean_over_seeds(read_curve(cell).finished)
    per_step = cell.config["batch"] * cell.config["context"]
    assert (mean.tokens % (150 * per_step) == 0).all()
    assert len(mean.tokens) == 10


def test_a_diverged_run_ends_in_a_marked_point_with_its_step(world, texts):
    where = {"model": "gpt2_small", "optimizer": "signsgd"}
    world.add("small", where, losses=(None, None), diverged_at=640, log_interval=1)
    world.add("small", {"model": "gpt2_small", "optimizer": "adamw"})
    figure = draw("small", Evidence(world.results, "h100"))
    ax = figure.axes[0]
    said = texts(figure)
    assert "SignSGD: diverged at step 640" in said
    assert "SignSGD (n=2, 2 diverged)" in said
    marks = [line for line in ax.lines if line.get_marker() == "X"]
    # The row of step 640 is NaN, so that of 639 is the last; nothing is drawn beyond it.
    assert [mark.get_xdata()[0] for mark in marks] == [639 * 120 * 1024] * 2
    blue = style.of_optimizer("signsgd")[0]
    curves = [line for line in lines_of(ax) if to_hex(line.get_color()) == blue.lower()]
    assert {line.get_xdata()[-1] for line in curves} == {639 * 120 * 1024}


def test_one_diverged_seed_does_not_bend_the_mean_of_the_others(world, texts):
    where = {"model": "gpt2_small", "optimizer": "adamw"}
    world.add("small", where, losses=(3.0, 3.1))
    world.add("small", where, losses=(None,), first_seed=3, diverged_at=500)
    figure = draw("small", Evidence(world.results, "h100"))
    assert "AdamW (n=3, 1 diverged)" in texts(figure)
    assert len(lines_of(figure.axes[0])) == 2


def test_a_collapsed_run_does_not_flatten_the_others_and_is_named(world, texts):
    world.add("quant", {"model": "gpt2_small", "optimizer": "adamw"}, losses=(4.15,))
    released = {"model": "gpt2_small", "optimizer": "adamw_int8_released"}
    world.add("quant", released, losses=(30.7,))
    figure = draw("quant", Evidence(world.results, "h100"))
    assert figure.axes[0].get_ylim()[1] < 12
    assert any("off the axis: ends at 30.7" in text for text in texts(figure))


def test_an_unfinished_run_is_marked(world, texts):
    where = {"model": "gpt2_small", "optimizer": "adamw"}
    world.add("small", where, losses=(3.0,), status="running", rows_kept=6)
    said = texts(draw("small", Evidence(world.results, "h100")))
    assert "AdamW: running, step 300" in said
    assert "AdamW (n=1, 1 unfinished)" in said
    assert "PowerStep: not run" in said


def test_what_lies_above_the_axis_is_said(world, texts):
    world.add("small", {"model": "gpt2_small"}, losses=(3.0,), log_interval=1)
    figure = draw("small", Evidence(world.results, "h100"))
    assert figure.axes[0].get_ylim()[1] < 8
    (said,) = [text for text in texts(figure) if text.endswith("off the axis")]
    assert re.fullmatch(r"step 1: (8\.9\d*–)?[89]\.\d+, off the axis", said)


def test_a_row_that_was_not_run_is_lower_and_its_command_a_block(world):
    world.add("small", {"model": "gpt2_small", "optimizer": "adamw"}, losses=(3.0,))
    figure = draw("small", Evidence(world.results, "h100"))
    boxes = [ax.get_position() for ax in figure.axes]
    heights = [round(box.height * figure.get_figheight(), 6) for box in boxes]
    assert heights[0] == heights[1] > 2 * heights[2] > 0
    assert len(set(heights[2:])) == 1
    assert [box.x0 for box in boxes[:2]] == [box.x0 for box in boxes[2:4]]
    figure.draw_without_rendering()
    for ax in figure.axes[1:]:
        headline, command = ax.texts
        assert command._get_multialignment() == "left"
        assert headline.get_window_extent().y0 >= command.get_window_extent().y1
        assert ax.bbox.y0 < command.get_window_extent().y0
        assert ax.bbox.x0 < command.get_window_extent().x0


def test_a_model_is_written_alike_in_every_figure(world):
    titles = {
        ax.get_title("left")[4:]
        for name in ("small", "quant", "stacey")
        for ax in draw(name, Evidence(world.results, "h100")).axes
    }
    assert {title for title in titles if "Small" in title} == {"GPT-2-Small (124M)"}


def test_a_cut_last_line_changes_nothing(world):
    where = {"model": "gpt2_small", "optimizer": "adamw"}

    def cut(lines):
        return [*lines, lines[-1][: len(lines[-1]) // 2]]

    world.add("small", where, losses=(3.0,), parquet=False, status="running", log=cut)
    cell = Evidence(world.results, "h100").source("small").cells[0]
    (strand,) = read_curve(cell).strands
    assert list(strand.steps) == list(range(50, 1501, 50))


def test_hyper_stands_on_small_only_at_h100_and_says_so(world, texts):
    for sweep in ("beta", "gamma"):
        world.add(sweep, overrides=("model=gpt2_small",), losses=(3.0,))
    said = " ".join(texts(draw("hyper", Evidence(world.results, "h100"))))
    assert "GPT-2-Small (124M) in the paper: Medium" in said
    world.add("beta", losses=(3.0,), profile="paper", overrides=("model=gpt2_small",))
    assert "Small" not in " ".join(texts(draw("hyper", Evidence(world.results, "paper"))))


def test_tiny_says_what_it_is_and_prints_its_rate(world, texts):
    tiny = {"profile": "tiny", "data": ("builtin", "1" * 16), "log_interval": 5}
    world.add("small", {"model": "gpt2_small"}, **tiny)
    said = texts(draw("small", Evidence(world.results, "tiny")))
    assert "PLUMBING CHECK, NO EVIDENCE" in said
    own = compose(["profile=tiny", "model=gpt2_small"])["lr"]
    assert any(f"lr {rate_label(own)}" in text for text in said)
    assert "PLUMBING" not in " ".join(texts(draw("small", Evidence(world.results, "h100"))))


def test_a_scaled_model_is_named(world, texts):
    """The panel's title is the paper's model; its note says what was trained in its place."""
    world.add("large", {"model": "qwen3_32b"}, losses=(3.0,), log_interval=20)
    said = " ".join(texts(draw("large", Evidence(world.results, "h100"))))
    assert re.search(r"scaled to [\d.]+[BM] parameters", said)


def test_both_codes_are_told_apart_in_one_colour(world):
    world.add("quant", {"model": "gpt2_small", "optimizer": "powerstep_int8"}, losses=(3.0,))
    figure = draw("quant", Evidence(world.results, "h100"))
    labels = {line.get_label(): line for line in lines_of(figure.axes[0])}
    dynamic = labels["PowerStep int8, dynamic (n=1)"]
    linear = labels["PowerStep int8, linear (n=1)"]
    assert dynamic.get_color() == linear.get_color()
    assert dynamic._dash_pattern != linear._dash_pattern


def test_every_optimizer_has_a_look_of_its_own():
    looks = [style.of_optimizer(name) for name in OPTIMIZERS]
    assert len({color for color, _ in looks}) == len(OPTIMIZERS)
    assert style.shades("adamw", 6)[0] != style.shades("adamw", 6)[-1]


@pytest.mark.parametrize("name", LOSS_FIGURES)
def test_no_two_curves_of_a_panel_share_a_line_style(world, name):
    """So that the figure is readable in grey."""
    for sweep in CATALOGUE[name].sweeps:
        world.add(sweep, losses=(3.0,))
    for ax in draw(name, Evidence(world.results, "h100")).axes:
        dashes = [str(line._unscaled_dash_pattern) for line in lines_of(ax)]
        assert len(set(dashes)) == len(dashes)


@pytest.mark.parametrize("name", ["quant"])
def test_drawn_twice_the_files_are_equal(world, name, tmp_path):
    world.add("quant", {"model": "gpt2_small"}, losses=(3.0, 3.1))
    for folder in ("first", "second"):
        style.save(draw(name, Evidence(world.results, "h100")), tmp_path / folder / name)
    for suffix in ("pdf", "png"):
        first, second = (
            (tmp_path / folder / f"{name}.{suffix}").read_bytes() for folder in ("first", "second")
        )
        assert first == second
    assert not list(tmp_path.rglob("*.tmp"))
    assert b"CreationDate" not in (tmp_path / "first" / f"{name}.pdf").read_bytes()


def test_spt_draws_the_transform(world):
    ax = draw("spt", Evidence(world.results, "tiny")).axes[0]
    curves = {line.get_label(): line for line in ax.lines}
    x, y = curves["β = 0.5"].get_data()
    np.testing.assert_allclose(y, np.sign(x) * np.sqrt(np.abs(x)))
    x, y = curves["β = 0 (sign)"].get_data()
    assert y[x == 0] == 0
    assert set(y[x != 0]) == {-1.0, 1.0}


def test_other_rules_for_some_parameters_are_another_curve_and_named(world, texts):
    groups = ("groups.embeddings.name=adamw", "groups.gains.name=adamw")
    where = {"model": "gpt2_small", "optimizer": "powerstep"}
    world.add("small", where, losses=(3.0,), overrides=groups)
    said = texts(draw("small", Evidence(world.results, "h100")))
    assert not any("PowerStep, AdamW" in t for t in said)
    assert said.count("not run") == 6
    said = texts(draw("small", Evidence(world.results, "h100", groups)))
    assert any(t.startswith("PowerStep, AdamW on embeddings and gains") for t in said)
