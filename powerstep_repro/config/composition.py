"""From a list of overrides to one resolved, validated config of plain types.

Hydra composes a choice of groups, once a process; overrides of single values are checked against
the composed keys and applied here. That keeps a mistake to one sentence, and composes a sweep of
hundreds of configs in the time of its few distinct choices of groups.
"""

import copy
import difflib
import itertools
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from powerstep_repro.config.groups import rules_by_kind
from powerstep_repro.config.paths import CONF, read_path
from powerstep_repro.config.validate import flatten, is_path, validate
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


class _Given(NamedTuple):
    """An override as it was typed: its key without pluses, its value or what gives several."""

    text: str
    key: str
    value: Any
    several: Override | None


@lru_cache(maxsize=4096)
def _parse(text: str) -> _Given:
    key, equals, value = text.partition("=")
    if equals and is_path(key.lstrip("+"), value):
        # Escaped, because OmegaConf would look for another key's value behind it.
        path = None if value == "null" else read_path(value).replace("${", "\\${")
        return _Given(text, key.lstrip("+"), path, None)
    try:
        override = OverridesParser.create().parse_override(text)
    except HydraException:
        raise UserError(f"cannot read the override {text!r}: write key=value") from None
    if override.type is None or override.is_delete():
        raise UserError(f"cannot delete a key: {text!r} is not an override of its value")
    if override.package is not None:
        raise UserError(f"cannot move a group: {text!r} is not of the form group=choice")
    key = override.get_key_element().lstrip("+")
    if override.is_sweep_override():
        return _Given(text, key, None, override)
    return _Given(text, key, override.value(), None)


def _check_choice(group: str, name: Any) -> str:
    known = choices(group)
    if name not in known:
        raise UserError(
            f"unknown {group} {str(name)!r}{suggestion(str(name), known)}: "
            f"choose one of {', '.join(known)}"
        )
    return name


class _Base(NamedTuple):
    """What a choice of groups composes to, before overrides of values; not to be changed."""

    config: DictConfig
    resolved: dict[str, Any]
    keys: list[str]


@lru_cache(maxsize=512)
def _base(group_choices: tuple[tuple[str, str], ...]) -> _Base:
    try:
        with initialize_config_dir(config_dir=str(CONF), version_base="1.3"):
            config = hydra_compose("config", overrides=[f"{k}={v}" for k, v in group_choices])
        resolved = OmegaConf.to_container(config, resolve=True)
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"the files in {CONF} do not compose: {reason}") from None
    _check_shape(resolved["profile"], resolved["model"]["name"])
    return _Base(config, resolved, [key for key, _ in flatten(resolved)])


def _check_shape(profile: str, model: str) -> None:
    """Refuse a model that a profile which scales models down would leave at its full size."""
    shapes = CONF / "shape" / profile
    if shapes.is_dir() and not (shapes / f"{model}.yaml").is_file():
        raise UserError(
            f"model {model} has no shape for profile {profile}: write {shapes / model}.yaml with "
            "the keys to scale down, or choose profile=paper for the whole model"
        )


def _check_key(key: str, base: _Base) -> None:
    if key in _CHOSEN_BY_GROUP:
        group = key.partition(".")[0]
        raise UserError(f"{key} cannot be set by itself: choose {group}=NAME")
    if key in base.keys:
        return
    section, dot, _ = key.partition(".")
    allowed, has = [k for k in base.keys if k not in _CHOSEN_BY_GROUP], ""
    if dot and section in GROUPS:
        prefix = f"{section}."
        allowed = [k for k in allowed if k.startswith(prefix)]
        own = ", ".join(k.removeprefix(prefix) for k in allowed)
        has = f"; {section}={base.resolved[section]['name']} has {own or 'no keys of its own'}"
    elif not dot:
        allowed += GROUPS
    raise UserError(f"unknown key {key!r}{suggestion(key, allowed)}{has}")


def compose(overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Return the resolved, validated config for a list of ``key=value`` overrides.

    Args:
        overrides: As on the command line: ``optimizer=adamw``, ``lr=6e-4``, ``optimizer.beta=0.2``.
            Of two overrides of one key the later counts.

    Raises:
        UserError: One sentence that names the key, the value and what is allowed.
    """
    groups: dict[str, str] = {}
    values: dict[str, Any] = {}
    for given in map(_parse, overrides):
        if given.several:
            raise UserError(
                f"{given.text!r} names several values: run them with --multirun or as a sweep"
            )
        if given.key in GROUPS:
            groups[given.key] = _check_choice(given.key, given.value)
        else:
            values[given.key] = given.value
    base = _base(tuple(sorted(groups.items())))
    by_kind = {key: values.pop(key) for key in list(values) if key.partition(".")[0] == "groups"}
    for key in values:
        _check_key(key, base)
    try:
        config = copy.deepcopy(base.config) if values else base.config
        for key, value in values.items():
            OmegaConf.update(config, key, value)
        resolved = validate(OmegaConf.to_container(config, resolve=True), base.resolved)
        return resolved | {"groups": rules_by_kind(resolved, by_kind, suggestion)}
    except OmegaConfBaseException as error:
        raise UserError(f"the config does not resolve: {str(error).splitlines()[0]}") from None


def axes(overrides: Sequence[str]) -> dict[str, list[str]]:
    """Split overrides into the single overrides that each key runs through.

    ``["seed=1,2", "lr=6e-4"]`` gives ``{"seed": ["seed=1", "seed=2"], "lr": ["lr=6e-4"]}``;
    Hydra's ``range(...)`` and, for groups, ``glob(...)`` are understood too. A path is one value.
    """
    out: dict[str, list[str]] = {}
    for given in map(_parse, overrides):
        key = given.key
        if not given.several:
            out[key] = [given.text]
            continue
        pattern = given.several.value()
        if isinstance(pattern, Glob):
            known = choices(key)
            out[key] = [f"{key}={name}" for name in pattern.filter(known)]
            of = f"none of {', '.join(known)}" if known else "nothing: it goes with a group alone"
            if not out[key]:
                raise UserError(f"{given.text!r} matches {of}")
        elif given.several.is_discrete_sweep():
            out[key] = [f"{key}={text}" for text in given.several.sweep_string_iterator()]
        else:
            raise UserError(f"{given.text!r} is no list of values to run through: write {key}=A,B")
        if not out[key]:
            raise UserError(
                f"{given.text!r} gives no value: write {key}=A,B or a range(START,STOP,STEP) that "
                "is not empty"
            )
    return out


def product(by_key: dict[str, list[str]]) -> list[tuple[str, ...]]:
    """Every combination of one override per key, the first key varying slowest."""
    return list(itertools.product(*by_key.values()))
