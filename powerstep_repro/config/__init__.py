"""From overrides to a resolved config, from a sweep file to a list of them, and their identity."""

from powerstep_repro.config.composition import axes, choices, compose, product, suggestion
from powerstep_repro.config.identity import (
    canonical,
    differing_keys,
    identity_view,
    matching_view,
    run_dir,
    run_id,
    run_name,
    with_data,
)
from powerstep_repro.config.paths import CONF, ROOT, SWEEPS
from powerstep_repro.config.sweeps import Planned, SweepRefusal, expand, load_sweep, sweep_names
from powerstep_repro.config.validate import flatten

__all__ = [
    "CONF",
    "ROOT",
    "SWEEPS",
    "Planned",
    "SweepRefusal",
    "axes",
    "canonical",
    "choices",
    "compose",
    "differing_keys",
    "expand",
    "flatten",
    "identity_view",
    "load_sweep",
    "matching_view",
    "product",
    "run_dir",
    "run_id",
    "run_name",
    "suggestion",
    "sweep_names",
    "with_data",
]
