"""What W&B answers, through wandb's public client. The only place that imports it."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from powerstep_repro.errors import UserError, require


@dataclass(frozen=True)
class RemoteRun:
    """A run as W&B lists it.

    Args:
        path: ``entity/project/id``.
        name: The name that W&B shows; anybody may have changed it.
        state: running, pending, finished, failed, crashed, killed or preempted.
        config: What ``wandb.init`` was given.
        summary: Its own entries, and the last value of everything logged.
        line_count: How many history lines W&B says it has received; None if it does not say.
        source: wandb's object.
    """

    path: str
    name: str
    state: str
    config: dict[str, Any]
    summary: dict[str, Any]
    line_count: int | None
    source: Any

    def history(self) -> list[dict[str, Any]]:
        """Scan all rows with all their keys, in the order of steps, in the form W&B gives them.

        Raises:
            UserError: W&B did not answer, or refused.
        """
        try:
            # The client's cache would hold on to what was exported before a run was resumed.
            scan = self.source.scan_history(**_known(self.source.scan_history, use_cache=False))
            return [dict(row) for row in scan]
        except Exception as error:
            raise UserError(f"its history cannot be read ({_reason(error)})") from error


def _known(function: Callable, **options: Any) -> dict[str, Any]:
    """Those of the options that this version of wandb has."""
    parameters = inspect.signature(function).parameters
    return {name: value for name, value in options.items() if name in parameters}


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _connect() -> Any:
    require("wandb", "pull", "wandb")
    import wandb

    try:
        return wandb.Api()
    # SystemExit too: wandb leaves through it when a login is refused.
    except (Exception, SystemExit) as error:
        raise UserError(
            f"no access to W&B ({_reason(error)}): log in with `wandb login` or WANDB_API_KEY, "
            "and see that the network reaches it"
        ) from error


def runs_of(project: str, group: str | None = None) -> Iterator[RemoteRun]:
    """List a project's runs, the newest first, as they are needed.

    Args:
        project: ``ENTITY/PROJECT``.
        group: Only the runs of this W&B group.

    Raises:
        UserError: No wandb, no login, no network, or no such project.
    """
    api = _connect()
    filters = {} if group is None else {"group": group}
    try:
        found = api.runs(project, filters, order="-created_at", **_known(api.runs, lazy=False))
        for run in found:
            yield RemoteRun(
                path=f"{project}/{run.id}",
                name=run.name or run.id,
                state=run.state,
                config=dict(run.config),
                summary=dict(run.summary_metrics),
                line_count=getattr(run, "historyLineCount", None),
                source=run,
            )
    except Exception as error:
        raise UserError(
            f"W&B does not list the runs of {project} ({_reason(error)}): "
            "see that ENTITY/PROJECT is right and that this login may read it"
        ) from error
