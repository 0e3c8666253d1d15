"""Write a sweep in W&B's format, so that ``wandb agent`` can train it.

A sweep file is a union of grids and a W&B sweep is one grid, so a union becomes several of them.
Agents need no care about overlaps: a run that is finished already ends at once.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from powerstep_repro.config import axes, is_path, load_sweep

# The agent fills in ${...}: the python on its PATH, and key=value for each parameter. It also hands
# the parameters to wandb.init, where `model: gpt2_small` would take the place of the nested values
# that the run records under `model`; without that variable the run's own config stands.
COMMAND = "${env} -u WANDB_SWEEP_PARAM_PATH ${interpreter} -m powerstep_repro.train"
COMMAND += " ${args_no_hyphens}"


def _plain(value: Any) -> Any:
    """``value`` such that its ``str``, which is what the agent passes on, is Hydra's grammar."""
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return value
    return json.dumps(value)


def _read(override: str) -> Any:
    """The value of a ``key=value``: a number if it is one, which W&B can plot, else text."""
    key, _, text = override.partition("=")
    if is_path(key, text):
        return text
    try:
        return float(text) if any(sign in text for sign in ".eE") else int(text)
    except ValueError:
        return text


def wandb_sweeps(name: str, overrides: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the W&B sweep configurations that train what ``expand(name, overrides)`` lists.

    Args:
        name: The sweep's name or path.
        overrides: As for ``expand``; ``logger=wandb`` is what an agent's runs want.

    Returns:
        One configuration for each grid of the sweep file, without repetitions.
    """
    given = {key: [_read(value) for value in values] for key, values in axes(overrides).items()}
    grids: list[dict[str, list]] = []
    for grid in load_sweep(name):
        if (grid := {**grid, **given}) not in grids:
            grids.append(grid)
    return [
        {
            "name": Path(name).stem + (f" {index} of {len(grids)}" if len(grids) > 1 else ""),
            "program": "powerstep_repro/train.py",
            "command": COMMAND.split(),
            "method": "grid",
            "metric": {"name": "val_loss", "goal": "minimize"},
            "parameters": {key: {"values": [*map(_plain, grid[key])]} for key in grid},
        }
        for index, grid in enumerate(grids, start=1)
    ]


def write(path: Path, sweeps: list[dict[str, Any]]) -> list[Path]:
    """Write each configuration to a file: ``path``, or ``path`` numbered if there are several."""
    paths = [path]
    if len(sweeps) > 1:
        paths = [path.with_stem(f"{path.stem}-{i}") for i in range(1, len(sweeps) + 1)]
    path.parent.mkdir(parents=True, exist_ok=True)
    for target, sweep in zip(paths, sweeps, strict=True):
        target.write_text(yaml.safe_dump(sweep, sort_keys=False, allow_unicode=True))
    return paths
