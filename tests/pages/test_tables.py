"""Guards every table on runs of known numbers: cells, gaps, intervals, verdicts, bold, files."""

import csv
import io
import json

import numpy as np
import pytest
from scipy import stats

from powerstep_repro import paper
from powerstep_repro.evidence import Evidence
from powerstep_repro.pages.render import LONG, Table, comma_separated, latex, markdown, tex, write
from powerstep_repro.pages.report import document
from powerstep_repro.pages.tables import CATALOGUE, build


def small(world, optimizer, losses, **kwargs):
    world.add("small", {"model": "gpt2_small", "optimizer": optimizer}, losses=losses, **kwargs)


def rows_of(name, world, profile="h100"):
    table = build(name, Evidence(world.results, profile))
    rows = list(csv.DictReader(io.StringIO(comma_separated(table))))
    return table, rows


def row_of(name, world, profile="h100", **where):
    rows = rows_of(name, world, profile)[1]
    (row,) = [r for r in rows if all(r[k] == v for k, v in where.items())]
    return row


def bold_of(table):
    """The headers over bold cells of the layout."""
    return [
        head
        for row in table.rows
        for head, entry in zip(table.header, row, strict=False)
        if entry.bold
    ]


GPT2 = {"model": "gpt2_small"}


def test_names_are_the_papers_and_two_more():
    assert set(CATALOGUE) == {*paper.TABLES, "lr_tuned", "cost"}


@pytest.mark.parametrize("name", CATALOGUE)
def test_csv_is_long_and_never_blank(world, name):
    small(world, "adamw", (3.0, 3.1))
    table, rows = rows_of(name, world)
    header = comma_separated(table).splitlines()[0].split(",")
    assert header[: len(LONG)] == list(LONG)
    if name.startswith(("valid", "quant")):
        assert header == list(LONG)
    assert rows
    assert all(value.strip() for row in rows for value in row.values())


def test_a_gap_with_its_interval_and_verdict(world):
    small(world, "adamw", (3.00, 3.10, 3.20), windows=False)
    small(world, "powerstep", (3.01, 3.12, 3.21), windows=False)
    row = row_of("valid_small", world, **GPT2, optimizer="powerstep")
    gaps = [0.01, 0.02, 0.01]
    low, high = stats.t.interval(0.9, 2, loc=np.mean(gaps), scale=stats.sem(gaps))
    assert row["paper"] == "2.949"
    assert float(row["ours"]) == pytest.approx(3.11333, abs=1e-5)
    assert float(row["paper_gap"]) == pytest.approx(-0.001)
    assert float(row["our_gap"]) == pytest.approx(np.mean(gaps), abs=1e-6)
    assert float(row["ci_low"]) == pytest.approx(low, abs=1e-6)
    assert float(row["ci_high"]) == pytest.approx(high, abs=1e-6)
    assert (row["n"], row["verdict"]) == ("3", "reproduced")


@pytest.mark.parametrize(
    ("optimizer", "losses", "verdict"),
    [
        ("powerstep", (3.10, 3.20, 3.30), "not reproduced"),  # worse than parity
        ("powerstep", (2.90, 3.00, 3.10), "not reproduced"),  # better is no parity either
        ("powerstep", (3.02, 3.11, 3.26), "inconclusive"),
        ("powerstep", (3.00,), "inconclusive"),  # one seed
        ("pbsgdm", (3.50, 3.60, 3.70), "reproduced"),  # the paper's gap is 0.427
        ("pbsgdm", (3.00, 3.10, 3.20), "not reproduced"),
    ],
)
def test_verdicts_of_printed_cells(world, optimizer, losses, verdict):
    small(world, "adamw", (3.00, 3.10, 3.20), windows=False)
    small(world, optimizer, losses, windows=False)
    row = row_of("valid_small", world, **GPT2, optimizer=optimizer)
    assert row["verdict"] == verdict
    if len(losses) == 1:
        assert row["ci_low"] == row["ci_high"] == "n/a"
        assert row["n"] == "1"


def test_not_run_and_diverged_are_said_in_our_column(world):
    small(world, "adamw", (3.0, 3.1))
    small(world, "signsgd", (None, None), diverged_at=640)
    small(world, "adams", (3.0,), status="interrupted", rows_kept=5)
    small(world, "powerstep", (3.0,))
    small(world, "powerstep", (None,), first_seed=2, diverged_at=90)
    expected = {
        "signsgd": ("diverged at step 640", "not reproduced"),
        "adams": ("unfinished at step 250", "unfinished"),
        "pbsgdm": ("not run", "not run"),
        "powerstep": ("3.000; 1 of 2 diverged at step 90", "inconclusive"),
    }
    for optimizer, (ours, verdict) in expected.items():
        row = row_of("valid_small", world, **GPT2, optimizer=optimizer)
        assert (row["ours"], row["verdict"]) == (ours, verdict)
    other = row_of("valid_small", world, model="qwen3_8b", optimizer="adams")
    assert (other["paper"], other["ours"], other["our_gap"]) == ("4.689", "not run", "n/a")


@pytest.mark.parametrize(
    ("adamw", "powerstep", "bold"),
    [
        ((3.00, 3.10), (3.20, 3.31), ["AdamW"]),
        ((3.00, 3.10), (3.001, 3.099), []),  # a tie
        ((3.0,), (9.0,), []),  # one seed
    ],
)
def test_bold_marks_a_best_that_is_no_tie(world, adamw, powerstep, bold):
    small(world, "adamw", adamw)
    small(world, "powerstep", powerstep)
    assert bold_of(rows_of("valid_small", world)[0]) == bold


def test_a_diverged_rival_does_not_win_by_its_best_moment(world):
    small(world, "adamw", (3.00, 3.10))
    small(world, "powerstep", (None, None), diverged_at=1400)
    assert bold_of(rows_of("valid_small", world)[0]) == ["AdamW"]


def test_tiny_has_no_verdict_and_no_bold(world):
    for optimizer, losses in (("adamw", (1.0, 1.1)), ("powerstep", (2.0, 2.1))):
        world.add(
            "small",
            {"model": "gpt2_small", "optimizer": optimizer},
            losses=losses,
            profile="tiny",
            log_interval=20,
        )
    for name in CATALOGUE:
        table, rows = rows_of(name, world, "tiny")
        assert bold_of(table) == []
        assert {row["verdict"] for row in rows} <= {"no verdict", "n/a"}
        assert "reproduced" not in markdown(table)
    assert "Plumbing check" in markdown(build("valid_small", Evidence(world.results, "tiny")))


def test_released_and_parts_stand_beside_the_papers_columns_once_run(world):
    small(world, "adamw", (3.0, 3.1))
    assert "released" not in " ".join(rows_of("valid_small", world)[0].header)
    world.add("small_released", {"optimizer": "adams_released"}, losses=(3.5, 3.6))
    table, rows = rows_of("valid_small", world)
    assert table.header[-1] == "AdamS (released)"
    (row,) = [r for r in rows if r["optimizer"] == "adams_released"]
    assert (row["paper"], row["verdict"]) == ("n/a", "not in the paper")
    assert float(row["our_gap"]) == pytest.approx(0.5)


def test_quantization_separates_the_codes(world):
    world.add("quant", {"model": "gpt2_small", "optimizer": "adamw"}, losses=(4.15, 4.16))
    for optimizer, losses in (("adamw_int8_released", (30.7, 31.0)), ("adamw_int8", (4.19, 4.2))):
        world.add("quant", {"model": "gpt2_small", "optimizer": optimizer}, losses=losses)
    linear = {"model": "gpt2_small", "optimizer": "powerstep_int8", "optimizer.code": "linear"}
    world.add("quant", linear, losses=(4.16, 4.17))
    world.add("quant_parts", {"optimizer.code_v": "linear"}, losses=(9.0,))
    verdicts = {
        row["optimizer"]: (row["paper"], row["verdict"])
        for row in rows_of("quant_valid", world)[1]
        if row["model"] == "gpt2_small"
    }
    assert verdicts == {
        "adamw": ("2.950", "reference"),
        "powerstep": ("2.949", "not run"),
        "powerstep_int8": ("2.948", "not run"),
        "powerstep_int8 linear": ("2.948", "reproduced"),
        "adamw_int8": ("collapses", "not reproduced"),
        "adamw_int8_released": ("collapses", "reproduced"),
        "adamw_int8 m=dynamic v=linear": ("n/a", "not in the paper"),
    }


@pytest.mark.parametrize(
    ("profile", "verdict"), [("paper", "reproduced"), ("h100", "another model")]
)
def test_large_models_compare_int8_with_adamw(world, profile, verdict):
    """At h100 they are scaled down: shown, with their gap, but judged as another model."""
    hub = {"profile": profile, "log_interval": 10_000}
    world.add("large", {"model": "qwen3_32b", "optimizer": "adamw"}, losses=(2.5, 2.6), **hub)
    int8 = {"model": "qwen3_32b", "optimizer": "powerstep_int8"}
    world.add("large", int8, losses=(2.51, 2.61), **hub)
    rows = rows_of("valid_large", world, profile)[1]
    row = next(r for r in rows if (r["model"], r["optimizer"]) == tuple(int8.values()))
    assert (row["ours"], row["our_gap"], row["n"]) == ("2.56", "0.01", "2")
    assert (row["ci_low"], row["ci_high"]) != ("n/a", "n/a")
    assert row["verdict"] == verdict
    assert {r["ours"] for r in rows if r["model"] != "qwen3_32b"} == {"not run"}
    assert len({r["model"] for r in rows}) == 4


def test_a_blow_up_that_stayed_finite_is_said(world):
    facts = {"summary": {"blown_up_at": 55}}
    world.add("quant", {"model": "gpt2_small", "optimizer": "adamw"}, losses=(4.15,))
    released = {"model": "gpt2_small", "optimizer": "adamw_int8_released"}
    world.add("quant", released, losses=(30.7,), **facts)
    text = markdown(build("quant_valid", Evidence(world.results, "h100")))
    assert "| 30.700 (n=1), blown up at step 55 |" in text


def test_absolute_differences_only_on_the_papers_profile(world):
    assert "ours − paper" not in markdown(build("valid_small", Evidence(world.results, "h100")))
    hub = {"profile": "paper", "data": ("openwebtext", "2" * 16), "log_interval": 10_000}
    world.add("small", {"model": "gpt2_small", "optimizer": "adamw"}, losses=(2.94,), **hub)
    table = build("quant_valid", Evidence(world.results, "paper"))
    (row,) = [r for r in table.rows if len(r) > 1 and r[1].text == "ours − paper"][:1]
    assert row[2].text == "-0.010"


def test_memory_equals_the_paper_to_the_digit(world):
    for row in rows_of("memory", world)[1]:
        assert f"{float(row['ours']):.1f}" == row["paper"], row
        assert row["verdict"] == "equal to the printed digit"
    row = row_of("memory", world, model="qwen3_32b", optimizer="adamw")
    assert float(row["ours"]) == pytest.approx(976.53, abs=0.005)
    assert float(row["whole_model"]) == pytest.approx(976.39, abs=0.005)


def test_hyperparameters_beside_the_papers(world):
    rows = rows_of("hyperparameters", world)[1]
    lr = next(r for r in rows if r["model"] == "gpt2_small" and r["quantity"] == "lr")
    batch = next(r for r in rows if r["model"] == "gpt2_small" and r["quantity"] == "batch")
    assert (lr["paper"], lr["ours"], lr["verdict"]) == ("0.0006", "0.0006", "as the paper")
    assert (batch["paper"], batch["ours"], batch["verdict"]) == (
        "480",
        "120",
        "other than the paper",
    )


def test_parallelism_tells_the_ranks_of_our_runs(world):
    small(world, "adamw", (3.0, 3.1), summary={"world_size": 4})
    ours = {
        r["quantity"]: r["ours"]
        for r in rows_of("parallelism", world)[1]
        if r["model"] == "gpt2_small"
    }
    assert ours == {"npus": "4", "dp": "4", "tp": "1", "pp": "1", "ep": "n/a"}


def test_a_scaled_model_is_named_with_its_size_wherever_it_stands(world):
    qwen = {"model": "qwen3_8b", "optimizer": "adamw"}
    world.add("small", qwen, losses=(3.0,))
    for name in ("hyperparameters", "parallelism", "cost"):
        heads = [row[0].text for row in build(name, Evidence(world.results, "h100")).rows]
        assert "Qwen3-8B, scaled to 1.57B parameters" in heads
        assert not any("GPT-2-Small (124M), scaled" in head for head in heads)


def tuned(world, optimizer, losses_by_lr, **kwargs):
    for lr, losses in losses_by_lr.items():
        world.add(
            "lr_tuned",
            {"optimizer": optimizer, "lr": lr},
            overrides=(f"lr={lr}", f"optimizer={optimizer}"),
            losses=losses,
            **kwargs,
        )


def test_each_optimizer_at_its_own_best_rate(world):
    tuned(world, "adamw", {6e-4: (4.15,), 1.2e-3: (3.97, 3.98), 2.4e-3: (4.05,)})
    tuned(world, "powerstep", {1.5e-4: (4.60, 4.61), 3e-4: (4.50,)})
    tuned(world, "signsgd", {1e-4: (4.28,), 2e-4: (None,)}, diverged_at=100)
    rows = {row["optimizer"]: row for row in rows_of("lr_tuned", world)[1]}
    assert (rows["adamw"]["lr"], rows["adamw"]["edge"]) == ("1.2e-3", "no")
    assert (rows["powerstep"]["lr"], rows["powerstep"]["edge"]) == ("3e-4", "highest")
    assert rows["powerstep"]["verdict"] == "inconclusive"  # one seed at its best
    assert float(rows["powerstep"]["our_gap"]) == pytest.approx(0.53)
    assert rows["powerstep"]["steps_to_adamw"] == "not reached"
    assert rows["adamw"]["steps_to_adamw"] != "not reached"
    assert rows["adams"]["ours"] == "not run"


def test_a_diverged_rate_never_wins(world):
    tuned(world, "adamw", {6e-4: (4.0,)})
    tuned(world, "adamw", {1.2e-3: (None,)}, diverged_at=100)
    row = row_of("lr_tuned", world, optimizer="adamw")
    assert (row["lr"], row["rates"], row["edge"]) == ("6e-4", "6e-4, 1.2e-3", "lowest")


def test_a_rate_beyond_the_edge_is_counted_shown_and_may_win(world):
    """With no override of lr: the files of the sweeps name these rates."""
    for optimizer, losses in {
        "adamw": {1.2e-3: 4.0, 2.4e-3: 3.9, 4.8e-3: 4.1},
        "signsgd": {5e-5: 4.4, 1e-4: 4.3, 2e-4: 4.5, 4e-4: 4.2},
        "powerstep": {3e-4: 4.2, 6e-4: 4.0, 1.2e-3: 3.9},
    }.items():
        for lr, loss in losses.items():
            world.add("lr_tuned", {"optimizer": optimizer, "lr": lr}, losses=(loss,))
    table, rows = rows_of("lr_tuned", world)
    rows = {row["optimizer"]: (row["lr"], row["edge"]) for row in rows}
    assert rows["adamw"] == ("2.4e-3", "no")
    assert rows["signsgd"] == ("4e-4", "highest")
    assert rows["powerstep"] == ("1.2e-3", "highest")
    shown = {row[0].text: row[2].text for row in table.rows}
    assert shown["AdamW"] == "1.2e-3: 4.000, 2.4e-3: 3.900, 4.8e-3: 4.100"
    assert shown["SignSGD"] == "5e-5: 4.400, 1e-4: 4.300, 2e-4: 4.500, 4e-4: 4.200"
    assert shown["PowerStep"] == "3e-4: 4.200, 6e-4: 4.000, 1.2e-3: 3.900"


def test_further_seeds_at_the_best_rates_give_a_mean_an_interval_and_their_number(world):
    """Seed 1337 is of ``lr_tuned``, two more of ``seeds``; the other rates have one seed."""
    best = {"adamw": (2.4e-3, (3.90, 3.92, 3.91)), "powerstep": (6e-4, (3.905, 3.926, 3.914))}
    for optimizer, (lr, losses) in best.items():
        where = GPT2 | {"optimizer": optimizer}
        for rate in (lr / 2, 2 * lr):
            world.add("lr_tuned", where | {"lr": rate}, losses=(4.0,), first_seed=1337)
        world.add("lr_tuned", where | {"lr": lr}, losses=losses[:1], first_seed=1337)
        for seed, loss in zip((1338, 1339), losses[1:], strict=True):
            world.add("seeds", where | {"seed": seed}, losses=(loss,), first_seed=seed)
    evidence = Evidence(world.results, "h100")
    table = build("lr_tuned", evidence)
    rows = {row["optimizer"]: row for row in table.long}
    adamw, powerstep = rows["adamw"], rows["powerstep"]
    assert (adamw["lr"], adamw["edge"], adamw["n"]) == ("2.4e-3", "no", 3)
    assert (powerstep["lr"], powerstep["edge"], powerstep["n"]) == ("6e-4", "no", 3)
    assert float(adamw["ours"]) == pytest.approx(3.91)
    assert float(powerstep["ours"]) == pytest.approx(3.915)
    assert float(powerstep["our_gap"]) == pytest.approx(0.005)
    assert -0.028 < float(powerstep["ci_low"]) < 0.004  # the gaps are 0.005, 0.006, 0.004
    assert 0.006 < float(powerstep["ci_high"]) < 0.028
    assert powerstep["verdict"] == "reproduced"
    texts = {row[0].text: [entry.text for entry in row] for row in table.rows}
    assert "3.910 (n=3)" in texts["AdamW"]
    assert "3.915 (n=3)" in texts["PowerStep"]
    assert table.subtitle.endswith(", n = 3.")
    text = document(evidence)
    assert "AdamW 3.910 at 2.4e-3 (n=3); PowerStep 3.915 at 6e-4 (n=3, gap +0.005 [" in text
    assert "at 6e-4 against 2.4e-3: gap +0.005 [" in text


def test_cost_is_measured_per_device(world):
    small(world, "adamw", (3.0, 3.1), speed=1.0)
    small(world, "powerstep", (3.0,), speed=2.0)
    rows = {(r["optimizer"], r["quantity"]): r for r in rows_of("cost", world)[1]}
    assert float(rows["adamw", "step_ms"]["ours"]) == pytest.approx(200.0)
    assert float(rows["powerstep", "step_ms"]["our_gap"]) == pytest.approx(-100.0)
    assert float(rows["adamw", "bytes_per_param"]["ours"]) == pytest.approx(4.0)
    assert float(rows["adamw", "device_hours"]["ours"]) == pytest.approx(0.2)
    assert rows["adamw", "step_ms"]["n"] == "2"


def test_a_gap_says_its_own_n_and_what_its_pairs_do_not_share(world):
    small(world, "adamw", (3.0,), summary={"device": "another card"})
    small(world, "adamw", (3.1,), first_seed=2)
    small(world, "powerstep", (2.5, 2.7, 3.9))
    small(world, "signsgd", (2.9, 4.0), first_seed=2)
    text = markdown(build("valid_small", Evidence(world.results, "h100")))
    gaps = next(line for line in text.splitlines() if "| gap to AdamW, ours |" in line)
    assert "| -0.450 [" in gaps
    assert "] (n=2: 2.600 − 3.050, mixed) |" in gaps  # a gap is that of the means it tells
    assert "| -0.200 (n=1: 2.900 − 3.100) |" in gaps
    assert "Mixed: a seed's two runs are of different devices or revisions" in text
    assert "mixed)" in document(Evidence(world.results, "h100"))


def test_times_of_two_revisions_are_two_rows(world):
    small(world, "adamw", (3.0,), speed=1.0)
    later = {"git_revision": "89abcdef0123"}
    small(world, "adamw", (3.1,), first_seed=1338, speed=2.0, summary=later)
    small(world, "powerstep", (3.0,), speed=2.0)
    _, rows = rows_of("cost", world)
    steps = {(r["optimizer"], r["revision"]): r for r in rows if r["quantity"] == "step_ms"}
    assert float(steps["adamw", "0123456"]["ours"]) == pytest.approx(200.0)
    assert float(steps["adamw", "89abcde"]["ours"]) == pytest.approx(100.0)
    assert float(steps["powerstep", "0123456"]["our_gap"]) == pytest.approx(-100.0)


def test_files_are_written_whole_and_alike_twice(world, tmp_path):
    small(world, "adamw", (3.0, 3.1))
    first = {}
    for _ in range(2):
        for name in CATALOGUE:
            for path in write(build(name, Evidence(world.results, "h100")), tmp_path):
                assert first.setdefault(path, path.read_bytes()) == path.read_bytes()
    assert {path.suffix for path in first} == {".md", ".csv", ".tex"}
    assert not list(tmp_path.glob("*.tmp"))


def test_latex_escapes_what_latex_reads():
    assert tex("50 % of a_b & η_max") == r"50 \% of a\_b \& $\eta$\_max"


def test_latex_is_well_formed(world):
    """Stands in for a compiler: balanced braces, as many cells a row as columns, ASCII only."""
    small(world, "adamw", (3.0, 3.1))
    for name in CATALOGUE:
        text = latex(build(name, Evidence(world.results, "h100")))
        plain = text.replace(r"\{", "").replace(r"\}", "")
        assert plain.count("{") == plain.count("}")
        assert text.isascii(), sorted({c for c in text if not c.isascii()})
        columns = len(build(name, Evidence(world.results, "h100")).header)
        body = text[text.index(r"\midrule") : text.index(r"\bottomrule")].splitlines()
        for line in body:
            if line.rstrip().endswith(r"\\") and "multicolumn" not in line:
                assert line.replace(r"\&", "").count("&") == columns - 1


def test_markdown_is_one_table_of_equal_rows():
    table = Table("x", "A title", "A subtitle.", ["a", "b"])
    table.add("one|two", "3*4")
    lines = markdown(table).splitlines()
    assert lines[4:7] == ["| a | b |", "| --- | --- |", r"| one\|two | 3\*4 |"]


def test_cost_reads_the_benchmark_of_the_same_device(world):
    small(world, "powerstep", (3.0,))
    folder = world.results / "bench"
    folder.mkdir()
    rows = [
        {"model": "gpt2_small", "label": "powerstep (fused)", "ms": 0.93},
        {"model": "gpt2_small", "label": "powerstep (foreach)", "ms": 1.14},
        {"model": "gpt2_small", "label": "stacey (fused)", "failed": "no such kernel"},
    ]
    content = {"device": "NVIDIA H100 80GB HBM3", "rows": rows}
    (folder / "optimizers-nvidia-h100-80gb-hbm3.json").write_text(json.dumps(content))
    (folder / "optimizers-damaged.json").write_text("{")
    row = row_of("cost", world, optimizer="powerstep", quantity="optimizer_ms")
    assert float(row["ours"]) == pytest.approx(0.93)
