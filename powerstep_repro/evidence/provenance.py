"""Where a profile's runs come from, and what the released code's departures did in them."""

from collections import Counter, defaultdict
from dataclasses import dataclass

import pandas as pd

from powerstep_repro.config import canonical, matching_view
from powerstep_repro.evidence import Evidence, rate_label
from powerstep_repro.evidence.cells import final_of
from powerstep_repro.evidence.labels import codes_of
from powerstep_repro.evidence.statistics import Final, Gap, paired_gap
from powerstep_repro.paper import Departure, model_label
from powerstep_repro.runs import Loaded
from powerstep_repro.runs.files import read_json
from powerstep_repro.runs.loading import DAMAGED


@dataclass(frozen=True)
class Effect:
    """A released optimizer beside the plain one at equal settings."""

    setting: str
    released: str
    plain: str
    gap: Gap | None


@dataclass(frozen=True)
class Rerun:
    """A recorded run that was started again, and how far the training losses then differ.

    Attributes:
        run: the recorded run's directory name.
        step: the last step compared.
        device: where it ran again.
        same_card: whether it is the very card of the record.
        train_loss: that of the record and that of the repetition at ``step``.
        max_abs_diff: the largest difference up to ``step``.
        mean_abs_diff: the mean of it.
        first_differing_step: the first step whose losses are not equal; None if all are.
        revisions: this project's revision then and now.
    """

    run: str
    step: int
    device: str
    same_card: bool
    train_loss: tuple[float, float]
    max_abs_diff: float
    mean_abs_diff: float
    first_differing_step: int | None
    revisions: tuple[str, str]


def reruns(evidence: Evidence) -> list[Rerun]:
    """Read ``reruns/*.json`` beside the runs; a file that is damaged is noted as a problem."""
    found = []
    for path in sorted((evidence.folder / "reruns").glob("*.json")):
        content = read_json(path)
        try:
            first, again = content["train_loss"]
            differing = content["first_differing_step"]
            found.append(
                Rerun(
                    str(content["run"]),
                    int(content["step"]),
                    str(content["device"]),
                    bool(content["same_card"]),
                    (float(first), float(again)),
                    float(content["max_abs_diff"]),
                    float(content["mean_abs_diff"]),
                    None if differing is None else int(differing),
                    tuple(map(str, content["revisions"])),
                )
            )
        except (KeyError, OverflowError, TypeError, ValueError) as error:
            evidence.loaded.problem(f"{path} tells of no repeated run: {error!r}")
    return found


def states(evidence: Evidence) -> dict[str, int]:
    """Count runs by how they ended, most frequent first."""
    loaded = evidence.loaded
    ends = [loaded.state(run) or "end unknown" for run in loaded.runs.index]
    return dict(Counter(ends).most_common())


def distinct(evidence: Evidence, column: str) -> dict[str, int]:
    """Count runs by a column's value, most frequent first; runs without a value left out."""
    runs = evidence.loaded.runs
    if column not in runs:
        return {}
    counts = runs[column].dropna().astype(str).value_counts()
    return {str(k): int(v) for k, v in sorted(counts.items(), key=lambda item: (-item[1], item[0]))}


def device_hours(evidence: Evidence) -> dict[str, float]:
    """Sum wall-clock time × devices over all runs, by device."""
    runs = evidence.loaded.runs
    if not len(runs):
        return {}
    world = runs["world_size"].fillna(1) if "world_size" in runs else 1
    seconds = pd.to_numeric(runs["wall_s"]).fillna(0) * world
    hours = (seconds / 3600).groupby(runs["device"].fillna("unknown")).sum()
    return {str(device): float(value) for device, value in hours.items()}


def total_tokens(evidence: Evidence) -> float:
    """Count the tokens that all runs trained on."""
    runs = evidence.loaded.runs
    if not len(runs):
        return 0.0
    steps = pd.to_numeric(runs["steps_done"]).fillna(0)
    return float((steps * runs["batch"] * runs["context"]).sum())


def effects(departure: Departure, evidence: Evidence) -> list[Effect]:
    """Find all runs of a released optimizer with a twin of the plain one, and compare them.

    Twins agree in everything but the optimizer: model, rate, schedule, precision, data.
    """
    loaded = evidence.loaded
    plain: dict[str, list[str]] = defaultdict(list)
    released: dict[str, list[str]] = defaultdict(list)
    for run, config in loaded.configs.items():
        if run in loaded.copies:
            continue
        view = matching_view(config)
        name = view.pop("optimizer")["name"]
        as_released = name == departure.released
        if departure.setting:
            key, value = departure.setting
            as_released = as_released and view.pop(key, None) == value
        if as_released or name == departure.plain:
            side = released if as_released else plain
            side[canonical([view, config["data"].get("hash")])].append(run)
    found = []
    for key, runs in released.items():
        # The plain optimizer may have been run in several variants (codes); each is a twin.
        variants: dict[str, list[str]] = defaultdict(list)
        for run in plain.get(key, []):
            variants[canonical(loaded.configs[run]["optimizer"])].append(run)
        config = loaded.configs[runs[0]]
        setting = f"{model_label(config['model']['name'])}, lr {rate_label(config['lr'])}"
        ours = _finals(loaded, runs)
        for twins in variants.values():
            theirs = _finals(loaded, twins)
            codes = codes_of(loaded.configs[twins[0]]["optimizer"]).items()
            words = ", ".join(f"{moment} {code}".strip() for moment, code in codes)
            label = setting + (f", against code {words}" if words else "")
            gap = paired_gap(ours, theirs)
            found.append(Effect(label, _words(loaded, runs), _words(loaded, twins), gap))
    return found


def _finals(loaded: Loaded, runs: list[str]) -> dict[int, Final]:
    finished = [run for run in runs if loaded.state(run) == "finished"]
    return {int(loaded.runs.at[run, "seed"]): final_of(loaded, run) for run in finished}


def _words(loaded: Loaded, runs: list[str]) -> str:
    """Say how runs ended: their mean loss, and how many did not finish."""
    finals = _finals(loaded, runs)
    parts = []
    if finals:
        mean = sum(final.loss for final in finals.values()) / len(finals)
        parts.append(f"{mean:.3f} (n={len(finals)})")
    diverged = [run for run in runs if loaded.runs.at[run, "status"] == "diverged"]
    steps = [loaded.runs.at[run, "diverged_at"] for run in diverged]
    parts += [f"diverged at step {step:,.0f}" if step == step else "diverged" for step in steps]
    damaged = sum(loaded.state(run) == DAMAGED for run in runs)
    rest = len(runs) - len(finals) - len(diverged) - damaged
    counts = {"damaged": damaged, "unfinished": rest}
    return "; ".join(parts + [f"{count} {words}" for words, count in counts.items() if count])
