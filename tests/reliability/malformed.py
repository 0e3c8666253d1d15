"""A command within this process, and what it answered."""

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from unittest.mock import patch

import pytest

from powerstep_repro.errors import exit_on_user_error


@dataclass
class Answer:
    """How a command ended: its exit code and all that it wrote."""

    code: int
    out: str
    err: str


def ask(command: str, *arguments: str) -> Answer:
    """Run ``python -m powerstep_repro.<command> <arguments>``, but within this process."""
    module = import_module(f"powerstep_repro.{command}")
    if hasattr(module, "__path__"):
        module = import_module(f"powerstep_repro.{command}.__main__")
    out, err = io.StringIO(), io.StringIO()
    argv = patch.object(sys, "argv", [command, *arguments])
    with argv, redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        exit_on_user_error(module.main)
    code = ended.value.code
    if isinstance(code, str):  # as the interpreter does
        err.write(f"{code}\n")
        code = 1
    return Answer(code or 0, out.getvalue(), err.getvalue())
