"""Table 1, the optimizer's memory: from the models' shapes in closed form, to the printed digit."""

from omegaconf import OmegaConf

from powerstep_repro.config import CONF, compose
from powerstep_repro.evidence import Evidence
from powerstep_repro.models.count import Count, count
from powerstep_repro.paper import TABLES, model_label, value
from powerstep_repro.paper import table as paper_table
from powerstep_repro.tables.model import NO_VERDICT, Entry, Table, plain

MIB = 2**20


def state_bytes_per_param() -> dict[str, float]:
    """Bytes of state a parameter: two fp32 moments; an int8 code and its share of a scale."""
    block = compose(["optimizer=powerstep_int8"])["optimizer"]["block_size"]
    return {"adamw": 8.0, "powerstep_int8": 1.0 + 4.0 / block}


def paper_counts(model: str) -> Count:
    """Count the parameters of a model as the paper has it, whatever the profile."""
    return count(OmegaConf.to_container(OmegaConf.load(CONF / "model" / f"{model}.yaml")))


def counted_by_the_paper(model: str) -> tuple[int, int]:
    """Return the parameters whose state the paper's number counts, and those of the whole model.

    Found by matching its eight numbers: of a mixture of experts the routed experts alone; of the
    dense model all, its norms held once by every tensor-parallel rank.
    """
    counts = paper_counts(model)
    if counts.routed_expert_params:
        return counts.routed_expert_params, counts.n_params
    copies = int(value("parallelism", model, "tp")) - 1
    return counts.n_params + copies * counts.one_dim_params, counts.n_params


def memory(evidence: Evidence) -> Table:
    """Build Table 1: the paper's numbers, ours by its counting, and those of the whole model."""
    spec = TABLES["memory"]
    table = Table(
        spec.name,
        f"Table {spec.number}: {spec.title}",
        "MiB, from the models' shapes alone; the same in every profile.",
        [
            "Model",
            "AdamW fp32: paper",
            "ours, its counting",
            "whole model",
            "PowerStep int8: paper",
            "ours, its counting",
            "whole model",
            "Ratio",
            "Ratio with fp32 masters",
        ],
        extra=("whole_model", "counted_params", "n_params"),
    )
    size = state_bytes_per_param()
    ratio = size["adamw"] / size["powerstep_int8"]
    with_masters = (size["adamw"] + 4) / (size["powerstep_int8"] + 4)
    for model in dict.fromkeys(cell.model for cell in paper_table(spec.name)):
        counted, whole = counted_by_the_paper(model)
        devices = value("parallelism", model, "npus")
        texts: list[str | Entry] = [model_label(model)]
        ours = {name: size[name] * counted / devices / MIB for name in spec.columns}
        for name in spec.columns:
            printed = value(spec.name, model, name)
            whole_mib = size[name] * whole / devices / MIB
            texts += [f"{printed:.1f}", f"{ours[name]:.1f}", f"{whole_mib:.1f}"]
            equal = f"{ours[name]:.1f}" == f"{printed:.1f}"
            verdict = "equal to the printed digit" if equal else "differs"
            table.long.append(
                {
                    "model": model,
                    "optimizer": name,
                    "paper": f"{printed:.1f}",
                    "ours": plain(ours[name], 3),
                    "paper_gap": plain(printed - value(spec.name, model, "adamw"), 3),
                    "our_gap": plain(ours[name] - ours["adamw"], 3),
                    "verdict": NO_VERDICT if evidence.profile == "tiny" else verdict,
                    "whole_model": plain(whole_mib, 3),
                    "counted_params": counted,
                    "n_params": whole,
                }
            )
        table.add(*texts, f"{ratio:.2f}", f"{with_masters:.2f}")
    table.notes = [
        f"State a parameter: AdamW {size['adamw']:g} bytes, PowerStep int8 "
        f"{size['powerstep_int8']:g}. The paper's 'MB' is MiB, averaged over 256 devices. For the "
        "mixtures of experts it counts routed-expert parameters alone; for Qwen3-32B all "
        "parameters, with the norms held once by each of the 8 tensor-parallel ranks.",
    ]
    return table
