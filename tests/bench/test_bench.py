"""The benchmark: what it measures, what it writes, and that bad input ends in one sentence.

Guards: bytes that must move; a contender that leaves weights alone or cannot run; the JSON that
other commands read; nanoGPT's times as its loop prints them.
"""

import json
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from nanogpt.errors import OutOfMemory
from nanogpt.model import GPTConfig
from powerstep_repro.bench import contenders, optimizers, output, training
from powerstep_repro.bench.__main__ import main
from powerstep_repro.bench.contenders import Contender, ours
from powerstep_repro.console import table_console
from powerstep_repro.errors import UserError

CPU = torch.device("cpu")
TINY = GPTConfig(vocab_size=64, context=16, n_layer=1, n_head=2, n_embd=32)


@pytest.fixture(autouse=True)
def _tiny(monkeypatch):
    monkeypatch.setitem(optimizers.MODELS, "gpt2_mini", TINY)
    monkeypatch.setattr(optimizers, "copy_bandwidth", lambda device: 1e9)
    torch.set_num_threads(1)


def bench(monkeypatch, *rows, **options):
    yardsticks = [ours("adamw", "fused"), ours("adamw", "foreach")]
    monkeypatch.setattr(optimizers, "contenders", lambda *_: [*yardsticks, *rows])
    results = optimizers.bench_optimizers(["gpt2_mini"], "fp32", CPU, seconds=0.001, **options)
    return {row["label"]: row for row in results["rows"]}


def test_bytes_that_must_move(monkeypatch):
    """Parameter read and written, gradient read, state read and written: 28, 20 and 14.06."""
    rows = bench(monkeypatch, ours("powerstep", "foreach"), ours("powerstep_int8", "foreach"))
    expected = {
        "adamw (fused)": 28,
        "powerstep (foreach)": 20,
        "powerstep_int8 (foreach)": 14.0625,
    }
    for label, bytes_ in expected.items():
        row = rows[label]
        assert row["bytes"] / row["params"] == pytest.approx(bytes_, rel=1e-2)
        assert row["times_floor"] == pytest.approx(row["ms"] * 1e6 / row["bytes"])
    assert rows["adamw (fused)"]["ratio_to_adamw_fused"] == 1


def test_contenders_that_fail_do_not_end_the_others(monkeypatch):
    class Idle(torch.optim.SGD):
        def step(self):
            pass

    def missing(params):
        raise RuntimeError("needs CUDA 99\nand more")

    idle = Contender("idle", lambda p: Idle(p, lr=0.1))
    rows = bench(monkeypatch, idle, Contender("missing", missing), ours("signsgd", "foreach"))
    assert "did not change" in rows["idle"]["failed"]
    assert rows["missing"]["failed"] == "RuntimeError: needs CUDA 99"
    assert rows["signsgd (foreach)"]["ms"] > 0


def test_peers_take_part_where_installed(monkeypatch):
    """By the names that the packages export; nothing is imported that is not there."""
    made = []

    def factory(params, lr, weight_decay, **options):
        made.append(options)
        return torch.optim.SGD(params, lr=lr)

    modules = {
        "bitsandbytes.optim": SimpleNamespace(AdamW8bit=factory, Lion8bit=factory),
        "torchao.optim": SimpleNamespace(AdamW8bit=factory),
        "flashoptim": SimpleNamespace(FlashAdamW=factory, FlashLion=factory),
    }
    monkeypatch.setattr(contenders.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(contenders.importlib, "import_module", modules.__getitem__)
    rows = contenders._installed()
    assert [row.label.split()[-1] for row in rows] == [
        "AdamW8bit", "Lion8bit", "AdamW8bit", "FlashAdamW", "FlashLion",
    ]  # fmt: skip
    for row in rows:
        row.make([torch.nn.Parameter(torch.ones(2))])
    assert made[-1] == {"master_weight_bits": None}


def test_released_optimizers_from_a_clone(tmp_path):
    with pytest.raises(UserError, match=r"no nanoGPT/optim\.py"):
        contenders.contenders(CPU, False, tmp_path)
    (tmp_path / "nanoGPT").mkdir()
    (tmp_path / "nanoGPT" / "optim.py").write_text(
        "import torch\nclass PowerStep(torch.optim.SGD): pass\n"
        "class PowerStepInt8(PowerStep): pass\nclass AdamWInt8(PowerStep): pass\n"
    )
    rows = contenders.contenders(CPU, False, tmp_path)
    assert [row.label for row in rows[-3:]] == [
        "released PowerStep", "released PowerStepInt8", "released AdamWInt8",
    ]  # fmt: skip


def test_command_writes_what_it_shows(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("POWERSTEP_REPRO_REVISION", "0123abc")
    main(
        ["all", "--only", "powerstep .foreach", "--seconds", "0.001", "--steps", "3",
         "--optimizers", "powerstep", "--out", str(tmp_path)]
    )  # fmt: skip
    shown = capsys.readouterr().out
    assert "powerstep (foreach)" in shown
    assert "this project" in shown
    files = {path.name.split("-")[0]: json.loads(path.read_text()) for path in tmp_path.iterdir()}
    assert files["optimizers"]["copy_bytes_per_s"] == 1e9
    assert files["training"]["rows"][0]["tokens_per_s"] > 0
    # As installed, which may lack the build that torch's own version ends in (+cu130).
    assert files["training"]["versions"]["torch"] == torch.__version__
    for results in files.values():
        assert "CPU" in results["device"]
        assert results["git_revision"] == "0123abc"


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["optimizers", "--only", "powerstep .foreach"], "--only"),
        (["optimizers", "--only", "powerstep .foreach", "--dtype", "bf16"], "--only"),
        (["training", "--optimizers", "powerstep"], "--optimizers"),
        (["training", "--micro-batches", "8"], "--micro-batches"),
        (["training", "--models", "gpt2_mini"], "--models"),
    ],
)
def test_a_part_never_replaces_the_whole_table(tmp_path, monkeypatch, capsys, arguments, option):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(training, "_ours", lambda *_: [0.5] * 3)
    main([*arguments, "--seconds", "0.001"])
    shown = capsys.readouterr().out
    assert "powerstep" in shown
    assert f"not written: {option} measures a part" in shown
    assert not list(tmp_path.glob("results/bench/*"))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["training", "--micro-batches", "3"], "--micro-batches 3 does not divide the batch of 8"),
        (["rerun", "nowhere"], "nowhere is no run directory: it holds no config.yaml"),
        (["rerun", "run", "--same-card", "maybe"], "invalid choice: 'maybe'"),
        (["same-numbers", "train", "data"], "the following arguments are required: out"),
        (["same-numbers", "train", "nowhere", "losses.json"], "no data set in nowhere"),
        (["optimizers", "--device", "cuda"], "torch sees no CUDA device"),
    ],
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU other sentences come first")
def test_bad_input_is_one_sentence(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        main(arguments)


def test_nanogpt_runs_at_the_same_numbers(tmp_path, monkeypatch):
    """Its own train.py, told by command line; the first steps are not counted."""
    (tmp_path / "train.py").touch()
    seen = []

    def run(command, cwd, **_):
        seen.append((command, cwd))
        lines = [f"iter {i}: loss 4.1, time {100 + i}.50ms, mfu -100.00%" for i in range(9)]
        return SimpleNamespace(returncode=0, stdout="\n".join(["number of", *lines]), stderr="")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(training, "_ours", lambda *_: [0.5, 0.25, 1.0])
    jobs = [
        training.Job(who, "gpt2_mini", "adamw", "fp32", 8, 4, 16, 3, compile=False)
        for who in ("this project", "nanoGPT")
    ]
    rows = training.bench_training(jobs, CPU, tmp_path)["rows"]
    command, cwd = seen[0]
    assert cwd == tmp_path
    assert command[0] == sys.executable
    wanted = {"--gradient_accumulation_steps=2", "--batch_size=4", "--dtype=float32"}
    assert wanted <= set(command)
    assert [row["who"] for row in rows] == ["this project", "nanoGPT"]
    assert rows[0]["tokens_per_s"] == pytest.approx(8 * 16 / 0.5)
    assert rows[1]["step_ms"] == pytest.approx(106.5)


def test_a_benchmark_that_is_cut_off_keeps_what_it_measured(tmp_path, monkeypatch, capsys):
    """Each row is on the screen and in the file as it comes."""

    def cut_off(job, *_):
        if job.micro == 4:
            raise KeyboardInterrupt
        return [0.25] * 3

    monkeypatch.setattr(training, "_ours", cut_off)
    options = ["training", "--optimizers", "adamw", "--out", str(tmp_path)]
    with pytest.raises(KeyboardInterrupt):
        main([*options, "--micro-batches", "8", "4"])
    assert "this project, gpt2_mini, adamw, fp32, 8 a pass: " in capsys.readouterr().out
    (path,) = tmp_path.iterdir()
    assert [row["step_ms"] for row in json.loads(path.read_text())["rows"]] == [250.0]


def test_a_model_that_ends_the_benchmark_leaves_those_before_it(tmp_path, monkeypatch):
    monkeypatch.setitem(optimizers.MODELS, "gpt2_small", None)  # cannot be made
    options = ["optimizers", "--only", "signsgd", "--seconds", "0.001", "--out", str(tmp_path)]
    with pytest.raises(AttributeError):
        main([*options, "--models", "gpt2_mini", "gpt2_small"])
    (path,) = tmp_path.iterdir()
    assert {row["model"] for row in json.loads(path.read_text())["rows"]} == {"gpt2_mini"}


def test_a_trainer_that_fails_does_not_end_the_others(tmp_path, monkeypatch, capsys):
    (tmp_path / "train.py").write_text("raise SystemExit('no such option')")
    monkeypatch.setattr(training, "_ours", lambda *_: [0.25] * 3)
    main(["training", "--optimizers", "adamw", "--nanogpt", str(tmp_path), "--out", str(tmp_path)])
    rows = json.loads(next(tmp_path.glob("training-*.json")).read_text())["rows"]
    assert [row.get("failed") for row in rows] == [
        None,
        "nanoGPT's train.py failed: no such option",
    ]


@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_a_signal_in_a_training_ends_the_benchmark(tmp_path, monkeypatch, number, error):
    """The trainer stops politely; what it did until then is no measurement."""
    monkeypatch.setattr(training._Clock, "log", lambda *_: os.kill(os.getpid(), number))
    with pytest.raises(error):
        main(["training", "--optimizers", "adamw", "--out", str(tmp_path)])
    assert not list(tmp_path.iterdir())


def test_each_trainer_at_its_best_micro_batch(tmp_path, monkeypatch, capsys):
    """A micro-batch too large for one of them is said to be so and ends neither."""
    (tmp_path / "train.py").touch()

    def ours(job, *_):
        return [{2: 0.5, 4: 0.4, 8: 0.3}[job.micro]] * 3

    def theirs(command, **_):
        if "--batch_size=8" in command:
            return SimpleNamespace(returncode=1, stdout="", stderr="torch.OutOfMemoryError: CUDA")
        lines = [f"iter {i}: loss 4.1, time 600.00ms, mfu -100.00%" for i in range(9)]
        return SimpleNamespace(returncode=0, stdout="\n".join(lines), stderr="")

    monkeypatch.setattr(training, "_ours", ours)
    monkeypatch.setattr(subprocess, "run", theirs)
    options = ["training", "--optimizers", "adamw", "--micro-batches", "2", "4", "8"]
    theirs_only = ["--nanogpt", str(tmp_path), "--nanogpt-micro-batches", "4", "8"]
    main([*options, *theirs_only, "--out", str(tmp_path)])
    shown = capsys.readouterr().out
    assert "gpt2_mini, fp32: 2.000 × nanoGPT" in shown
    assert "out of memory" in shown
    assert shown.count("this project, gpt2_mini") == 3
    assert shown.count("nanoGPT, gpt2_mini") == 2

    def too_large(*_):
        raise OutOfMemory("at all")

    monkeypatch.setattr(training, "_ours", too_large)
    main([*options, "--out", str(tmp_path)])
    (path,) = tmp_path.glob("training-*.json")
    rows = json.loads(path.read_text())["rows"]
    assert [row["failed"] for row in rows] == ["out of memory"] * 3
    assert output.times_nanogpt(rows) == {}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--steps", "2"], "--steps: 2 is no whole number of at least 3"),
        (["--batch", "0"], "--batch: 0 is no whole number of at least 1"),
        (["--micro-batches", "0"], "--micro-batches: 0 is no whole number of at least 1"),
        (["--seconds", "nan"], "--seconds: nan is no number of seconds above 0"),
        (["--only", "("], r"--only: \( is no regular expression"),
        (["--only", "zzz"], r"--only zzz matches none of adamw \(fused\), "),
        (["--out", __file__], "is no folder to write to"),
        (["--nanogpt", "nowhere"], r"--nanogpt nowhere: there is no train\.py"),
        (["--batch", "7", "--micro-batches", "2"], "2 does not divide the batch of 7"),
    ],
)
def test_bad_options_are_refused_before_anything_is_measured(
    arguments, sentence, tmp_path, monkeypatch
):
    """Also those of the training, which comes last."""
    monkeypatch.setattr(optimizers, "interleaved", None)
    with pytest.raises(UserError, match=sentence):
        main(["all", "--out", str(tmp_path), *arguments])
    assert not list(tmp_path.iterdir())


def test_a_table_that_no_terminal_shows_is_whole(capsys):
    times = {"ms": 30_116.391, "ms_rounds": [30_116.391, 31_644.912], "host_ms": 30_116.391}
    times["floor_ms"] = 28_000.5
    ratios = {"times_floor": 1.0, "ratio_to_adamw_fused": 1.0, "ratio_to_adamw_foreach": 1.0}
    sizes = {"params": 10**9, "bytes": 28 * 10**9, "extra_bytes": None}
    row = {"model": "gpt2_mini", "label": "an optimizer, " * 20, **times, **ratios, **sizes}
    results = {"device": "a CPU", "dtype": "fp32", "copy_bytes_per_s": 1e9, "rows": [row]}
    output.show_optimizers(results, table_console())
    shown = capsys.readouterr().out
    for text in (
        row["label"],
        "30116.391–31644.912",
        "28000.500",
        "B/param",
        "× AdamW fused",
        "extra MiB",
    ):
        assert text in shown
