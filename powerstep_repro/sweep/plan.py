"""The plan of a sweep: each of its runs, where it is, and what is there of it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.table import Table
from rich.text import Text

from powerstep_repro.config import Planned, canonical, matching_view, run_dir, with_data
from powerstep_repro.data import resolve
from powerstep_repro.errors import UserError
from powerstep_repro.runs import Loaded, is_locked, load, select
from powerstep_repro.runs.files import ENDED, read_summary

# What a sweep does with a run, by what is found on disk: in the order of work. Cut runs come first
# (they hold finished work), failed ones late (so that a run which always fails delays nothing),
# runs that another process trains at the very end.
RESUME, NEW, RETRY, BUSY, DONE = "resume", "new", "retry", "busy", "done"
LABEL = {
    RESUME: "to resume",
    NEW: "to do",
    RETRY: "failed, to retry",
    BUSY: "being trained by another process",
    DONE: "done",
}
ORDER = list(LABEL)
IN_NAME = {"model", "optimizer", "lr", "seed"}  # overrides that a run's name tells


@dataclass
class Entry:
    """One run of a sweep.

    Args:
        overrides: Overrides that make the run, as handed to the train command.
        config: The resolved config they compose to.
        run_dir: Where the run's record is, or will be.
        varied: What sets the run apart in its sweep beyond its name.
    """

    overrides: tuple[str, ...]
    config: dict
    run_dir: Path
    varied: str = ""
    state: str = NEW
    summary: dict = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The name, and what sets the run apart in its sweep if the name does not tell."""
        return f"{self.run_dir.name} ({self.varied})" if self.varied else self.run_dir.name

    def refresh(self) -> str:
        """Read the state from disk again and return it.

        Finished and diverged runs are done: both are results. A run that says "running" while
        nobody holds its lock was killed, and resumes like an interrupted one.
        """
        self.summary = read_summary(self.run_dir)
        status = self.summary.get("status")
        if status in ENDED:
            self.state = DONE
        elif is_locked(self.run_dir):
            self.state = BUSY
        elif status == "failed":
            self.state = RETRY
        else:
            self.state = RESUME if status in ("running", "interrupted") else NEW
        return self.state


def _root(config: dict) -> Path:
    return Path(config["results_dir"]) / config["profile"] / "runs"


def entries(planned: Sequence[Planned], *, need_data: bool = True) -> list[Entry]:
    """Return the plan's entries with their state.

    A run's identity covers its data, so the data set is opened (and built, if it is one that can
    be). Where that fails and ``need_data`` is False, runs are matched on their settings alone, on
    whatever data, as figures match them.

    Args:
        planned: The runs of a sweep.
        need_data: False to plan without the data.

    Raises:
        UserError: The data set is not there, and ``need_data``.
    """
    found: dict[str, tuple[str, str] | None] = {}
    varied = _varied(planned)
    out = []
    for each, label in zip(planned, varied, strict=True):
        config = each.config
        key = canonical([config["data"], config["data_dir"]])
        if key not in found:
            try:
                data = resolve(config["data"], config["data_dir"])
                found[key] = (data.hash, data.name)
            except UserError:
                if need_data:
                    raise
                found[key] = None
        if found[key] is not None:
            config = with_data(config, *found[key])
        out.append(Entry(each.overrides, config, Path(run_dir(config)), label))
    unknown = [entry for entry in out if not entry.config["data"]["hash"]]
    for root in {_root(entry.config) for entry in unknown}:
        there = _on_any_data(load(root))
        for entry in unknown:
            config = entry.config
            if _root(config) == root:
                entry.run_dir = there.get(_settings(config), entry.run_dir)
    for entry in out:
        entry.refresh()
    return out


def _varied(planned: Sequence[Planned]) -> list[str]:
    """Say of each run the overrides that differ within the sweep and that no name tells."""
    overrides = [dict(text.split("=", 1) for text in each.overrides) for each in planned]
    keys = dict.fromkeys(key for each in overrides for key in each if key not in IN_NAME)
    varied = [key for key in keys if len({each.get(key) for each in overrides}) > 1]
    return [", ".join(f"{k}={each[k]}" for k in varied if k in each) for each in overrides]


def _settings(config: dict) -> str:
    return canonical([matching_view(config), config["seed"]])


def _ended(loaded: Loaded) -> set[str]:
    return {*loaded.runs.index[loaded.runs["status"].isin(ENDED)]}


def _on_any_data(loaded: Loaded) -> dict[str, Path]:
    """The directory of a run by its settings and seed, an ended one before others."""
    ended = _ended(loaded)
    return {
        _settings(loaded.configs[name]): Path(loaded.runs.at[name, "path"])
        for name in sorted(loaded.configs, key=lambda name: name in ended)
    }


def missing(planned: Sequence[Planned]) -> int:
    """Return how many planned runs have not ended, matched as a figure matches them (no data).

    That is: on settings, among the runs on the data sets that the figure would show, and with the
    planned seed, so that a sweep over seeds is there only when all are.
    """
    count = 0
    for root in {_root(each.config) for each in planned}:
        here = [each.config for each in planned if _root(each.config) == root]
        loaded = load(root)
        ended = _ended(loaded)
        have = {
            _settings(cell.config | {"seed": loaded.configs[name]["seed"]})
            for cell in select(loaded, here)
            for name in cell.runs
            if name in ended
        }
        count += sum(_settings(config) not in have for config in here)
    return count


def work_order(entries: Sequence[Entry]) -> list[Entry]:
    """Return what is left to do, in the order in which to do it."""
    left = [entry for entry in entries if entry.state != DONE]
    return sorted(left, key=lambda entry: ORDER.index(entry.state))


def table(entries: Sequence[Entry], title: str) -> Table:
    """Return the plan, a row a run."""
    out = Table(title=Text(title), title_justify="left")
    varied = any(entry.varied for entry in entries)
    for column in ("run", *(["with"] if varied else []), "state", "steps"):
        out.add_column(column, justify="right" if column == "steps" else "left", overflow="fold")
    for entry in entries:
        status = entry.summary.get("status")
        label = LABEL[entry.state] if entry.state != DONE else status
        if status == "diverged":
            label = f"diverged at step {entry.summary.get('diverged_at')}"
        steps = f"{entry.summary.get('steps') or 0}/{entry.config['steps']}"
        row = (entry.run_dir.name, *([entry.varied] if varied else []), label, steps)
        out.add_row(*map(Text, row))  # no markup: a path may hold [brackets]
    return out


def headline(entries: Sequence[Entry]) -> str:
    """Return the plan in one line: how many runs, and how many of each kind."""
    counts = Counter(entry.state for entry in entries)
    parts = [f"{counts[state]} {LABEL[state]}" for state in ORDER if counts[state]]
    return f"{len(entries)} run{'s' if len(entries) != 1 else ''}: {', '.join(parts)}"
