"""What makes two configs the same run, and what makes two runs comparable.

A run's identity is a hash over the part of the config that can change its numbers. Where files
lie, how often they are written, who watches and how a batch is cut into pieces are no part of it.

**A new key** that can change numbers gets one line in ``ADDED``: its dotted name and the value
that stands for what runs did before it existed. At that value the key is left out of the
identity, so that runs from before keep their names and count as runs at that value. A new key that
cannot change numbers gets its place in ``NOT_IDENTITY`` instead.
"""

import hashlib
import json
import math
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from powerstep_repro.config.groups import groups_name
from powerstep_repro.config.paths import CONF
from powerstep_repro.config.validate import flatten

# Keys that leave the numbers of a run alone.
NOT_IDENTITY = frozenset(
    {
        "results_dir",
        "data_dir",
        "logger",
        "device",
        "micro_batch",
        "log_interval",
        "checkpoint_interval",
        "keep_checkpoints",
        "mechanism_interval",
    }
)
# Keys that came after runs had been made, each at the value that those runs had without it. An
# entry may name a whole section.
ADDED: dict[str, Any] = {
    "repeat": 0,
    "groups": {},
    "data.order": "windows",
    "optimizer.whole_blocks": False,
    "model.tied_head": True,
}
# Defaults that a model's file carries for top-level keys, which alone count.
MODEL_DEFAULTS = frozenset({"lr", "batch", "context", "steps", "micro_batch", "tokenizer"})
# What counts of a data set beside its hash: how a run reads it.
DATA_READING = frozenset({"order"})


def with_data(config: dict[str, Any], hash: str, name: str) -> dict[str, Any]:
    """Return the config with its data set's hash and name filled in, as a run records them."""
    return {**config, "data": {**config["data"], "hash": hash, "name": name}}


def identity_view(config: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a config that identifies a run.

    The data set counts by its hash, once that is known; before, by all that chooses it.
    """
    view = {key: value for key, value in config.items() if key not in NOT_IDENTITY}
    if "model" in view:
        view["model"] = {k: v for k, v in view["model"].items() if k not in MODEL_DEFAULTS}
    data = config.get("data", {})
    if data.get("hash"):
        view["data"] = {k: v for k, v in data.items() if k == "hash" or k in DATA_READING}
    else:
        view["data"] = {key: value for key, value in data.items() if key != "workers"}
    return _as_before(view)


def _as_before(node: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Leave out the keys of ``ADDED`` at their values, and sections that held nothing else."""
    out = {}
    for name, value in node.items():
        key = f"{prefix}{name}"
        if key in ADDED and canonical(value) == canonical(ADDED[key]):
            continue
        if isinstance(value, dict) and value:
            value = _as_before(value, f"{key}.")
            if not value:
                continue
        out[name] = value
    return out


def matching_view(config: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a config on which a figure matches runs: identity without data and seed.

    Runs that agree here and share a data set are replicates of each other.
    """
    view = identity_view(config)
    reading = {key: value for key, value in view.pop("data", {}).items() if key in DATA_READING}
    view.pop("seed", None)
    return view | ({"data": reading} if reading else {})


@lru_cache(maxsize=64)
def _keys_of(file: Path) -> frozenset[str]:
    """The top-level keys of a file in ``conf/``; none of a file that is not there."""
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError:
        return frozenset()
    return frozenset(content) - NOT_IDENTITY - MODEL_DEFAULTS - {"defaults", "hydra"}


def lacking_keys(config: dict[str, Any]) -> list[str]:
    """Return the keys of today that a run's config lacks and whose earlier value nobody told.

    Such a run equals no planned one, so whoever looks for runs should name it with these keys.
    """
    out = sorted(_keys_of(CONF / "config.yaml") - config.keys())
    out += sorted({"lr", "batch", "context", "steps"} - config.keys())
    for group in ("model", "optimizer"):
        own = config.get(group, {})
        known = _keys_of(CONF / group / f"{own.get('name')}.yaml")
        out += sorted(f"{group}.{key}" for key in known - own.keys())
    return [key for key in out if key not in ADDED]


def _normal(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _normal(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_normal(item) for item in value]
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        return int(value)
    return value


def canonical(view: Any) -> str:
    """Return one text for equal views: keys sorted, 1.0 as 1, 6e-4 as 0.0006."""
    return json.dumps(_normal(view), sort_keys=True, separators=(",", ":"))


def differing_keys(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Return the dotted keys in which two views differ, those of one alone included, sorted."""
    flat = [{key: canonical(value) for key, value in flatten(view)} for view in (one, other)]
    return sorted(key for key in flat[0] | flat[1] if flat[0].get(key) != flat[1].get(key))


def run_id(config: dict[str, Any]) -> str:
    """Return ten hexadecimal digits that identify the run of a config."""
    return hashlib.sha256(canonical(identity_view(config)).encode()).hexdigest()[:10]


def run_name(config: dict[str, Any]) -> str:
    """Return the run's directory name, e.g. ``gpt2_small-powerstep-lr6e-04-s1337-<id>``.

    Rules of ``groups`` follow the optimizer: ``powerstep-adamw_on_embeddings_gains``.
    """
    mantissa, exponent = f"{config['lr']:.3e}".split("e")
    lr = f"{mantissa.rstrip('0').rstrip('.')}e{exponent}"
    optimizer = config["optimizer"]["name"] + groups_name(config)
    return f"{config['model']['name']}-{optimizer}-lr{lr}-s{config['seed']}-{run_id(config)}"


def run_dir(config: dict[str, Any]) -> str:
    """Return the run's directory: ``<results_dir>/<profile>/runs/<run_name>``."""
    return f"{config['results_dir']}/{config['profile']}/runs/{run_name(config)}"
