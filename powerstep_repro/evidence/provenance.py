"""Where a profile's runs come from, what they cost, and what the released code's departures did."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from powerstep_repro.config import canonical, matching_view
from powerstep_repro.evidence import benchmarks
from powerstep_repro.evidence.compare import gap_of
from powerstep_repro.evidence.sources import Evidence
from powerstep_repro.evidence.statistics import Gap
from powerstep_repro.evidence.words import codes_of, rate_label, variant
from powerstep_repro.paper import MODELS, OPTIMIZERS, Departure, model_label
from powerstep_repro.runs import Cell
from powerstep_repro.runs.cells import where_it_ran
from powerstep_repro.runs.files import read_json
from powerstep_repro.utilisation import settled


def distinct(evidence: Evidence, column: str) -> dict[str, int]:
    """Count runs by a column's value, most frequent first; runs without a value left out."""
    runs = evidence.loaded.runs
    values = runs[column].dropna().astype(str) if column in runs else pd.Series(dtype=str)
    return (
        values.sort_values()
        .value_counts(sort=False)
        .sort_values(ascending=False, kind="stable")
        .to_dict()
    )


def device_hours(evidence: Evidence) -> dict[str, float]:
    """Sum wall-clock time × devices over all runs, by device."""
    runs = evidence.loaded.runs
    hours = runs["wall_s"].fillna(0) * _world(runs) / 3600
    return hours.groupby(runs["device"].fillna("unknown")).sum().to_dict()


def _world(runs: pd.DataFrame) -> Any:
    return runs["world_size"].fillna(1) if "world_size" in runs else 1


def total_tokens(evidence: Evidence) -> float:
    """Count the tokens that all runs trained on."""
    runs = evidence.loaded.runs
    return float((runs["steps_done"].fillna(0) * runs["batch"] * runs["context"]).sum())


def reruns(evidence: Evidence) -> list[dict[str, Any]]:
    """Read ``reruns/*.json`` beside the runs: runs started again, compared step by step.

    Each has ``run``, ``device``, ``same_card``, ``step`` (the last compared), ``train_loss`` (of
    the record and of the repetition, there), ``max_abs_diff`` and ``mean_abs_diff`` up to there,
    ``first_differing_step`` (None if all are equal) and ``revisions``, then and now.
    """
    found = [read_json(path) for path in sorted((evidence.folder / "reruns").glob("*.json"))]
    return [content for content in found if "train_loss" in content]


@dataclass(frozen=True)
class Cost:
    """What the runs of one optimizer on one model, device and revision took; None: not known."""

    cell: Cell
    device: str
    revision: str
    runs: int
    state_bytes: float | None
    bytes_per_param: float | None
    step_ms: float | None
    optimizer_ms: float | None
    tokens_per_s: float | None
    peak_memory_bytes: float | None
    device_hours: float


def costs(evidence: Evidence, sweeps: Iterable[str]) -> list[Cost]:
    """Return what every optimizer cost, medians over runs, in the order of the paper's lists.

    Speeds leave out the first tenth of each log. ``optimizer_ms`` is that of the fastest
    implementation in the benchmark on the same device.
    """
    cells: dict[tuple[str, str], Cell] = {}
    groups: dict[tuple[str, str, str, str], list[str]] = defaultdict(list)
    for cell in (cell for sweep in sweeps for cell in evidence.source(sweep).cells):
        key = cell.model, variant(cell)
        cells.setdefault(key, cell)
        for run in cell.runs:
            group = groups[(*key, *where_it_ran(evidence.loaded, run))]
            group += [run] if run not in group else []
    alone = benchmarks.step_ms(benchmarks.read(evidence))

    def place(key: tuple[str, str, str, str]) -> tuple[int, int, tuple]:
        """Models and optimizers as the paper lists them, others after them."""
        listed = (key[0], MODELS), (cells[key[:2]].optimizer, OPTIMIZERS)
        a, b = ([*names, own].index(own) for own, names in listed)
        return a, b, key

    found = []
    for key in sorted(groups, key=place):
        facts = evidence.loaded.runs.loc[groups[key]]
        logs = [evidence.loaded.history(run, ["step_ms", "tokens_per_s"]) for run in groups[key]]
        speed = pd.DataFrame([settled(log).astype(float).median() for log in logs])
        state, params = _median(facts["optimizer_state_bytes"]), _median(facts["n_params"])
        found.append(
            Cost(
                cells[key[:2]],
                *key[2:],
                len(logs),
                state,
                state / params if state is not None and params else None,
                _median(speed["step_ms"]),
                alone.get(key[:3]),
                _median(speed["tokens_per_s"]),
                _median(facts["peak_memory_bytes"]),
                float((facts["wall_s"] * _world(facts)).sum()) / 3600,
            )
        )
    return found


def _median(values: pd.Series) -> float | None:
    median = values.astype(float).median()
    return None if np.isnan(median) else float(median)


@dataclass(frozen=True)
class Effect:
    """A released optimizer beside the plain one at equal settings."""

    setting: str
    released: str
    plain: str
    gap: Gap | None


def effects(departure: Departure, evidence: Evidence) -> list[Effect]:
    """Find all runs of a released optimizer with a twin of the plain one, and compare them.

    Twins agree in everything but the optimizer: model, rate, schedule, precision, data.
    """
    loaded = evidence.loaded
    plain: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    released: dict[str, list[str]] = defaultdict(list)
    for run, config in loaded.configs.items():
        view = matching_view(config)
        optimizer = view.pop("optimizer")
        as_released = optimizer["name"] == departure.released
        if departure.setting:
            key, value = departure.setting
            as_released = as_released and view.pop(key, None) == value
        settings = canonical([view, config["data"].get("hash")])
        if as_released:
            released[settings].append(run)
        elif optimizer["name"] == departure.plain:
            # It may have been run in several variants (codes); each is a twin.
            plain[settings][canonical(optimizer)].append(run)
    found = []
    for settings, runs in released.items():
        ours = _cell(evidence, runs)
        setting = f"{model_label(ours.model)}, lr {rate_label(ours.config['lr'])}"
        for twins in plain[settings].values():
            theirs = _cell(evidence, twins)
            codes = codes_of(theirs.config["optimizer"]).items()
            words = ", ".join(f"{moment} {code}".strip() for moment, code in codes)
            label = setting + (f", against code {words}" if words else "")
            sides = [
                side.outcome.words() + (f" (n={side.outcome.n})" if side.outcome.finals else "")
                for side in (ours, theirs)
            ]
            found.append(Effect(label, *sides, gap_of(ours, theirs)))
    return found


def _cell(evidence: Evidence, runs: list[str]) -> Cell:
    """Replicates as a cell of their own."""
    config = evidence.loaded.configs[runs[0]]
    data = config["data"]
    return Cell(config, runs, [], [], evidence.loaded, data["name"], data.get("hash"))
