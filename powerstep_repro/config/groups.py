"""``groups.KIND.KEY=value``: kinds of a model's parameters that another rule steps.

``groups.embeddings.name=adamw groups.embeddings.lr=2.4e-3`` gives AdamW to the embeddings. Every
other key is one of that optimizer's (``conf/optimizer/NAME.yaml``), ``lr`` or ``weight_decay``;
what is left out has the optimizer's default, and the run's ``lr`` and ``weight_decay``.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from omegaconf import OmegaConf

from powerstep_repro.config.paths import CONF
from powerstep_repro.config.validate import rule_for
from powerstep_repro.errors import UserError
from powerstep_repro.paper import optimizer_label

#: Kind -> its name for people; ``powerstep_repro.optim.kinds`` says what each one holds.
KINDS = {
    "token_embeddings": "token embedding",
    "positions": "positions",
    "embeddings": "embeddings",
    "head": "head",
    "gains": "gains",
    "matrices": "matrices",
}


def rules_by_kind(
    config: Mapping[str, Any], given: Mapping[str, Any], suggestion: Callable[[str, list], str]
) -> dict[str, dict[str, Any]]:
    """Return the ``groups`` of a validated config.

    Args:
        config: The rest of it.
        given: Values by dotted key, each beginning with ``groups``. ``null`` for a name takes the
            kind's other keys with it, so that a sweep can run through ``[null, adamw]``.
        suggestion: Gives a hint at the nearest known word.

    Raises:
        UserError: A key, kind, optimizer or value that does not exist or is out of range.
    """
    by_kind: dict[str, dict[str, Any]] = {}
    for key, value in given.items():
        _, kind, name = (*key.split(".", 2), "", "")[:3]
        if kind not in KINDS or not name:
            hint = "" if kind in KINDS or not kind else suggestion(kind, list(KINDS))
            raise UserError(
                f"unknown key {key!r}{hint}: write groups.KIND.name=OPTIMIZER, KIND being one of "
                f"{', '.join(KINDS)}"
            )
        by_kind.setdefault(kind, {})[name] = value
    return {
        kind: _rule(kind, dict(by_kind[kind]), config, suggestion)
        for kind in KINDS
        if by_kind.get(kind, {}).get("name", "") is not None and kind in by_kind
    }


def _rule(
    kind: str,
    own: dict[str, Any],
    config: Mapping[str, Any],
    suggestion: Callable[[str, list], str],
) -> dict[str, Any]:
    prefix, known = f"groups.{kind}.", sorted(path.stem for path in (CONF / "optimizer").iterdir())
    if "name" not in own:
        raise UserError(f"{prefix}{next(iter(own))} needs {prefix}name=OPTIMIZER beside it")
    name = own.pop("name")
    if name not in known:
        raise UserError(
            f"unknown optimizer {str(name)!r} in {prefix}name{suggestion(str(name), known)}: "
            f"choose one of {', '.join(known)}"
        )
    shared = {key: config[key] for key in ("lr", "weight_decay")}
    defaults = {**_settings(name), **shared}
    values = {}
    for key in own:
        if key not in defaults:
            raise UserError(
                f"unknown key {prefix + key!r}{suggestion(key, [prefix + k for k in defaults])}; "
                f"{prefix}name={name} has {', '.join(defaults)}"
            )
    for key, default in defaults.items():
        rule = rule_for(key if key in shared else f"optimizer.{key}", default)
        value = own.get(key, default)
        values[key] = rule.apply(prefix + key, value) if rule else value
    return {"name": name, **values}


@lru_cache(maxsize=64)
def _settings(name: str) -> dict[str, Any]:
    """The optimizer's hyperparameters at their defaults; not to be changed."""
    settings = OmegaConf.to_container(OmegaConf.load(CONF / "optimizer" / f"{name}.yaml"))
    return {key: value for key, value in settings.items() if key != "name"}


def groups_name(config: Mapping[str, Any]) -> str:
    """Name a config's ``groups`` in a file's name: ``-adamw_on_embeddings_gains``; or nothing."""
    by_optimizer = _by_optimizer(config).items()
    return "".join(f"-{name}_on_{'_'.join(kinds)}" for name, kinds in by_optimizer)


def groups_label(config: Mapping[str, Any]) -> str:
    """Name a config's ``groups`` for people: ``, AdamW on embeddings and gains``; or nothing."""
    out = ""
    for name, kinds in _by_optimizer(config).items():
        *first, last = (KINDS[kind] for kind in kinds)
        out += f", {optimizer_label(name)} on {', '.join(first)}{' and ' if first else ''}{last}"
    return out


def _by_optimizer(config: Mapping[str, Any]) -> dict[str, list[str]]:
    kinds: dict[str, list[str]] = {}
    for kind, rule in config.get("groups", {}).items():
        kinds.setdefault(rule["name"], []).append(kind)
    return kinds
