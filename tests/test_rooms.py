"""Guards the rooms: each imports lower ones alone, none a command, and none goes in a circle."""

import ast
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "powerstep_repro"

# From the bottom up; a room may import rooms before it.
ROOMS = (
    *(
        "nanogpt",
        "errors",
        "console",
        "intervals",
        "paper",
        "optim",
        "config",
        "models",
        "data",
        "runs",
    ),
    *("progress", "utilisation", "evidence", "pages", "sweep", "pull", "bench"),
)
COMMANDS = ("train", "prepare", "plot", "table", "report", "memory")


def imported(path):
    """The modules of ours that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name for name in names if name.startswith(("powerstep_repro.", "nanogpt")))


def room(module):
    parts = module.split(".")
    return parts[0] if parts[0] == "nanogpt" else parts[1]


def arrows():
    """Every arrow from one room to another, with a file that draws it."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        start = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for module in imported(path):
            if room(module) != start and start != "__init__":
                found.setdefault((start, room(module)), f"{path}: {module}")
    return {pair: where for pair, where in found.items() if pair[1] != "__version__"}


def test_every_room_imports_lower_rooms_alone_and_no_command():
    for (start, end), where in arrows().items():
        assert end in ROOMS, where
        if start not in COMMANDS:
            assert ROOMS.index(end) < ROOMS.index(start), where


def test_from_runs_to_pages():
    ends = {start: set() for start in ("paper", "evidence", "pages")}
    for start, end in arrows():
        ends.get(start, set()).add(end)
    assert not ends["paper"]
    below = {"runs", "paper", "config", "models", "optim", "errors", "utilisation"}
    assert ends["evidence"] <= below
    assert ends["pages"] <= {"evidence", "runs", "paper", "config", "errors", "utilisation"}


def test_numbers_need_neither_matplotlib_nor_torch():
    """All of ``evidence`` is imported: a claim is judged where nothing can be drawn or trained."""
    names = [path.stem for path in (PACKAGE / "evidence").glob("[!_]*.py")]
    code = "".join(f"import powerstep_repro.evidence.{name}\n" for name in names)
    code += "import sys; print(sorted({'matplotlib', 'torch'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
