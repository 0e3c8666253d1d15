"""Every number of the paper's six tables, by its cell.

A cell is named by the model of its row and by a column key: an optimizer for losses and memory,
a setting (``batch``, ``context``, ``lr``, ``min_lr``, ``npus``, ``dp``, ``tp``, ``pp``, ``ep``)
for the two tables of settings. Two tables name the precision in the header; here that is the
optimizer's own key (``PowerStep (int8)`` is ``powerstep_int8``).
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class PaperTable:
    """One table: the paper's number and title, and its column keys in order."""

    number: int
    title: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Number:
    """One cell. ``printed`` is the paper's text, ``value`` its meaning; ``bold`` as printed."""

    table: str
    model: str
    column: str
    printed: str
    value: float | None
    bold: bool = False


#: By our name for the table.
TABLES = {
    "memory": PaperTable(
        1,
        "Average optimizer-state memory per device (MB) on 256 devices",
        ("adamw", "powerstep_int8"),
    ),
    "hyperparameters": PaperTable(
        2, "Training hyperparameters", ("batch", "context", "lr", "min_lr")
    ),
    "parallelism": PaperTable(3, "Parallelism across models", ("npus", "dp", "tp", "pp", "ep")),
    "valid_small": PaperTable(
        4,
        "Validation loss on small dense models, optimizer state in fp32",
        ("adamw", "adams", "signsgd", "pbsgdm", "powerstep"),
    ),
    "quant_valid": PaperTable(
        5,
        "Validation loss under quantization of the optimizer state",
        ("adamw", "powerstep", "powerstep_int8"),
    ),
    "valid_large": PaperTable(
        6,
        "Validation loss on large dense and mixture-of-experts models",
        ("adamw", "powerstep_int8"),
    ),
}

# One line a row, the paper's own text, ``*`` before a bold cell.
_ROWS = {
    "memory": """
        deepseek_v2_lite | 429.0  | *55.3
        qwen3_30b_a3b    | 864.0  | *111.4
        qwen3_32b        | 976.5  | *125.9
        qwen3_235b_a22b  | 6768.0 | *872.4
    """,
    "hyperparameters": """
        gpt2_small       | 480 | 1024 | 6e-4 | 6e-5
        gpt2_medium      | 480 | 1024 | 6e-4 | 6e-5
        qwen3_0_6b       | 256 | 2048 | 5e-4 | 5e-5
        qwen3_1_7b       | 256 | 2048 | 5e-4 | 5e-5
        qwen3_4b         | 256 | 2048 | 5e-4 | 5e-5
        qwen3_8b         | 256 | 2048 | 3e-4 | 3e-5
        deepseek_v2_lite | 256 | 2048 | 2e-4 | 2e-5
        qwen3_30b_a3b    | 256 | 2048 | 2e-4 | 2e-5
        qwen3_32b        | 256 | 2048 | 2e-4 | 2e-5
        qwen3_235b_a22b  | 256 | 2048 | 2e-4 | 2e-5
    """,
    "parallelism": """
        gpt2_small       | 8   | 8   | 1 | 1 | N/A
        gpt2_medium      | 8   | 8   | 1 | 1 | N/A
        qwen3_0_6b       | 8   | 8   | 1 | 1 | N/A
        qwen3_1_7b       | 8   | 8   | 1 | 1 | N/A
        qwen3_4b         | 8   | 8   | 1 | 1 | N/A
        qwen3_8b         | 32  | 16  | 1 | 2 | N/A
        deepseek_v2_lite | 256 | 256 | 1 | 1 | 8
        qwen3_30b_a3b    | 256 | 64  | 1 | 4 | 4
        qwen3_32b        | 256 | 16  | 8 | 2 | N/A
        qwen3_235b_a22b  | 256 | 64  | 1 | 4 | 8
    """,
    "valid_small": """
        gpt2_small  | 2.950  | 2.951  | *2.942 | 3.377 | 2.949
        gpt2_medium | *2.711 | 2.725  | 2.736  | 3.110 | 2.717
        qwen3_0_6b  | 2.912  | 2.912  | *2.897 | 3.198 | 2.923
        qwen3_1_7b  | *2.780 | 2.782  | 2.794  | 3.034 | 2.799
        qwen3_4b    | 2.690  | *2.672 | 2.680  | 2.712 | 2.712
        qwen3_8b    | *2.660 | 4.689  | 5.045  | 2.853 | 2.688
    """,
    "quant_valid": """
        gpt2_small  | 2.950  | 2.949 | *2.948
        gpt2_medium | *2.711 | 2.717 | 2.716
    """,
    "valid_large": """
        deepseek_v2_lite | 2.623  | *2.618
        qwen3_30b_a3b    | *2.620 | 2.624
        qwen3_32b        | *2.572 | 2.582
        qwen3_235b_a22b  | 2.525  | *2.524
    """,
}


def _read(name: str) -> list[Number]:
    cells = []
    for line in _ROWS[name].strip().splitlines():
        model, *texts = (part.strip() for part in line.split("|"))
        for column, text in zip(TABLES[name].columns, texts, strict=True):
            printed = text.removeprefix("*")
            number = None if printed == "N/A" else float(printed)
            cells.append(Number(name, model, column, printed, number, text.startswith("*")))
    return cells


#: All cells of all tables, in the paper's order.
NUMBERS: tuple[Number, ...] = tuple(cell for name in TABLES for cell in _read(name))
_BY_CELL = {(cell.table, cell.model, cell.column): cell for cell in NUMBERS}


def table(name: str) -> list[Number]:
    """Return the cells of one table, row by row."""
    return [cell for cell in NUMBERS if cell.table == name]


def value(name: str, model: str, column: str) -> float | None:
    """Return the value that the paper prints in a cell, or None where it prints none."""
    cell = _BY_CELL.get((name, model, column))
    return cell.value if cell else None
