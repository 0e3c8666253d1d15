"""Guards the commands against what people mistype and disks damage: whatever is thrown at them,
they end well, or in one clear sentence and a non-zero code; never in a traceback, and never with
something half-written that looks whole.
"""

import json
import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from malformed import JSON, KEYS, OVERRIDES, VALUES, ask, described, half_written, train
from reliability_kit import SMALL

TRAIN = (*SMALL, "steps=2", "checkpoint_interval=1", "eval_windows=2")
TEXT = ("data=text", "data.path=text.txt")
ENDED = (0, 1, 2)  # 2 is argparse's


def thrown(examples: int, *strategies):
    """Throw so many examples at a test, others each time."""
    health = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]

    def decorate(test):
        limited = settings(
            max_examples=examples, deadline=None, database=None, suppress_health_check=health
        )
        return limited(given(*strategies)(test))

    return decorate


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A folder to work in, with a text, and no way to the network."""
    monkeypatch.chdir(tmp_path)
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    Path("text.txt").write_text("The quick brown fox jumps over the lazy dog.\n" * 100)
    return tmp_path


def assert_honest(answer, arguments):
    assert answer.is_honest, (arguments, answer)
    assert answer.code in ENDED, (arguments, answer)
    assert not half_written(Path()), arguments


@pytest.mark.parametrize(
    ("command", "arguments", "examples"),
    [
        ("train", (*TRAIN, *TEXT), 20),
        ("sweep", ("beta", "--dry-run", *TRAIN, *TEXT), 30),
        ("prepare", ("text", "path=text.txt", "workers=1"), 30),
        ("table", ("hyperparameters",), 12),
        ("plot", ("spt",), 3),
        ("memory", ("--model", "gpt2_small"), 20),
        ("pull", ("someone/something", "--dry-run"), 20),
    ],
)
def test_overrides(command, arguments, examples):
    @thrown(examples, st.lists(OVERRIDES, min_size=1, max_size=2))
    def throw(overrides):
        assert_honest(ask(command, *arguments, *overrides), overrides)

    throw()


@pytest.mark.parametrize(
    ("command", "arguments", "words"),
    [
        ("prepare", [], "are required: NAME ("),
        ("prepare", ["text", "--path=text.txt"], "--path=text.txt"),
        ("sweep", [], "are required: name ("),
        ("sweep", ["beta", "--workers", "two"], "--workers: invalid int value: 'two'"),
        ("sweep", ["beta", "--missing", "--dry-run"], "not allowed with"),
        ("pull", ["someone/something", "--limit"], "--limit"),
        ("plot", ["small", "--profile", "tiny"], "--profile"),
        ("table", ["--all"], "--all"),
        ("report", ["--html"], "--html"),
    ],
)
def test_wrong_options_are_one_sentence_too(command, arguments, words):
    answer = ask(command, *arguments)
    assert answer.code == 1
    assert answer.out == ""
    (line,) = answer.err.splitlines()
    assert line.startswith("error: ")
    assert words in line
    assert line.endswith(f"(see python -m powerstep_repro.{command} --help)")


META = {"format": 1, "name": "x", "dtype": "uint16", "vocab_size": 257, "tokenizer": "byte"}
META |= {"train_tokens": 200, "val_tokens": 200, "hash": "0" * 16, "source": {}}
TOKENS = np.arange(200, dtype="<u2").tobytes()
BINARY = st.just(TOKENS) | st.just(TOKENS) | st.none() | st.binary(max_size=100)


def put(folder: Path, **files: bytes | None) -> None:
    """Make a folder of just these files; ``a__b`` is a.b, None is left out."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, content in files.items():
        if content is not None:
            (folder / name.replace("__", ".")).write_bytes(content)


@thrown(50, BINARY, BINARY, described(META), st.booleans())
def test_token_folders(train_bin, val_bin, meta, prepared):
    put(Path("tokens"), train__bin=train_bin, val__bin=val_bin, meta__json=meta)
    if prepared:
        answer = ask("prepare", "tokens", "path=tokens")
    else:
        answer = train(*TRAIN, "data=tokens", "data.path=tokens")
    assert_honest(answer, (train_bin, val_bin, meta))


@pytest.fixture
def prepared():
    """A prepared data set, and a copy of it."""
    assert ask("prepare", "text", "path=text.txt", "workers=1").code == 0
    (folder,) = Path("data").glob("text-*")
    shutil.copytree(folder, "copy")
    return folder


def test_damage_to_what_was_prepared(prepared):
    @thrown(30, st.sampled_from(["meta.json", "train.bin", "val.bin"]), described(META))
    def throw(name, content):
        shutil.rmtree(prepared)
        shutil.copytree("copy", prepared)
        # Without its description it is no data set, as half_written says too.
        (prepared / name).write_bytes(content or b"")
        assert_honest(train(*TRAIN, *TEXT), (name, content))

    throw()


@thrown(25, st.binary(max_size=300), st.sampled_from(["byte", "byte", "nothing", "text.txt"]))
def test_text_files(content, tokenizer):
    Path("any.txt").write_bytes(content)
    data = (f"tokenizer={tokenizer}", "val_fraction=0.5", "workers=1")
    assert_honest(ask("prepare", "text", "path=any.txt", *data), (content, tokenizer))


GRID = st.tuples(st.sampled_from(KEYS), JSON).map(lambda pair: {"runs": [{"grid": dict([pair])}]})
SWEEP_FILES = st.one_of(
    st.binary(max_size=40),
    (JSON | JSON.map(lambda value: {"runs": value}) | GRID).map(
        lambda value: yaml.safe_dump(value).encode()
    ),
    st.tuples(st.sampled_from(KEYS), VALUES).map(
        lambda pair: "runs: [{{grid: {{{}: {}}}}}]".format(*pair).encode()
    ),
)


@thrown(60, SWEEP_FILES)
def test_sweep_files(content):
    Path("any.yaml").write_bytes(content)
    answer = ask("sweep", "any.yaml", "--missing")
    if answer.code != 3:  # a sweep whose runs are missing
        assert_honest(answer, content)


RUN = ("optimizer=powerstep", *TRAIN, *TEXT)
JSON_FILES = ("config.yaml", "metrics.jsonl", "summary.json", "windows.json")
OTHER_FILES = ("metrics.parquet", ".lock", "checkpoints/newest", "checkpoints/older")
DAMAGE = st.one_of(
    st.tuples(st.sampled_from([*JSON_FILES, *OTHER_FILES]), st.none() | st.binary(max_size=30)),
    st.tuples(st.sampled_from([*JSON_FILES, *OTHER_FILES]), st.integers(0, 3000)),
    st.tuples(st.sampled_from(JSON_FILES), JSON),
    st.tuples(st.sampled_from(JSON_FILES[:3]), st.tuples(st.integers(0, 30), JSON)),
)


# What ``damage`` raises where an earlier damage left it nothing to change a value in.
NOTHING_LEFT = (OSError, ValueError, TypeError, IndexError, ZeroDivisionError, yaml.YAMLError)


def damage(run: Path, name: str, what) -> None:
    """Remove, cut or replace a file of a run, or one value in it."""
    path = run / name
    if name.startswith("checkpoints/"):
        path = sorted(run.glob("checkpoints/*"))[-1 if name.endswith("newest") else 0]
    if what is None:
        path.unlink(missing_ok=True)
    elif isinstance(what, bytes):
        path.write_bytes(what)
    elif isinstance(what, int):
        path.write_bytes(path.read_bytes()[:what])
    elif isinstance(what, tuple):  # a value of the config, the last row or the summary
        text = path.read_text()
        whole = yaml.safe_load(text.splitlines()[-1] if name == "metrics.jsonl" else text)
        key = sorted(whole)[what[0] % len(whole)]
        changed = json.dumps(whole | {key: what[1]})
        path.write_text(f"{text}{changed}\n" if name == "metrics.jsonl" else changed)
    else:
        path.write_text(json.dumps(what))


@pytest.fixture
def whole_run():
    """A run as it is left when it is killed after its last checkpoint, and a copy of it."""
    assert train(*RUN).code == 0
    (run,) = Path("results/tiny/runs").iterdir()
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps(summary | {"status": "running"}))
    shutil.copytree(run, "copy")
    return run


@pytest.mark.parametrize(
    ("command", "examples"),
    [
        ("train", 40),
        (("sweep", "beta", "--dry-run", *RUN, "optimizer.beta=0.1"), 15),
        (("table", "valid_small", *RUN), 8),
        (("plot", "hyper"), 2),
    ],
)
def test_damage_to_a_run(whole_run, command, examples):
    @thrown(examples, st.lists(DAMAGE, min_size=1, max_size=3))
    def throw(damages):
        shutil.rmtree(whole_run)
        shutil.copytree("copy", whole_run)
        for name, what in damages:
            with suppress(*NOTHING_LEFT):
                damage(whole_run, name, what)
        assert_honest(train(*RUN) if command == "train" else ask(*command), damages)

    throw()
