"""Which runs a figure shows: exactly its sweep's expansion, matched on config values."""

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from powerstep_repro.config.identity import canonical, matching_view
from powerstep_repro.errors import UserError
from powerstep_repro.runs.loading import Loaded

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Cell:
    """One setting that a figure shows, and the runs of it.

    Args:
        config: The planned config.
        runs: Names of the runs, replicates of each other, by seed; empty: not run.
        failed: Names of runs that ended in an error; they have no result.
        elsewhere: Names of its runs on other data sets than the selection's, which are left out.
    """

    config: dict[str, Any]
    runs: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Selection:
    """The cells of a figure, in the expansion's order, all of one profile and one data set.

    Args:
        loaded: Where the runs were found.
        cells: One per planned setting.
        profile: The profile of all of them.
        data_name: The data set's name; None when nothing was run.
        data_hash: Its hash; None when nothing was run.
        warnings: Sentences on what was left out.
    """

    loaded: Loaded
    cells: list[Cell]
    profile: str
    data_name: str | None = None
    data_hash: str | None = None
    warnings: list[str] = field(default_factory=list)


def by_data_set(planned: Iterable[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Group planned configs that share a data set: those whose data is configured alike."""
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for config in planned:
        groups[canonical([config["data"], config["model"].get("tokenizer")])].append(config)
    return list(groups.values())


def select(
    loaded: Loaded, planned: Iterable[dict[str, Any]], data_hash: str | None = None
) -> Selection:
    """Match runs to planned configs.

    Args:
        loaded: What ``load`` found.
        planned: Configs, as a sweep expands to. Those that differ in seed or data set alone make
            one cell: every seed that was run is a replicate.
        data_hash: Take runs on this data set; None: the one with most matching runs, of equals
            the one last written to. The others are named in a warning.

    Raises:
        UserError: The planned configs are of several profiles, which no figure mixes.
    """
    configs: dict[str, dict[str, Any]] = {}
    for config in planned:
        configs.setdefault(canonical(matching_view(config)), config)
    profiles = sorted({config["profile"] for config in configs.values()})
    if len(profiles) > 1:
        raise UserError(f"a figure shows one profile, not {' and '.join(profiles)}")

    by_hash: dict[str | None, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for run, config in loaded.configs.items():
        key = canonical(matching_view(config))
        if key in configs:
            by_hash[config["data"].get("hash")][key].append(run)

    warnings: list[str] = []
    if data_hash is None and by_hash:
        data_hash = _fullest(loaded, by_hash)
        for other in by_hash.keys() - {data_hash}:
            count = sum(map(len, by_hash[other].values()))
            warnings.append(f"{count} matching runs on data {other} are left out: not the same set")
            logger.warning("%s", warnings[-1])

    def elsewhere(key: str) -> list[str]:
        return sorted(run for h, found in by_hash.items() if h != data_hash for run in found[key])

    def of(key: str, failed: bool) -> list[str]:
        names = by_hash[data_hash][key]
        names = [run for run in names if (loaded.runs.at[run, "status"] == "failed") is failed]
        return sorted(names, key=lambda run: (loaded.configs[run]["seed"], run))

    cells = [
        Cell(config, of(key, False), of(key, True), elsewhere(key))
        for key, config in configs.items()
    ]
    names = Counter(loaded.configs[run]["data"]["name"] for cell in cells for run in cell.runs)
    return Selection(
        loaded=loaded,
        cells=cells,
        profile=profiles[0] if profiles else "",
        data_name=names.most_common(1)[0][0] if names else None,
        data_hash=data_hash,
        warnings=warnings,
    )


def _fullest(loaded: Loaded, by_hash: dict[str | None, dict[str, list[str]]]) -> str | None:
    def weight(data_hash: str | None) -> tuple[int, str]:
        runs = [run for names in by_hash[data_hash].values() for run in names]
        usable = [run for run in runs if loaded.runs.at[run, "status"] != "failed"]
        updated = loaded.runs.get("updated")
        newest = max((str(updated[run]) for run in runs), default="") if updated is not None else ""
        return len(usable), newest

    return max(by_hash, key=weight)
