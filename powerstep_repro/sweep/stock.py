"""Where each planned run is, or will be, and what is there of it already."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from nanogpt.errors import InputError
from powerstep_repro.config import Planned, canonical, matching_view, run_dir, with_data
from powerstep_repro.data import resolve
from powerstep_repro.errors import UserError
from powerstep_repro.runs import Loaded, load, select
from powerstep_repro.runs.files import ENDED
from powerstep_repro.sweep.estimate import History
from powerstep_repro.sweep.plan import Entry, take_stock


def _root(config: dict) -> Path:
    return Path(config["results_dir"]) / config["profile"] / "runs"


def _ended(loaded: Loaded) -> list[str]:
    return list(loaded.runs.index[loaded.runs["status"].isin(ENDED)])


def entries(planned: Sequence[Planned], *, need_data: bool = True) -> list[Entry]:
    """The plan's entries with their state and estimated time.

    A run's identity covers its data, so the data set is opened (and built, if it is one that can
    be). Where that fails and ``need_data`` is False, runs are matched on their settings alone, on
    whatever data, as figures match them.

    Args:
        planned: the runs of a sweep.
        need_data: False to plan without the data.

    Raises:
        UserError: the data set is not there, and ``need_data``.
    """
    loaded = {root: load(root) for root in {_root(each.config) for each in planned}}
    found: dict[str, tuple[str, str] | None] = {}
    out = []
    for each in planned:
        config = each.config
        key = canonical([config["data"], config["data_dir"]])
        if key not in found:
            try:
                data = resolve(config["data"], config["data_dir"])
                found[key] = (data.hash, data.name)
            except (UserError, InputError):
                if need_data:
                    raise
                found[key] = None
        if found[key] is None:
            directory = _any_run(loaded[_root(config)], config) or Path(run_dir(config))
        else:
            config = with_data(config, *found[key])
            directory = Path(run_dir(config))
        out.append(Entry(each.overrides, config, directory))
    return take_stock(out, history(loaded.values()))


def _any_run(loaded: Loaded, config: dict) -> Path | None:
    """The directory of a run with this config's settings and seed, an ended one before others.

    A copy of another run, of any seed, is none.
    """
    wanted = canonical(matching_view(config))
    ended = set(_ended(loaded))
    fitting = [
        name
        for name, other in loaded.configs.items()
        if other["seed"] == config["seed"]
        and canonical(matching_view(other)) == wanted
        and name not in loaded.copies
    ]
    best = max(fitting, key=lambda name: name in ended, default=None)
    return None if best is None else Path(loaded.runs.at[best, "path"])


def history(loaded: Iterable[Loaded]) -> History:
    """The step times of all ended runs."""
    return History(
        (each.configs[name], each.runs.loc[name, ["wall_s", "steps_done", "device"]].to_dict())
        for each in loaded
        for name in _ended(each)
    )


def missing(planned: Sequence[Planned]) -> int:
    """How many planned runs have not ended, matched as a figure matches them (no data needed).

    That is: on settings, among the runs on the data sets that the figure would show, no run and its
    copy twice; and with the planned seed, so that a sweep over seeds is there only when all are.
    """
    count = 0
    for root in {_root(each.config) for each in planned}:
        here = [each.config for each in planned if _root(each.config) == root]
        loaded = load(root)
        ended = set(_ended(loaded))
        have = {
            (canonical(matching_view(cell.config)), loaded.configs[name]["seed"])
            for cell in select(loaded, here)
            for name in cell.runs
            if name in ended and name not in loaded.copies
        }
        count += sum((canonical(matching_view(c)), c["seed"]) not in have for c in here)
    return count
