"""Sweep files: a union of grids over override keys, expanded to a list of configs.

    runs:
      - grid: {model: [gpt2_small], optimizer: [adamw, powerstep]}
      - grid: {optimizer: [powerstep], optimizer.beta: [0.0, 0.1, 0.2]}

A key that no grid names keeps its default, so no ``lr`` means the model's own.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from powerstep_repro.config.composition import axes, compose, product, suggestion
from powerstep_repro.config.identity import canonical, identity_view
from powerstep_repro.config.paths import SWEEPS
from powerstep_repro.config.validate import is_path
from powerstep_repro.errors import UserError

SWEEP_KEYS = ("runs", "title", "description")


@dataclass(frozen=True)
class Planned:
    """One run of a sweep: the overrides that start it and the config they compose to."""

    overrides: tuple[str, ...]
    config: dict[str, Any]


def sweep_names() -> list[str]:
    """The names of the sweep files, sorted."""
    return sorted(path.stem for path in SWEEPS.glob("*.yaml"))


def _override(key: str, value: Any) -> str:
    """``key=value`` as the commands read it: a path as it stands, the rest in Hydra's grammar."""
    if isinstance(value, str) and is_path(key, value):
        return f"{key}={value}"
    if isinstance(value, str) and not re.fullmatch(r"[\w./:-]+", value):
        return f"{key}='{value}'" if "'" not in value else f"{key}={json.dumps(value)}"
    if isinstance(value, list):
        return f"{key}=[{','.join(_override('', item)[1:] for item in value)}]"
    if value is None or isinstance(value, bool):
        return f"{key}={json.dumps(value)}"
    return f"{key}={value}"


def _file(name: str) -> Path:
    return Path(name) if name.endswith((".yaml", ".yml")) else SWEEPS / f"{name}.yaml"


def load_sweep(name: str) -> list[dict[str, list[Any]]]:
    """Read a sweep file, by name or by path: its grids, each as ``{key: [values]}``."""
    path = _file(name)
    if not path.is_file():
        known = sweep_names()
        wrong = f"there is no sweep file {name!r}"
        if path != Path(name):
            wrong = f"unknown sweep {name!r}{suggestion(name, known)}"
        raise UserError(
            f"{wrong}: choose one of {', '.join(known)}, or give the path of a YAML file"
        )
    try:
        # OmegaConf reads 6e-4 as a number, which plain YAML does not.
        content = OmegaConf.to_container(OmegaConf.load(path))
    except (YAMLError, OmegaConfBaseException, UnicodeDecodeError, OSError) as error:
        raise UserError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict) or not isinstance(content.get("runs"), list):
        raise UserError(f"{path} must hold a list 'runs' of grids: runs: [{{grid: {{...}}}}]")
    for key in content.keys() - set(SWEEP_KEYS):
        raise UserError(
            f"{path}: unknown key {str(key)!r}{suggestion(str(key), list(SWEEP_KEYS))}: "
            f"a sweep file holds {', '.join(SWEEP_KEYS)}"
        )
    if not content["runs"]:
        raise UserError(f"{path} plans no runs: 'runs' is empty")
    return [_grid(path, entry) for entry in content["runs"]]


def _grid(path: Path, entry: Any) -> dict[str, list[Any]]:
    if not isinstance(entry, dict) or set(entry) != {"grid"}:
        raise UserError(f"{path}: every entry of 'runs' must be {{grid: {{...}}}}, got {entry}")
    if not isinstance(entry["grid"], dict):
        raise UserError(f"{path}: a grid must map keys to lists of values, got {entry['grid']!r}")
    grid = {}
    for key, values in entry["grid"].items():
        if not isinstance(key, str):
            raise UserError(f"{path}: the grid's key {key!r} is no name of a config key")
        if values == []:
            raise UserError(f"{path}: the grid's key {key!r} needs at least one value")
        grid[key] = values if isinstance(values, list) else [values]
    return grid


def expand(name: str, overrides: list[str] | tuple[str, ...] = ()) -> list[Planned]:
    """Expand a sweep file to its list of runs, without duplicates.

    Args:
        name: A sweep's name, or the path of a sweep file.
        overrides: Apply to every run. A list of values (``seed=1,2,3``) multiplies the runs. An
            override of a key that a grid runs through replaces that axis: ``lr=1e-3`` on a sweep
            over lr leaves one rate.

    Returns:
        The runs in the file's order; of runs with one identity the first.
    """
    given = axes(overrides)
    planned: dict[str, Planned] = {}
    for grid in load_sweep(name):
        by_key = {key: [_override(key, value) for value in grid[key]] for key in grid}
        for combination in product({**by_key, **given}):
            try:
                config = compose(combination)
            except UserError as error:
                raise _explained(error, name, combination, grid, given) from None
            planned.setdefault(canonical(identity_view(config)), Planned(combination, config))
    return list(planned.values())


def _explained(
    error: UserError, name: str, combination: tuple[str, ...], grid: dict, given: dict
) -> UserError:
    """Say whose mistake it is: the overrides', the file's, or that the two do not go together."""

    def fails(words: list[str]) -> bool:
        try:
            compose(words)
        except UserError:
            return True
        return False

    key = {word: word.partition("=")[0] for word in combination}
    if fails([word for word in combination if key[word] in given]):
        return error
    for override in combination:
        # Such as optimizer.beta, which a grid varies, where optimizer=adamw was given.
        own = [k for k in grid if k.startswith(f"{key[override]}.") and k not in given]
        others = [word for word in combination if key[word] not in own]
        if key[override] in given and own and not fails(others):
            choice = override.partition("=")[2]
            return UserError(
                f"sweep {name} cannot take {override}: it varies {', '.join(own)}, which {choice} "
                "does not have"
            )
    return UserError(f"{_file(name)}: {error}")
