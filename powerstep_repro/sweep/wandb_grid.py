"""Write a sweep in W&B's format, so that ``wandb agent`` can train it.

A sweep file is a union of grids and a W&B sweep is one grid, so a union becomes several of them.
Agents need no care about overlaps: a run that is finished already ends at once.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from powerstep_repro.config import axes, load_sweep

# The agent fills in ${...}: the python on its PATH, and key=value for each parameter. It also hands
# the parameters to wandb.init, where `model: gpt2_small` would take the place of the nested values
# that the run records under `model`; without that variable the run's own config stands.
COMMAND = [
    "${env}",
    "-u",
    "WANDB_SWEEP_PARAM_PATH",
    "${interpreter}",
    "-m",
    "powerstep_repro.train",
    "${args_no_hyphens}",
]


def _plain(value: Any) -> Any:
    """``value`` such that its ``str``, which is what the agent passes on, is Hydra's grammar."""
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return value
    return json.dumps(value)


def _read(override: str) -> Any:
    """The value of a ``key=value``: a number if it is one, which W&B can plot, else text."""
    text = override.partition("=")[2]
    try:
        return float(text) if any(sign in text for sign in ".eE") else int(text)
    except ValueError:
        return text


def wandb_sweeps(name: str, overrides: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The W&B sweep configurations that train what ``expand(name, overrides)`` lists.

    Args:
        name: the sweep's name or path.
        overrides: as for ``expand``; ``logger=wandb`` is what an agent's runs want.

    Returns:
        One configuration for each grid of the sweep file, without repetitions.
    """
    given = {key: [_read(value) for value in values] for key, values in axes(overrides).items()}
    grids: list[dict[str, list]] = []
    for entry in load_sweep(name)["runs"]:
        grid = {**entry["grid"], **given}
        if grid not in grids:
            grids.append(grid)
    out = []
    for index, grid in enumerate(grids, start=1):
        out.append(
            {
                "name": Path(name).stem + (f" {index} of {len(grids)}" if len(grids) > 1 else ""),
                "program": "powerstep_repro/train.py",
                "command": COMMAND,
                "method": "grid",
                "metric": {"name": "val_loss", "goal": "minimize"},
                "parameters": {
                    key: {"values": [_plain(value) for value in values]}
                    for key, values in grid.items()
                },
            }
        )
    return out


class _NoAliases(yaml.SafeDumper):
    """Writes a value that occurs twice twice, for readers that know no YAML anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def write(path: Path, sweeps: list[dict[str, Any]]) -> list[Path]:
    """Write each configuration to a file: ``path``, or ``path`` numbered if there are several."""
    if len(sweeps) == 1:
        paths = [path]
    else:
        paths = [path.with_stem(f"{path.stem}-{i}") for i in range(1, len(sweeps) + 1)]
    path.parent.mkdir(parents=True, exist_ok=True)
    for target, sweep in zip(paths, sweeps, strict=True):
        target.write_text(yaml.dump(sweep, Dumper=_NoAliases, sort_keys=False))
    return paths
