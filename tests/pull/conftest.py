"""A W&B server on 127.0.0.1, wandb's own client pointed at it, and runs to put there."""

import threading

import pytest
from wandb_server import StoredRun, WandbServer, row

from powerstep_repro.config import compose, run_id, run_name, with_data
from powerstep_repro.pull import main


@pytest.fixture(scope="session")
def running_server():
    with WandbServer() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def server(running_server, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", minversion="0.31")  # whose queries the server answers
    for name in ("WANDB_RUN_ID", "WANDB_SWEEP_ID", "WANDB_MODE", "WANDB_ENTITY", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    settings = {
        "BASE_URL": running_server.url,
        "API_KEY": "0" * 40,
        "DIR": str(tmp_path),
        "CACHE_DIR": str(tmp_path / "cache"),
        "SILENT": "true",
        "ERROR_REPORTING": "false",
    }
    for name, value in settings.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    # wandb reads its environment once a process; an earlier test may have had it read another.
    if wandb.setup().settings.base_url != running_server.url:
        wandb.teardown()
    running_server.reset()
    return running_server


@pytest.fixture(scope="session")
def config():
    """Makes a run's resolved config."""

    def make(*overrides):
        return with_data(compose(["logger=wandb", *overrides]), "e" * 16, "builtin")

    return make


@pytest.fixture
def stored(server, config):
    """Puts a run of ours on the server: its config's overrides, and how many rows it has."""

    def store(*overrides, rows=0, step=1, group=None):
        resolved = config(*overrides)
        run = StoredRun(run_id(resolved), resolved, display=run_name(resolved), group=group)
        run.log(*(row(at) for at in range(step, step * rows + 1, step)))
        return server.add(run)

    return store


@pytest.fixture
def pull(tmp_path):
    """Runs the command on me/proj; returns its exit code."""

    def run(*arguments, project="me/proj"):
        return main([project, "--results-dir", str(tmp_path / "results"), *arguments])

    return run


@pytest.fixture
def folder(tmp_path):
    """The folder of pulled runs."""
    return tmp_path / "results" / "tiny" / "runs"
