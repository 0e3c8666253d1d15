"""Train one model with one optimizer: ``python -m powerstep_repro.train [key=value ...]``.

A Hydra app. A run's directory follows from its config, so the same command again goes on with an
interrupted run and leaves a finished one alone.
"""

import argparse
import os
import shlex
import sys
import traceback
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import yaml

from nanogpt.errors import CheckpointError, OutOfMemory, UserError
from powerstep_repro.config import (
    GROUPS,
    Planned,
    axes,
    choices,
    compose,
    identity_view,
    product,
    run_dir,
    with_data,
)
from powerstep_repro.errors import CommandParser, exit_on_user_error, require, tell
from powerstep_repro.runs.files import ENDED, ERROR, read_summary
from powerstep_repro.runs.record import Recorder
from powerstep_repro.utilisation import speed_line

# What each of these says is meant for the user as it stands.
EXPECTED = (UserError, OutOfMemory, CheckpointError)

HELP = """\
usage: python -m powerstep_repro.train [key=value ...] [-m] [--cfg job]

Train one model with one optimizer, or go on with a run that was interrupted. The run directory
follows from the config: <results_dir>/<profile>/runs/<name>-<hash>. The same command again resumes
an interrupted run and leaves a finished one alone.

options:
  -m, --multirun  train every combination of key=A,B lists, as a sweep does
  --cfg job       print the config and stop
  -h, --help      this text, with the keys that the overrides given compose to

Exit code: 0 finished or diverged (a result), 1 failed, 130/143 interrupted.

Groups (group=choice):
{groups}

Keys (key=value; conf/config.yaml and the files of its groups say what each one means):

{config}
Examples:
  python -m powerstep_repro.train optimizer=adamw lr=6e-4 seed=2
  python -m powerstep_repro.train optimizer=powerstep optimizer.beta=0.2 steps=400
  python -m powerstep_repro.train -m optimizer=adamw,powerstep seed=1,2,3
  python -m powerstep_repro.train profile=h100 data=tokens data.path=FOLDER logger=wandb
  torchrun --nproc-per-node 2 -m powerstep_repro.train model=gpt2_medium"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = CommandParser(prog="python -m powerstep_repro.train", add_help=False)
    parser.add_argument("overrides", nargs="*", default=[])
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("-m", "--multirun", action="store_true")
    parser.add_argument("-c", "--cfg", choices=["job"])
    parser.add_argument("--resolve", action="store_true", help=argparse.SUPPRESS)  # as ever
    args, unknown = parser.parse_known_intermixed_args(argv)
    if unknown:
        key, _, value = unknown[0].lstrip("-").partition("=")
        raise UserError(
            f"unknown option {unknown[0]!r}: write {key}={value or 'VALUE'}, or see --help"
        )
    if args.multirun and not args.help:
        if args.cfg:
            raise UserError("--cfg shows one config: leave --multirun out")
        return _grid(args.overrides)
    config = compose(args.overrides)
    text = yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
    if args.help:
        groups = "\n".join(f"  {group}: {', '.join(choices(group))}" for group in GROUPS)
        print(HELP.format(groups=groups, config=text))
    elif args.cfg:
        print(text, end="")
    else:
        return run(config)
    return 0


def _grid(overrides: Sequence[str]) -> int:
    """Hand every combination of the overrides' values to the sweep's pool."""
    if "RANK" in os.environ:
        raise UserError(
            "--multirun cannot run under torchrun, where every rank would start its own grid: "
            "use python -m powerstep_repro.sweep NAME --gpus-per-run N"
        )
    from powerstep_repro.sweep.local import train_here

    return train_here([Planned(each, compose(each)) for each in product(axes(overrides))], "grid")


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
        from powerstep_repro.models.count import check_kinds

        data = resolve(config["data"], config["data_dir"])
        # Before there is a folder: what cannot be built is no run.
        check(config["model"])
        check_kinds(config)
        data.check_vocabulary(config["model"]["vocab_size"])
        data.check_context(config["context"])
        config = with_data(config, data.hash, data.name)
        folder = Path(run_dir(config))
        summary = read_summary(folder)
        if summary.get("status") in ENDED:
            if rank == 0:
                tell(f"already {_outcome(summary, folder)}")
            return 0
        return _train(config, data, folder, rank)
    except EXPECTED as error:
        # Bad input is seen by all ranks, other trouble perhaps by one alone.
        if rank == 0 or not isinstance(error, UserError):
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
    return f"{result}, {summary.get('wall_s') or 0:.1f} s: {shlex.quote(str(folder))}"


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

    # The rank that tells of the run knows whether it was started before.
    again = recorder is not None and bool(recorder.previous)
    with runtime, Progress(again) as progress:
        # A package half imported, and torch imports some of its own late, would end the run with
        # an error of that package's instead.
        with StopSignals() as signals:
            from nanogpt.checkpoint import CheckpointStore
            from nanogpt.loop import train
            from powerstep_repro.optim import state_bytes
            from powerstep_repro.runs import provenance

            parts = _build(config, runtime, recorder)
        obey(signals.received)
        watch = None
        if recorder is not None and config["mechanism_interval"]:
            from powerstep_repro.optim.mechanism import Mechanism, seen_often

            often = seen_often(data.train, config["model"]["vocab_size"])
            interval, model, optimizer = (
                config["mechanism_interval"], parts["model"], parts["optimizer"],
            )  # fmt: skip
            watch = Mechanism(model, optimizer, interval, often, recorder.mechanism)
        result = train(
            **parts,
            watch=watch,
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

    from nanogpt.runtime import seeded
    from nanogpt.settings import Settings
    from powerstep_repro import models
    from powerstep_repro.optim import create_for_model
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
            **provenance.code_state(),
        )
    hyperparameters = {k: v for k, v in config["optimizer"].items() if k != "name"}
    try:
        optimizer = create_for_model(
            config["optimizer"]["name"],
            model,
            config["groups"],
            lr=config["lr"],
            weight_decay=config["weight_decay"],
            weight_decay_on=config["weight_decay_on"],
            implementation=config["implementation"],
            **hyperparameters,
        )
    except (ValueError, TypeError) as error:  # the library's own refusal of a hyperparameter
        raise UserError(f"optimizer={config['optimizer']['name']}: {error}") from error
    named = {**config, "order": config["data"]["order"]}
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
