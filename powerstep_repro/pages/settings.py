"""The paper's two tables of settings, each beside what this profile and its runs use."""

from typing import Any

from powerstep_repro.config import compose
from powerstep_repro.evidence import Evidence, rate_label, sized_label
from powerstep_repro.evidence.cells import scaled_to
from powerstep_repro.evidence.statistics import NOT_RUN
from powerstep_repro.evidence.words import NO_VERDICT, NOTHING
from powerstep_repro.pages.model import Table, plain
from powerstep_repro.paper import MODELS, TABLES, value

_HEADS = {
    "batch": "Batch size",
    "context": "Context",
    "lr": "η_max",
    "min_lr": "η_min",
    "npus": "Devices",
    "dp": "DP",
    "tp": "TP",
    "pp": "PP",
    "ep": "EP",
}


def hyperparameters(evidence: Evidence) -> Table:
    """Build Table 2 beside the profile's own batch, context and learning rates."""
    spec = TABLES["hyperparameters"]
    table = Table(
        spec.name,
        f"Table {spec.number}: {spec.title}",
        f"Paper / profile {evidence.profile}; one number where the two agree.",
        ["Model", *(_HEADS[c] for c in spec.columns), "Steps", "Warm-up"],
        extra=("quantity",),
    )
    for model in MODELS:
        config = _config(evidence, model)
        ours = {
            "batch": config["batch"],
            "context": config["context"],
            "lr": config["lr"],
            "min_lr": config["lr"] * config["min_lr_ratio"],
        }
        texts = []
        for column in spec.columns:
            paper, write = value(spec.name, model, column), _writer(column)
            same = plain(paper) == plain(ours[column])
            texts.append(write(paper) if same else f"{write(paper)} / {write(ours[column])}")
            table.long.append(
                {
                    "model": model,
                    "paper": plain(paper),
                    "ours": plain(ours[column]),
                    "verdict": _agreement(same, evidence.profile),
                    "quantity": column,
                }
            )
        steps, warmup = f"{config['steps']:,}", f"{config['warmup_steps']:,}"
        table.add(
            sized_label(model, scaled_to(config)), *texts, f"? / {steps}", f"2,000 / {warmup}"
        )
    table.notes = [
        "The paper states no number of steps; the profile paper takes 50,000 for GPT-2 and 20,000 "
        "for the rest, inferred from the released scripts. Weight decay 0.1, clipping at 1.0 and "
        "one learning rate for all optimizers of a model, in the paper and here."
    ]
    return table


def _config(evidence: Evidence, model: str) -> dict[str, Any]:
    return compose([f"profile={evidence.profile}", *evidence.single_overrides(), f"model={model}"])


def _writer(column: str):
    return rate_label if column in ("lr", "min_lr") else "{:g}".format


def _agreement(same: bool, profile: str) -> str:
    if profile == "tiny":
        return NO_VERDICT
    return "as the paper" if same else "other than the paper"


def parallelism(evidence: Evidence) -> Table:
    """Build Table 3 beside the ranks that our runs used; ours is data parallelism alone."""
    spec = TABLES["parallelism"]
    table = Table(
        spec.name,
        f"Table {spec.number}: {spec.title}",
        f"Paper / our runs of profile {evidence.profile}.",
        ["Model", *(_HEADS[c] for c in spec.columns)],
        extra=("quantity",),
    )
    runs = evidence.loaded.runs
    for model in MODELS:
        known = runs["model.name"] == model
        worlds = sorted(runs[known]["world_size"].dropna().unique()) if "world_size" in runs else []
        dp = ", ".join(f"{int(world)}" for world in worlds) or NOT_RUN
        alone = "1" if worlds else NOT_RUN
        ours = {"npus": dp, "dp": dp, "tp": alone, "pp": alone, "ep": alone}
        texts = []
        for column in spec.columns:
            paper = value(spec.name, model, column)
            printed = "N/A" if paper is None else f"{paper:g}"
            texts.append(printed if paper is None else f"{printed} / {ours[column]}")
            table.long.append(
                {
                    "model": model,
                    "paper": NOTHING if paper is None else printed,
                    "ours": NOTHING if paper is None else ours[column],
                    "verdict": NO_VERDICT if evidence.profile == "tiny" else NOTHING,
                    "quantity": column,
                }
            )
        table.add(sized_label(model, scaled_to(_config(evidence, model))), *texts)
    table.notes = [
        "The number of devices changes no result here: the global batch of a step is the same for "
        "any split into ranks and micro-batches. Devices = DP × TP × PP in every row of the paper."
    ]
    return table
