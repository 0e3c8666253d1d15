"""Guards the W&B form of a sweep: valid, the same runs, and commands that an agent can run."""

import itertools
import sys

import pytest
import yaml

from powerstep_repro.config import compose, expand, run_id, sweep_names
from powerstep_repro.sweep import wandb_grid

wandb_utils = pytest.importorskip("wandb.sdk.launch.sweeps.utils")


def agent_commands(sweep):
    """The commands that W&B's agent builds for a grid, by its own code."""
    parameters = sweep["parameters"]
    for values in itertools.product(*(p["values"] for p in parameters.values())):
        args = {key: {"value": value} for key, value in zip(parameters, values, strict=True)}
        macros = wandb_utils.create_sweep_command_args({"args": args})
        macros |= {"env": ["/usr/bin/env"], "interpreter": [sys.executable]}
        out = []
        for part in wandb_utils.create_sweep_command(list(sweep["command"])):
            is_macro = part.startswith("${") and part.endswith("}")
            out += macros[part[2:-1]] if is_macro else [part]
        yield out


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("gamma", ()),
        ("quant_parts", ()),
        ("seeds", ("profile=h100", "precision=bf16")),
        ("quant", ("profile=h100", "model=gpt2_small", "logger.project=mine")),
        ("beta", ("seed=1,2", "lr=6e-4", "grad_clip=0", "eval_windows=null", "compile=true")),
        ("beta", ("optimizer.beta=0.1", "model=gpt2_small", "results_dir=2026.10")),
    ],
)
def test_the_grids_hold_the_runs_of_the_sweep(name, overrides, tmp_path):
    overrides = ["logger=wandb", *overrides]
    paths = wandb_grid.write(tmp_path / "sweep.yaml", wandb_grid.wandb_sweeps(name, overrides))
    found = set()
    for path in paths:
        sweep = wandb_utils.load_sweep_config(str(path))
        assert sweep == yaml.safe_load(path.read_text())
        for command in agent_commands(sweep):
            module = command.index("powerstep_repro.train")
            config = compose(command[module + 1 :])
            assert config["logger"]["name"] == "wandb"
            assert config["results_dir"] in ("results", "2026.10")
            found.add(run_id(config))
    assert found == {run_id(planned.config) for planned in expand(name, overrides)}


@pytest.mark.parametrize("name", sweep_names())
def test_wandb_finds_nothing_wrong(name):
    public = pytest.importorskip("wandb.apis.public.sweeps")
    for sweep in wandb_grid.wandb_sweeps(name):
        assert public._validate_config_and_fill_distribution(sweep) == sweep
        assert sweep["method"] == "grid"
        assert all(p["values"] for p in sweep["parameters"].values())
        for values in (p["values"] for p in sweep["parameters"].values()):
            assert len(values) == len(set(map(str, values)))
            assert all(isinstance(value, str | int | float) for value in values)


def test_a_union_of_grids_is_one_numbered_file_a_grid(tmp_path):
    one = wandb_grid.write(tmp_path / "a" / "beta.yaml", wandb_grid.wandb_sweeps("beta"))
    assert [path.name for path in one] == ["beta.yaml"]
    several = wandb_grid.write(tmp_path / "quant.yaml", wandb_grid.wandb_sweeps("quant"))
    assert [path.name for path in several] == ["quant-1.yaml", "quant-2.yaml", "quant-3.yaml"]
