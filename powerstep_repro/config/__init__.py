"""From overrides to a resolved config, from a sweep file to a list of them, and their identity."""

from powerstep_repro.config.composition import GROUPS, axes, choices, compose, product, suggestion
from powerstep_repro.config.groups import groups_label
from powerstep_repro.config.identity import (
    canonical,
    differing_keys,
    identity_view,
    lacking_keys,
    matching_view,
    run_dir,
    run_id,
    run_name,
    with_data,
)
from powerstep_repro.config.paths import CONF, ROOT, SWEEPS, read_path
from powerstep_repro.config.sweeps import Planned, expand, load_sweep, sweep_names
from powerstep_repro.config.validate import flatten, is_path

__all__ = [
    "CONF",
    "GROUPS",
    "ROOT",
    "SWEEPS",
    "Planned",
    "axes",
    "canonical",
    "choices",
    "compose",
    "differing_keys",
    "expand",
    "flatten",
    "groups_label",
    "identity_view",
    "is_path",
    "lacking_keys",
    "load_sweep",
    "matching_view",
    "product",
    "read_path",
    "run_dir",
    "run_id",
    "run_name",
    "suggestion",
    "sweep_names",
    "with_data",
]
