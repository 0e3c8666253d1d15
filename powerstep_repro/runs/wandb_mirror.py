"""A copy of a run in Weights & Biases, for those who like to watch. It is never needed.

Local files are the truth, so nothing that goes wrong here may touch the training: the first
failure is one warning, after which the mirror stays silent.
"""

import logging
import os
from collections.abc import Callable
from typing import Any

from powerstep_repro.config.identity import run_id, run_name

logger = logging.getLogger(__name__)

_SETTINGS = {"console": "off", "init_timeout": 60, "finish_timeout": 300}
# Set by a W&B agent, which has chosen the run's id already.
_AGENT_VARIABLES = ("WANDB_RUN_ID", "WANDB_SWEEP_ID")


class WandbMirror:
    """Mirrors rows and summary of one run; made when ``logger=wandb``.

    Args:
        config: The run's resolved config: its ``logger`` section chooses project, entity, mode
            and group, and all of it becomes the W&B run's config.
    """

    def __init__(self, config: dict[str, Any]):
        self._run: Any = None
        self._sent = 0
        self._guarded(lambda: self._start(config))

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        # SystemExit too: wandb leaves through it when a login is refused.
        except (Exception, SystemExit) as error:
            self._run = None
            what = " ".join(f"{type(error).__name__}: {error}".split())
            logger.warning("W&B failed, the run goes on without it (%s)", what[:300])

    def _start(self, config: dict[str, Any]) -> None:
        import wandb

        options = config["logger"]
        known = getattr(wandb.Settings, "model_fields", {})
        run = wandb.init(
            project=options["project"],
            entity=options["entity"],
            mode=options["mode"],
            group=options["group"],
            # The run's own id: a run that is started again goes on in the same W&B run.
            id=None if any(map(os.environ.get, _AGENT_VARIABLES)) else run_id(config),
            resume="allow",
            name=run_name(config),
            config=config,
            settings=wandb.Settings(**{k: v for k, v in _SETTINGS.items() if k in known}),
        )
        run.define_metric("step")
        run.define_metric("*", step_metric="step")
        # W&B accepts steps in rising order only; a resumed run repeats some it has already.
        self._sent = max(run.step - 1, 0)
        self._run = run

    def log(self, row: dict[str, Any]) -> None:
        """Send a row, unless one of its step or a later one has been sent."""
        if self._run is not None and row["step"] > self._sent:
            self._guarded(lambda: self._run.log(row, step=row["step"]))
            self._sent = row["step"]

    def finish(self, status: str, summary: dict[str, Any]) -> None:
        """Send the summary and close the W&B run, as failed if the run failed."""
        if self._run is not None:
            self._guarded(lambda: self._finish(status, summary))
            self._run = None

    def _finish(self, status: str, summary: dict[str, Any]) -> None:
        self._run.summary.update(summary)
        self._run.finish(exit_code=1 if status == "failed" else 0)
