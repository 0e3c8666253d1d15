"""What makes two configs the same run, and what makes two runs comparable.

A run's identity is a hash over the part of the config that can change its numbers. Where files
lie, how often they are written, who watches and how a batch is cut into pieces are no part of it.
"""

import hashlib
import json
import math
from typing import Any

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
    }
)
# Keys that came later, with what runs before them had: left out at that value.
LATER = {"optimizer": {"whole_blocks": False}}
# Defaults that a model's file carries for top-level keys, which alone count.
MODEL_DEFAULTS = frozenset({"lr", "batch", "context", "steps", "micro_batch", "tokenizer"})


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
    for section, defaults in LATER.items():
        if section in view:
            view[section] = {
                k: v for k, v in view[section].items() if k not in defaults or v != defaults[k]
            }
    data = config.get("data", {})
    if data.get("hash"):
        view["data"] = {"hash": data["hash"]}
    else:
        view["data"] = {key: value for key, value in data.items() if key != "workers"}
    return view


def matching_view(config: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a config on which a figure matches runs: identity without data and seed.

    Runs that agree here and share a data set are replicates of each other.
    """
    view = identity_view(config)
    view.pop("data", None)
    view.pop("seed", None)
    return view


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
    """Return the run's directory name, e.g. ``gpt2_small-powerstep-lr6e-04-s1337-<id>``."""
    mantissa, exponent = f"{config['lr']:.3e}".split("e")
    lr = f"{mantissa.rstrip('0').rstrip('.')}e{exponent}"
    return (
        f"{config['model']['name']}-{config['optimizer']['name']}-lr{lr}-s{config['seed']}-"
        f"{run_id(config)}"
    )


def run_dir(config: dict[str, Any]) -> str:
    """Return the run's directory: ``<results_dir>/<profile>/runs/<run_name>``."""
    return f"{config['results_dir']}/{config['profile']}/runs/{run_name(config)}"
