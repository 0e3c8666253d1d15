"""Guards the W&B form of a sweep: valid, the same runs, and commands that an agent can run."""

import itertools
import json
import os
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
        ("beta", ("optimizer.beta=0.1", "model=gpt2_small")),
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


def test_the_schema_of_wandbs_own_scheduler_accepts_every_sweep():
    # A part of the package by name, since our folder of sweep files would import as well.
    pytest.importorskip("sweeps.config", reason="the extra wandb[sweeps] needs numpy 1")
    import sweeps

    for name in sweep_names():
        for sweep in wandb_grid.wandb_sweeps(name):
            assert sweeps.schema_violations_from_proposed_config(sweep) == []


def test_a_union_of_grids_is_one_numbered_file_a_grid(tmp_path):
    one = wandb_grid.write(tmp_path / "a" / "beta.yaml", wandb_grid.wandb_sweeps("beta"))
    assert [path.name for path in one] == ["beta.yaml"]
    several = wandb_grid.write(tmp_path / "quant.yaml", wandb_grid.wandb_sweeps("quant"))
    assert [path.name for path in several] == ["quant-1.yaml", "quant-2.yaml", "quant-3.yaml"]


def test_wandbs_agent_starts_the_train_command(tmp_path, monkeypatch):
    """The agent's own code, with a stand-in for the train command that writes down its call.

    The sweep's parameters must not reach wandb.init, where they would take the place of the nested
    config that a run records under ``model`` and ``optimizer``.
    """
    wandb_agent = pytest.importorskip("wandb.wandb_agent")
    package = tmp_path / "powerstep_repro"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "train.py").write_text(
        "import json, os, sys\njson.dump([sys.argv[1:], dict(os.environ)], open('called', 'w'))\n"
    )
    (tmp_path / "python").symlink_to(sys.executable)  # ${interpreter} is the first python on PATH
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for name in ("WANDB_DIR", "WANDB_RUN_ID", "WANDB_SWEEP_PARAM_PATH"):
        monkeypatch.setenv(name, str(tmp_path))  # the agent sets them in this process
    sweep = wandb_grid.wandb_sweeps("beta", ("logger=wandb", "seed=3"))[0]
    agent = wandb_agent.Agent(api=None, queue=None, sweep_id="sweep")
    agent._sweep_command = sweep["command"]
    args = {key: {"value": p["values"][0]} for key, p in sweep["parameters"].items()}
    agent._command_run({"run_id": "abc", "program": sweep["program"], "args": args})
    [process] = agent._run_processes.values()
    assert process.wait(20) == 0
    arguments, environment = json.loads((tmp_path / "called").read_text())
    assert arguments == [
        *("model=gpt2_medium", "optimizer=powerstep", "optimizer.beta=0.0"),
        *("logger=wandb", "seed=3"),
    ]
    assert "WANDB_SWEEP_PARAM_PATH" not in environment
    assert environment["WANDB_RUN_ID"] == "abc"
