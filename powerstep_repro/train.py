"""Train one model with one optimizer: ``python -m powerstep_repro.train [key=value ...]``.

A Hydra app. A run's directory follows from its config, so the same command again goes on with an
interrupted run and leaves a finished one alone.
"""

import os
import signal
import subprocess
import sys
import traceback
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from nanogpt.errors import CheckpointError, InputError, OutOfMemory
from powerstep_repro.config import CONF, axes, compose, identity_view, product, run_dir, with_data
from powerstep_repro.errors import UserError, exit_on_user_error, require, tell
from powerstep_repro.runs.files import CONFIG, ENDED, ERROR, read_summary
from powerstep_repro.runs.record import Recorder, stated_config
from powerstep_repro.utilisation import speed_line

# What each of these says is meant for the user as it stands.
EXPECTED = (UserError, InputError, OutOfMemory, CheckpointError)

_MULTIRUN = ("-m", "--multirun")
_HYDRA_OPTIONS = (
    *_MULTIRUN,
    *("-h", "--help", "--hydra-help", "--version", "-c", "--cfg", "--resolve", "-p", "--package"),
    *("-r", "--run", "-sc", "--shell-completion", "-cp", "--config-path", "-cn", "--config-name"),
    *("-cd", "--config-dir", "--experimental-rerun", "-i", "--info"),
)


def main() -> int:
    """Check the command line, hand it to Hydra, and return the exit code."""
    arguments = sys.argv[1:]
    options = [argument for argument in arguments if argument.startswith("-")]
    for option in options:
        name, _, value = option.partition("=")
        if name not in _HYDRA_OPTIONS:
            key = name.lstrip("-")
            raise UserError(
                f"unknown option {option!r}: write {key}={value or 'VALUE'}, or see --help"
            )
    if set(options) <= set(_MULTIRUN):
        overrides = [argument for argument in arguments if argument not in options]
        _check(overrides, multirun=bool(options))
        sys.argv[1:] = options + overrides  # argparse takes no overrides on both sides of an option
    else:  # an option's own value, as in --cfg job, has no equals sign
        _check([a for a in arguments if "=" in a and a not in options], multirun=False)

    codes: list[int] = []

    @hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
    def job(_: DictConfig) -> None:
        context = HydraConfig.get()
        overrides = list(context.overrides.task)
        if context.mode == RunMode.MULTIRUN:
            codes.append(_in_process_of_its_own(overrides))
        else:
            # Composed anew, so that a run is the same run however it was started.
            codes.append(run(compose(overrides)))

    try:
        job()
    except ValueError as error:  # Hydra's word on options that do not go together
        raise UserError(str(error)) from None
    return _overall(codes)


def _check(overrides: list[str], multirun: bool) -> None:
    """Refuse a bad override in one sentence, before Hydra would in many."""
    overrides = [a for a in overrides if not a.lstrip("+~").startswith(("hydra.", "hydra/"))]
    if not multirun:
        compose(overrides)
        return
    if "RANK" in os.environ:
        raise UserError(
            "--multirun cannot run under torchrun, where every rank would start its own grid: "
            "use python -m powerstep_repro.sweep NAME --gpus-per-run N"
        )
    for combination in product(axes(overrides)):
        compose(combination)


def _overall(codes: list[int]) -> int:
    interrupted = [code for code in codes if code > 128]
    failed = [number for number, code in enumerate(codes) if code == 1]
    if len(codes) > 1 and failed:
        jobs = ", ".join(f"#{number}" for number in failed)
        print(f"{len(failed)} of {len(codes)} jobs failed: {jobs}", file=sys.stderr)
    return interrupted[0] if interrupted else max(codes, default=0)


def _in_process_of_its_own(overrides: list[str]) -> int:
    """Run one job of a multirun; returns its exit code.

    Memory figures and W&B runs do not leak from job to job, and no crash ends the rest.
    """
    # A session of its own: a signal reaches the job once, through the handler below.
    process = subprocess.Popen(
        [sys.executable, "-m", "powerstep_repro.train", *overrides], start_new_session=True
    )
    stopped = []

    def pass_on(number: int, _frame: Any) -> None:
        stopped.append(number)
        process.send_signal(number)

    numbers = (signal.SIGINT, signal.SIGTERM)
    former = {number: signal.signal(number, pass_on) for number in numbers}
    try:
        code = process.wait()
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
    if stopped:
        sys.exit(128 + stopped[0])  # the remaining jobs are not started
    return 1 if code < 0 else code


def run(config: dict[str, Any]) -> int:
    """Train the run of a config, or go on with it, or find it finished.

    Args:
        config: As ``compose`` returns it.

    Returns:
        The exit code: 0 finished or diverged, 1 failed, 128 + signal interrupted.
    """
    rank = int(os.environ.get("RANK", 0))
    folder = None
    try:
        require("torch", "training", "train")
        if config["model"]["family"] != "gpt2":
            require("transformers", f"model={config['model']['name']}", "train")
        from powerstep_repro.data import resolve
        from powerstep_repro.models.architecture import check

        data = resolve(config["data"], config["data_dir"])
        # Before there is a folder: what cannot be built is no run.
        check(config["model"])
        data.check_vocabulary(config["model"]["vocab_size"])
        data.check_context(config["context"])
        config = with_data(config, data.hash, data.name)
        folder = Path(run_dir(config))
        summary = read_summary(folder)
        damaged = bool(summary) and stated_config(folder) is None
        if summary.get("status") in ENDED and not damaged:
            if rank == 0:
                tell(f"already {_outcome(summary, folder)}")
            return 0
        if damaged and rank == 0:
            tell(f"{folder / CONFIG} is missing or damaged: it is written anew, the run goes on")
        return _train(config, data, folder, rank)
    except EXPECTED as error:
        # Bad input is seen by all ranks, other trouble perhaps by one alone.
        if rank == 0 or not isinstance(error, UserError | InputError):
            print(f"error: {error}", file=sys.stderr)
    except OSError as error:  # a full disk, no permission, a folder that has gone
        what = f"the run in {folder}" if folder else "the run"
        print(f"error: {what} cannot go on: {error}", file=sys.stderr)
    except Exception as error:
        traceback.print_exc()
        saved = f" (traceback in {folder / ERROR})" if folder and rank == 0 else ""
        print(f"error: {type(error).__name__}: {error}{saved}", file=sys.stderr)
    return 1


def _outcome(summary: dict[str, Any], folder: Path) -> str:
    """One line on how a run ended."""
    loss = summary.get("final_val_loss")
    if summary["status"] == "diverged":
        result = f"diverged at step {summary.get('diverged_at')}"
    else:
        result = f"{summary['status']} at step {summary.get('steps')}"
        result += "" if loss is None else f", validation loss {loss:.4f}"
    if summary.get("blown_up_at"):
        result += f", blown up at step {summary['blown_up_at']}"
    return f"{result}, {summary.get('wall_s') or 0:.1f} s: {folder}"


def _train(config: dict[str, Any], data: Any, folder: Path, rank: int) -> int:
    from nanogpt.runtime import Runtime

    # Before there is a folder: a device or a package that is not there is no failed run.
    names = ("device", "precision", "deterministic", "compile")
    runtime = Runtime(**{name: config[name] for name in names})
    mirror = None
    if rank == 0 and config["logger"]["name"] == "wandb":
        require("wandb", "logger=wandb", "wandb")
        from powerstep_repro.runs.wandb_mirror import WandbMirror

        mirror = WandbMirror(config)
    with Recorder(folder, config, mirror) if rank == 0 else nullcontext() as recorder:
        result, facts = _compute(config, data, folder, runtime, recorder)
        if recorder is not None:
            before = recorder.previous.get("peak_memory_bytes") or 0
            facts["peak_memory_bytes"] = max(before, facts["peak_memory_bytes"])
            recorder.finish(
                result.status,
                steps=result.step,
                final_val_loss=result.final_val_loss,
                final_train_loss=result.final_train_loss,
                diverged_at=result.diverged_at,
                **facts,
            )
    if recorder is not None:
        summary = read_summary(folder)
        tell(_outcome(summary, folder))
        cuda = runtime.device.type == "cuda"
        if line := speed_line(folder, summary, config["precision"], cuda):
            tell(line)
    return 128 + result.signal if result.signal else 0


def _compute(
    config: dict[str, Any], data: Any, folder: Path, runtime: Any, recorder: Any
) -> tuple[Any, dict]:
    """Build model and optimizer and train; returns the trainer's result and measured facts."""
    from nanogpt.signals import StopSignals, obey
    from powerstep_repro.progress import Progress

    again, size = False, ""
    if recorder is not None:  # of the rank that tells of the run
        again = bool(recorder.previous)
        size = f"{config['batch']:,} sequences of {config['context']:,} tokens take long here"
    with runtime, Progress(again, size) as progress:
        # A package half imported, and torch imports some of its own late, would end the run with
        # an error of that package's instead.
        with StopSignals() as signals:
            from nanogpt.checkpoint import CheckpointStore
            from nanogpt.loop import train
            from powerstep_repro.optim import state_bytes
            from powerstep_repro.runs import provenance

            parts = _build(config, runtime, recorder)
        obey(signals.received)
        result = train(
            **parts,
            data=data,
            runtime=runtime,
            recorder=recorder,
            checkpoints=CheckpointStore(
                folder / "checkpoints", identity_view(config), keep=config["keep_checkpoints"]
            ),
            progress=progress,
        )
        return result, {
            "optimizer_state_bytes": state_bytes(parts["optimizer"]),
            "peak_memory_bytes": runtime.peak_memory_bytes() or provenance.peak_process_bytes(),
        }


def _build(config: dict[str, Any], runtime: Any, recorder: Any) -> dict[str, Any]:
    """Return settings, model and optimizer by name, as the trainer takes them."""
    import torch

    from nanogpt.runtime import decay_groups, seeded
    from nanogpt.settings import Settings
    from powerstep_repro import models
    from powerstep_repro.optim import create
    from powerstep_repro.runs import provenance

    seeded(config["seed"])
    # The top-level context counts: the model's own is only its default.
    shape = {**config["model"], "context": config["context"]}
    with runtime.memory_errors():
        model = runtime.place(models.build(shape))
    cuda = runtime.device.type == "cuda"
    if recorder is not None:
        recorder.summary(
            device=torch.cuda.get_device_name() if cuda else provenance.processor_name(),
            device_uuid=provenance.card_uuid() if cuda else None,
            world_size=runtime.world,
            n_params=model.n_params(),
            n_active_params=model.n_active_params(),
            flops_per_token=model.flops_per_token(config["context"]),
            versions=provenance.versions(),
            **provenance.git_state(),
        )
    hyperparameters = {k: v for k, v in config["optimizer"].items() if k != "name"}
    try:
        optimizer = create(
            config["optimizer"]["name"],
            decay_groups(model, config["weight_decay"], on=config["weight_decay_on"]),
            lr=config["lr"],
            weight_decay=config["weight_decay"],
            implementation=config["implementation"],
            **hyperparameters,
        )
    except (ValueError, TypeError) as error:  # the library's own refusal of a hyperparameter
        raise UserError(f"optimizer={config['optimizer']['name']}: {error}") from error
    named = {**config, "order": config["data"].get("order", "windows")}
    settings = {name: named[name] for name in Settings.__dataclass_fields__}
    settings["micro_batch"] = _micro_batch(config, runtime.world)
    return {"settings": Settings(**settings), "model": model, "optimizer": optimizer}


def _micro_batch(config: dict[str, Any], world: int) -> int | None:
    """The largest divisor of a rank's share of the batch that ``micro_batch`` allows."""
    share, rest = divmod(config["batch"], world)
    if config["micro_batch"] is None or rest:
        return None
    return next(n for n in range(min(config["micro_batch"], share), 0, -1) if share % n == 0)


if __name__ == "__main__":
    exit_on_user_error(main)
