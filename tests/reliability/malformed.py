"""What a person, or a damaged disk, may hand to a command; and what the command made of it."""

import io
import json
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from unittest.mock import patch

from hypothesis import strategies as st

from powerstep_repro.config import choices, compose, flatten, sweep_names
from powerstep_repro.errors import exit_on_user_error
from powerstep_repro.train import run

# No digits, so that no text is a number of steps; no path leads out of the working folder.
WORDS = st.text(st.sampled_from("abeilmnrstx_-+=:,;@#$%&*'\"\\{}[]()<>|?! \t\n\0é√🙂"), max_size=12)
NUMBERS = ["-1", "0", "1", "2", "0.5", "1e-3", "-2.5", "1e400", "nan", "-inf", "9" * 30, "0x1F"]
VALUES = st.one_of(
    st.sampled_from([*NUMBERS, "", "null", "true", "None", "[]", "{}", "[1,2]", "{a:1}", "1,2"]),
    st.sampled_from(
        ["???", "${lr}", "${nothing}", "${oc.env:HOME}", "${", "range(1,3)", "a,b", "''"]
    ),
    WORDS,
)
KEYS = sorted({key for key, _ in flatten(compose())} | {"model", "optimizer", "data", "logger"})
NAMES = sorted({*sweep_names(), *choices("model"), *choices("optimizer"), *choices("data")})
OVERRIDES = st.one_of(
    st.builds("{}={}".format, st.sampled_from(KEYS), st.one_of(VALUES, st.sampled_from(NAMES))),
    st.builds("{}{}={}".format, st.sampled_from(["", "+", "++", "~"]), WORDS, VALUES),
    st.sampled_from(["~lr", "model@x=gpt2_small", "optimizer/adamw", "hydra.run.dir=x", "hydra=x"]),
    WORDS,
)

JSON = st.recursive(
    st.one_of(
        *(st.none(), st.booleans(), st.integers(-3, 300), st.just(10**30), st.floats(), WORDS)
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=5,
)


def described(known: dict) -> st.SearchStrategy[bytes | None]:
    """A JSON file that should hold ``known``: missing, no JSON, another JSON, or one value off."""

    def with_one_off(key_and_value):
        return known | dict([key_and_value])

    one_off = st.tuples(st.sampled_from(sorted(known)), JSON).map(with_one_off)
    values = (JSON | one_off | one_off).map(lambda value: json.dumps(value).encode())
    return st.none() | st.binary(max_size=20) | values | values


@dataclass
class Answer:
    """How a command ended: its exit code and all that it wrote."""

    code: int
    out: str
    err: str

    @property
    def is_honest(self) -> bool:
        """Whether it is a success, or one clear sentence and a code that says so."""
        if "Traceback" in self.out + self.err:
            return False
        if self.code == 0:
            return True
        _, told, sentence = self.err.rpartition("error: ")
        return bool(told) and len(sentence) > 10


def ask(command: str, *arguments: str) -> Answer:
    """Run ``python -m powerstep_repro.<command> <arguments>``, but within this process."""
    module = import_module(f"powerstep_repro.{command}")
    if hasattr(module, "__path__"):
        module = import_module(f"powerstep_repro.{command}.__main__")
    with patch.object(sys, "argv", [command, *arguments]):
        return _answer(module.main)


def train(*overrides: str) -> Answer:
    """Run the train command without Hydra's part of it, which takes most of the time."""
    return _answer(lambda: run(compose(overrides)))


def _answer(main: Callable[[], int | None]) -> Answer:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            exit_on_user_error(main)
        except SystemExit as ended:
            code = ended.code
    if isinstance(code, str):  # as the interpreter does
        err.write(f"{code}\n")
        code = 1
    return Answer(code or 0, out.getvalue(), err.getvalue())


def half_written(folder: Path) -> list[Path]:
    """Files that wait for a rename, and data sets without the description that comes last."""
    waiting = [*folder.rglob("*.tmp"), *folder.rglob(".*.staging")]
    data_sets = [path for path in folder.glob("data/[!.]*") if path.is_dir()]
    return waiting + [path for path in data_sets if not (path / "meta.json").is_file()]
