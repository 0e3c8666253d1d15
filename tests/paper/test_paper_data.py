"""Guards that the paper's numbers and claims are the paper's: counts, known cells, sane claims."""

import pytest

from powerstep_repro import paper


def test_every_table_has_all_its_cells():
    cells = {name: len(paper.table(name)) for name in paper.TABLES}
    assert cells == {
        "memory": 4 * 2,
        "hyperparameters": 10 * 4,
        "parallelism": 10 * 5,
        "valid_small": 6 * 5,
        "quant_valid": 2 * 3,
        "valid_large": 4 * 2,
    }
    assert len(paper.NUMBERS) == sum(cells.values())
    assert {cell.model for cell in paper.NUMBERS} == set(paper.MODELS)


@pytest.mark.parametrize(
    ("table", "model", "column", "expected"),
    [
        ("memory", "qwen3_32b", "adamw", 976.5),
        ("hyperparameters", "qwen3_8b", "min_lr", 3e-5),
        ("parallelism", "qwen3_32b", "tp", 8),
        ("parallelism", "qwen3_8b", "ep", None),
        ("valid_small", "gpt2_medium", "signsgd", 2.736),
        ("valid_small", "qwen3_8b", "powerstep", 2.688),
        ("quant_valid", "gpt2_small", "powerstep_int8", 2.948),
        ("valid_large", "qwen3_235b_a22b", "powerstep_int8", 2.524),
        ("valid_small", "gpt2_small", "stacey", None),
    ],
)
def test_known_cells(table, model, column, expected):
    assert paper.value(table, model, column) == expected


def test_devices_are_the_product_of_the_parallel_degrees():
    for model in paper.MODELS:
        degree = {key: paper.value("parallelism", model, key) for key in ("npus", "dp", "tp", "pp")}
        assert degree["npus"] == degree["dp"] * degree["tp"] * degree["pp"], model


def test_the_smallest_rate_is_a_tenth_of_the_largest():
    for model in paper.MODELS:
        peak, low = (paper.value("hyperparameters", model, key) for key in ("lr", "min_lr"))
        assert low == pytest.approx(0.1 * peak)


def test_the_margin_is_the_largest_gap_of_the_paper():
    gaps = [
        paper.value("valid_small", m, "powerstep") - paper.value("valid_small", m, "adamw")
        for m in paper.MODELS
        if paper.value("valid_small", m, "powerstep")
    ]
    assert max(gaps) == pytest.approx(paper.MARGIN)
    assert [round(gap, 3) for gap in gaps] == [-0.001, 0.006, 0.011, 0.019, 0.022, 0.028]


def test_bold_cells_are_the_lowest_of_their_row():
    for name in ("memory", "valid_small", "quant_valid", "valid_large"):
        for model in {cell.model for cell in paper.table(name)}:
            row = [cell for cell in paper.table(name) if cell.model == model]
            low = min(cell.value for cell in row)
            assert [cell.value for cell in row if cell.bold] == [low], (name, model)


def test_claims_say_what_confirms_and_what_refutes_them():
    names = [claim.name for claim in paper.CLAIMS]
    assert len(set(names)) == len(names)
    for claim in paper.CLAIMS:
        assert claim.says
        assert claim.source
        assert claim.confirms
        assert claim.refutes
        assert claim.confirms != claim.refutes
        assert set(claim.models) <= set(paper.MODELS)
        sides = [*claim.subjects, *([claim.reference] if claim.reference else [])]
        assert {side.optimizer for side in sides} <= set(paper.OPTIMIZERS)
        assert claim.paper_table is None or claim.paper_table in paper.TABLES


def test_what_the_source_does_not_show_is_marked_assumed():
    text = " ".join(f"{a.where} {a.what}" for a in paper.ASSUMED)
    for word in ("β", "steps", "curve shapes"):
        assert word in text


def test_figures_have_the_papers_panels():
    panels = {name: len(figure.panels) for name, figure in paper.FIGURES.items()}
    assert panels == {
        "spt": 1,
        "small": 6,
        "hyper": 2,
        "quant": 2,
        "large": 4,
        "lr": 2,
        "stacey": 2,
    }
    assert [figure.number for figure in paper.FIGURES.values()] == list(range(1, 8))
