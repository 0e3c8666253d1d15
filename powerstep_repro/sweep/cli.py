"""The command line of ``python -m powerstep_repro.sweep``."""

import argparse
import shlex
from pathlib import Path

from powerstep_repro.config import Planned, expand, sweep_names
from powerstep_repro.console import table_console
from powerstep_repro.errors import CommandParser, UserError, require
from powerstep_repro.sweep import local, plan

MISSING = 3  # exit code of --missing: some runs have not ended

EPILOG = """\
Finished and diverged runs are results and are skipped; interrupted and killed ones resume where
they were; failed ones are tried again. Two sweeps on one results folder never train one run twice.
A run that fails does not stop the others; it is listed at the end with its log.

Exit code: 0 all runs are done, 1 a run failed, 130 or 143 stopped by a signal (the runs have
saved), 3 with --missing, if runs are missing.

examples:
  python -m powerstep_repro.sweep beta
  python -m powerstep_repro.sweep small model=gpt2_small,gpt2_medium seed=1,2,3 --dry-run
  python -m powerstep_repro.sweep quant profile=h100 data=tokens data.path=FOLDER --gpus-per-run 2
  python -m powerstep_repro.sweep lr profile=paper --executor slurm --partition gpu --time-min 600
  python -m powerstep_repro.sweep lr --wandb-sweep lr.yaml && wandb sweep lr.yaml
"""


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    out = CommandParser(
        prog="python -m powerstep_repro.sweep",
        description="Train all runs of a sweep file that are not there yet.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    out.add_argument("name", help=f"one of {', '.join(sweep_names())}, or the path of a YAML file")
    out.add_argument(
        "overrides",
        nargs="*",
        default=[],  # or the word would be named as required
        metavar="key=value",
        help="for every run; a list of values multiplies the runs, a key of the sweep replaces its",
    )
    what = out.add_mutually_exclusive_group()
    what.add_argument("--dry-run", action="store_true", help="show the plan, train nothing")
    what.add_argument(
        "--missing",
        action="store_true",
        help="only say whether all runs have ended: exit code 0, or 3 if some have not",
    )
    what.add_argument(
        "--wandb-sweep",
        type=Path,
        metavar="FILE",
        help="write the sweep in W&B's format (several numbered files for several grids)",
    )
    out.add_argument(
        "--executor",
        choices=("local", "slurm", "submitit-local"),
        default="local",
        help="where to train; submitit-local goes the way of slurm without a cluster, and starts "
        "all runs at once",
    )
    out.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="runs at a time (default: one a GPU, without GPUs one a core; on slurm: all)",
    )
    out.add_argument(
        "--gpus-per-run",
        type=int,
        metavar="N",
        help="spread each run over N GPUs through torchrun (default 1; on slurm, 0 asks for none)",
    )
    out.add_argument(
        "--retries",
        type=int,
        default=2,
        metavar="N",
        help="how often a run that is killed from outside is resumed within this sweep (default 2)",
    )
    slurm = out.add_argument_group("slurm")
    slurm.add_argument("--partition")
    slurm.add_argument("--account")
    slurm.add_argument(
        "--time-min",
        type=int,
        default=240,
        metavar="MIN",
        help="time limit of a job; a longer run is queued again and resumes (default 240)",
    )
    slurm.add_argument(
        "--slurm",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any other option of sbatch, e.g. constraint=a100 or mem=64GB; may be repeated",
    )
    slurm.add_argument("--no-wait", action="store_true", help="submit, and do not watch the jobs")
    return out


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Read the arguments; numbers out of range are one sentence."""
    args = parser().parse_intermixed_args(argv)
    for flag, least in (("workers", 1), ("gpus_per_run", 0), ("retries", 0), ("time_min", 1)):
        value = getattr(args, flag)
        if value is not None and value < least:
            raise UserError(f"--{flag.replace('_', '-')} is {value}; it must be at least {least}")
    if args.gpus_per_run == 0 and args.executor == "local":
        raise UserError(
            "--gpus-per-run is 0; on this machine it must be at least 1, and device=cpu leaves "
            "GPUs alone"
        )
    return args


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    args = parse(argv)
    if args.wandb_sweep:
        return write_wandb(args)
    planned = expand(args.name, args.overrides)
    if args.missing:
        missing = plan.missing(planned)
        print(f"{args.name}: {len(planned) - missing} of {len(planned)} runs are there")
        return MISSING if missing else 0
    if args.dry_run:
        local.show_plan(plan.entries(planned, need_data=False), args.name, table_console())
        return 0
    if args.executor == "local":
        return local.train_here(
            planned,
            args.name,
            workers=args.workers,
            gpus_per_run=args.gpus_per_run or 1,
            retries=args.retries,
        )
    return train_on_cluster(args, planned)


def train_on_cluster(args: argparse.Namespace, planned: list[Planned]) -> int:
    """Submit the runs that are not done through submitit and, unless told not to, watch them."""
    require("submitit", f"--executor {args.executor}", "slurm")
    import submitit

    from powerstep_repro.sweep import slurm

    if args.executor == "slurm":
        slurm.check_commands()
    console = table_console()
    todo, overview = local.planned_work(planned, args.name, console)
    if not todo:
        return 0
    folder = (todo[0].run_dir.parent.parent / ".jobs").absolute()
    gpus = 1 if args.gpus_per_run is None else args.gpus_per_run
    if args.executor == "slurm":
        executor = slurm.executor(
            folder,
            gpus_per_run=0 if todo[0].config["device"] == "cpu" else gpus,
            workers=args.workers,
            time_min=args.time_min,
            partition=args.partition,
            account=args.account,
            extra=args.slurm,
        )
    else:
        executor = submitit.LocalExecutor(folder, max_num_timeout=slurm.TIMEOUTS)
        executor.update_parameters(timeout_min=args.time_min, stderr_to_stdout=True)
    jobs = slurm.submit(todo, executor, processes=max(1, gpus))
    own = shlex.quote(str(folder))
    console.print(f"{len(jobs)} jobs submitted; their own output is in {own}", soft_wrap=True)
    if args.no_wait:
        return 0
    return local.closing(slurm.follow(todo, jobs, overview), console)


def write_wandb(args: argparse.Namespace) -> int:
    """Write the W&B sweep files and say how to start them."""
    from powerstep_repro.sweep.wandb_grid import wandb_sweeps, write

    overrides = ["logger=wandb", *args.overrides]
    expand(args.name, overrides)  # a mistake is found here, not by an agent
    for path in write(args.wandb_sweep, wandb_sweeps(args.name, overrides)):
        words = shlex.quote(str(path))
        print(f"wrote {words}; start it with: wandb sweep {words}")
    return 0
