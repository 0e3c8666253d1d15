"""Synthetic runs: real run directories with numbers that are known beforehand.

Configs come from the real sweeps through ``compose``; logs, summaries and windows are written as
a run leaves them. Everything is under a test's own folder.
"""

import json
import zlib
from pathlib import Path

import numpy as np
import pytest
import yaml

from powerstep_repro.config import canonical, expand, flatten, run_name, with_data
from powerstep_repro.runs.files import write_parquet

WINDOWS = 40
# The same for all runs of a world: what pairing must remove.
_WINDOW_EFFECT = np.random.default_rng(7).normal(0, 0.5, WINDOWS)


class World:
    """A results folder that tests fill with runs."""

    def __init__(self, results: Path):
        self.results = results
        results.mkdir(parents=True)

    def add(
        self,
        sweep,
        where=None,
        *,
        profile="h100",
        overrides=(),
        losses=(3.0, 3.1, 3.2),
        first_seed=1,
        diverged_at=None,
        status=None,
        log_interval=50,
        rows_kept=None,
        parquet=True,
        windows=True,
        window_noise=0.01,
        data=("english-mix", "00aa11bb22cc33dd"),
        speed=1.0,
        log=None,
        summary=None,
    ):
        """Write a run for each loss (seeds count up) of every cell of a sweep that fits ``where``.

        Args:
            where: config values by dotted key; values of ``optimizer.name`` and ``model.name`` are
                given as ``optimizer`` and ``model``.
            losses: final validation loss by seed; None in the place of a loss gives none.
            diverged_at: the step at which the runs diverge.
            rows_kept: the log holds only its first rows.
            log: changes the list of a log's lines before it is written.
            summary: further fields of the summary.

        Returns:
            The run directories.
        """
        names = {"model": "model.name", "optimizer": "optimizer.name"}
        wanted = {names.get(k, k): v for k, v in (where or {}).items()}
        made = []
        for plan in expand(sweep, (f"profile={profile}", *overrides)):
            flat = dict(flatten(plan.config))
            if any(canonical(flat.get(k)) != canonical(v) for k, v in wanted.items()):
                continue
            for seed, loss in enumerate(losses, start=first_seed):
                config = with_data({**plan.config, "seed": seed}, data[1], data[0])
                made.append(
                    self._write(
                        config,
                        loss,
                        diverged_at,
                        status or ("diverged" if diverged_at else "finished"),
                        log_interval,
                        rows_kept,
                        parquet,
                        windows,
                        window_noise,
                        speed,
                        log,
                        summary or {},
                    )
                )
        assert made, f"no cell of {sweep} fits {where}"
        return made

    def _write(
        self,
        config,
        loss,
        diverged_at,
        status,
        log_interval,
        rows_kept,
        parquet,
        windows,
        window_noise,
        speed,
        log,
        more,
    ):
        folder = self.results / config["profile"] / "runs" / run_name(config)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
        last = diverged_at or config["steps"]
        steps = sorted({*range(log_interval, last + 1, log_interval), last})[:rows_kept]
        per_step = config["batch"] * config["context"]
        end = 4.0 if loss is None else loss
        rng = np.random.default_rng(config["seed"])
        lines = []
        for step in steps:
            train = end + 6.0 * float(np.exp(-6.0 * step / config["steps"])) + rng.normal(0, 0.02)
            row = {
                "step": step,
                "tokens": step * per_step,
                "train_loss": float("nan") if step == diverged_at else float(train),
                "lr": config["lr"],
                "grad_norm": 1.0,
                "step_ms": 200.0 / speed,
                "tokens_per_s": per_step / 0.2 * speed,
            }
            lines.append(json.dumps(row))
        text = "\n".join(log(lines) if log else lines)
        (folder / "metrics.jsonl").write_text(text + ("" if log else "\n"))
        ended = status in ("finished", "diverged")
        summary = {
            "status": status,
            "steps": steps[-1] if steps else 0,
            "final_val_loss": loss if status == "finished" else None,
            "final_train_loss": end if status == "finished" else None,
            "diverged_at": diverged_at,
            "n_params": 124_373_760,
            "optimizer_state_bytes": 124_373_760 * 4,
            "peak_memory_bytes": 20 * 2**30,
            "wall_s": 360.0,
            "device": "NVIDIA H100 80GB HBM3",
            "git_revision": "0123456789ab",
            "updated": "2026-01-01T00:00:00+00:00",
        }
        (folder / "summary.json").write_text(json.dumps(summary | more))
        if windows and status == "finished" and loss is not None:
            noise = np.random.default_rng(zlib.crc32(run_name(config).encode()))
            own = noise.normal(0, window_noise, WINDOWS)
            values = loss + _WINDOW_EFFECT - _WINDOW_EFFECT.mean() + own - own.mean()
            content = {"step": config["steps"], "losses": values.tolist()}
            (folder / "windows.json").write_text(json.dumps(content))
        if parquet and ended:
            write_parquet(folder)
        return folder


@pytest.fixture(scope="session")
def texts():
    """Returns a function that lists every text on a figure's face."""

    def collect(figure):
        found = [text.get_text() for text in figure.texts]
        for ax in figure.axes:
            found += [ax.get_title(loc) for loc in ("left", "center", "right")]
            found += [text.get_text() for text in ax.texts]
            legend = ax.get_legend()
            found += [text.get_text() for text in legend.get_texts()] if legend else []
        return [text for text in found if text]

    return collect


@pytest.fixture(scope="session")
def make_world(tmp_path_factory):
    """Returns a function that makes an empty results folder."""
    return lambda name: World(tmp_path_factory.mktemp(name) / "results")


@pytest.fixture
def world(make_world):
    """An empty results folder of the test's own."""
    return make_world("world")
