"""From a list of overrides to one resolved, validated config of plain types.

Hydra composes the groups; overrides of single values are checked against the composed keys and
applied here. That keeps a mistake to one sentence, and composes a sweep of hundreds of configs
in the time of its few distinct choices of groups.
"""

import copy
import difflib
import itertools
from functools import lru_cache
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from powerstep_repro.config.paths import CONF
from powerstep_repro.config.validate import flatten, validate
from powerstep_repro.errors import UserError

GROUPS = ("profile", "model", "optimizer", "data", "logger")
# Chosen by group; setting one by value would leave the rest of its group behind.
_CHOSEN_BY_GROUP = {"model.name", "model.family", "optimizer.name", "data.kind", "logger.name"}


def choices(group: str) -> list[str]:
    """The names that ``group=NAME`` accepts, sorted."""
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def suggestion(word: str, known: list[str]) -> str:
    """``" (did you mean 'x'?)"`` for the nearest known word, or nothing.

    Of keys the last parts are compared: beta is near to optimizer.beta, and optimizer.foo to no
    key for having the group in common. Of two that end alike the one of fewer parts is meant.
    """
    by_ending: dict[str, str] = {}
    for name in sorted(known, key=lambda name: name.count(".")):
        by_ending.setdefault(name.rpartition(".")[2], name)
    near = difflib.get_close_matches(word.rpartition(".")[2], by_ending, n=1)
    return f" (did you mean '{by_ending[near[0]]}'?)" if near else ""


def _parse(overrides: list[str]) -> list[Override]:
    parsed = []
    for text in overrides:
        try:
            override = OverridesParser.create().parse_override(text)
        except HydraException:
            raise UserError(f"cannot read the override {text!r}: write key=value") from None
        if override.type is None or override.is_delete():
            raise UserError(f"cannot delete a key: {text!r} is not an override of its value")
        if override.package is not None:
            raise UserError(f"cannot move a group: {text!r} is not of the form group=choice")
        parsed.append(override)
    return parsed


def _check_choice(group: str, name: Any) -> str:
    known = choices(group)
    if name not in known:
        raise UserError(
            f"unknown {group} {str(name)!r}{suggestion(str(name), known)}: "
            f"choose one of {', '.join(known)}"
        )
    return name


@lru_cache(maxsize=512)
def _base(group_choices: tuple[tuple[str, str], ...]) -> DictConfig:
    """The config for a choice of groups, before overrides of values; not to be changed."""
    with initialize_config_dir(config_dir=str(CONF), version_base="1.3"):
        try:
            return hydra_compose("config", overrides=[f"{k}={v}" for k, v in group_choices])
        except (HydraException, OmegaConfBaseException, YAMLError) as error:
            reason = " ".join(str(error).split())
            raise UserError(f"the files in {CONF} do not compose: {reason}") from None


def _known_keys(base: DictConfig) -> list[str]:
    return [key for key, _ in flatten(OmegaConf.to_container(base, resolve=False))]


def _check_key(key: str, base: DictConfig, known: list[str]) -> None:
    if key in _CHOSEN_BY_GROUP:
        group = key.partition(".")[0]
        raise UserError(f"{key} cannot be set by itself: choose {group}=NAME")
    if key in known:
        return
    section, dot, _ = key.partition(".")
    allowed, has = [k for k in known if k not in _CHOSEN_BY_GROUP], ""
    if dot and section in GROUPS:
        prefix = f"{section}."
        allowed = [k for k in allowed if k.startswith(prefix)]
        own = ", ".join(k.removeprefix(prefix) for k in allowed)
        has = f"; {section}={base[section].name} has {own or 'no keys of its own'}"
    elif not dot:
        allowed += GROUPS
    raise UserError(f"unknown key {key!r}{suggestion(key, allowed)}{has}")


def compose(overrides: list[str] | tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the resolved, validated config for a list of ``key=value`` overrides.

    Args:
        overrides: As on the command line: ``optimizer=adamw``, ``lr=6e-4``, ``optimizer.beta=0.2``.
            Of two overrides of one key the later counts.

    Raises:
        UserError: One sentence that names the key, the value and what is allowed.
    """
    groups: dict[str, str] = {}
    values: dict[str, Any] = {}
    for override in _parse(list(overrides)):
        key = override.key_or_group
        if override.is_sweep_override():
            raise UserError(
                f"{override.input_line!r} names several values: "
                "run them with --multirun or as a sweep"
            )
        if key in GROUPS:
            groups[key] = _check_choice(key, override.value())
        else:
            values[override.get_key_element().lstrip("+")] = override.value()
    base = _base(tuple(sorted(groups.items())))
    known = _known_keys(base)
    config = copy.deepcopy(base)
    for key, value in values.items():
        _check_key(key, base, known)
        OmegaConf.update(config, key, value)
    try:
        resolved = OmegaConf.to_container(config, resolve=True)
        return validate(resolved, OmegaConf.to_container(base, resolve=True))
    except OmegaConfBaseException as error:
        raise UserError(f"the config does not resolve: {str(error).splitlines()[0]}") from None


def axes(overrides: list[str] | tuple[str, ...]) -> dict[str, list[str]]:
    """Split overrides into the single overrides that each key runs through.

    ``["seed=1,2", "lr=6e-4"]`` gives ``{"seed": ["seed=1", "seed=2"], "lr": ["lr=6e-4"]}``;
    Hydra's ``range(...)`` and, for groups, ``glob(...)`` are understood too.
    """
    out: dict[str, list[str]] = {}
    for override in _parse(list(overrides)):
        key = override.get_key_element()
        if not override.is_sweep_override():
            out[key] = [override.input_line]
            continue
        value = override.value()
        if isinstance(value, Glob):
            known = choices(override.key_or_group)
            out[key] = [f"{key}={name}" for name in value.filter(known)]
            if not out[key]:
                of = (
                    f"none of {', '.join(known)}"
                    if known
                    else "nothing: it goes with a group alone"
                )
                raise UserError(f"{override.input_line!r} matches {of}")
        elif override.is_discrete_sweep():
            out[key] = [f"{key}={text}" for text in override.sweep_string_iterator()]
        else:
            raise UserError(
                f"{override.input_line!r} is no list of values to run through: write {key}=A,B"
            )
        if not out[key]:
            raise UserError(
                f"{override.input_line!r} gives no value: write {key}=A,B or a range(START,STOP,"
                "STEP) that is not empty"
            )
    return out


def product(by_key: dict[str, list[str]]) -> list[tuple[str, ...]]:
    """Every combination of one override per key, the first key varying slowest."""
    return list(itertools.product(*by_key.values()))
