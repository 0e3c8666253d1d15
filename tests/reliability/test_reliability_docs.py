"""Guards docs/reliability.md: every test that it names as a promise's keeper exists."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
DOCUMENT = TESTS.parent / "docs" / "reliability.md"


def test_every_test_it_names_exists():
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", DOCUMENT.read_text())
    assert len(named) > 60
    functions = {
        file: {
            node.name
            for node in ast.walk(ast.parse((TESTS / file).read_text()))
            if isinstance(node, ast.FunctionDef)
        }
        for file in {file for file, _ in named}
    }
    assert [f"{file}::{test}" for file, test in named if test not in functions[file]] == []
