"""Guards the memory table to the printed digit, its command, and analytic against real bytes."""

import csv
import io
import json

import pytest

from powerstep_repro import optim
from powerstep_repro.config import choices
from powerstep_repro.errors import UserError
from powerstep_repro.evidence import memory
from powerstep_repro.memory import main
from powerstep_repro.models.measure import measure
from powerstep_repro.paper import NUMBERS

WHOLE = {
    "deepseek_v2_lite": ("468.1", "60.3"),
    "qwen3_30b_a3b": ("909.9", "117.3"),
    "qwen3_235b_a22b": ("7006.3", "903.2"),
}


def test_the_papers_eight_numbers_to_the_printed_digit():
    printed = {(n.model, n.column): n.printed for n in NUMBERS if n.table == "memory"}
    rows = memory.rows()
    assert len(rows) == len(printed) == 8
    for row in rows:
        expected = printed[row["model"], row["optimizer"]]
        assert f"{row['paper_counting_mb']:.1f}" == expected == f"{row['paper_mb']:.1f}"


def test_whole_models_and_the_dense_giants_norms():
    rows = {(row["model"], row["optimizer"]): row for row in memory.rows()}
    for model, (adamw, powerstep) in WHOLE.items():
        assert f"{rows[model, 'adamw']['whole_model_mb']:.1f}" == adamw
        assert f"{rows[model, 'powerstep_int8']['whole_model_mb']:.1f}" == powerstep
    dense = [rows["qwen3_32b", name] for name in ("adamw", "powerstep_int8")]
    assert [f"{row['paper_counting_mb']:.2f}" for row in dense] == ["976.53", "125.88"]
    assert [f"{row['whole_model_mb']:.2f}" for row in dense] == ["976.39", "125.86"]


def test_ratios():
    (row,) = memory.rows(["qwen3_32b"], ["powerstep_int8"])
    assert f"{row['ratio']:.2f}" == "7.76"
    assert f"{row['ratio_with_masters']:.2f}" == "2.39"
    assert "7.76, 2.39" in memory.explanation()
    assert "2.00 against an 8-bit AdamW" in memory.explanation()


def test_numbers_without_torch_are_the_registrys():
    for name, size in memory.state_bytes_per_param().items():
        assert size == optim.bytes_per_param(name)


def test_every_model_and_optimizer_on_any_number_of_devices(capsys):
    assert main(["--model", "all", "--optimizer", "all", "--devices", "8"]) == 0
    assert "over 8 devices" in capsys.readouterr().out
    rows = memory.rows(choices("model"), choices("optimizer"), 8)
    assert len(rows) == len(choices("model")) * len(choices("optimizer"))
    assert {row["paper_mb"] for row in rows} == {None}
    for row in rows:
        total = row["bytes_per_param"] * row["n_params"]
        assert row["whole_model_mb"] * 8 * 2**20 == pytest.approx(total)


def test_json_and_csv_hold_the_same_rows(capsys):
    arguments = ["--model", "qwen3_32b", "--optimizer", "adamw,powerstep_int8"]
    main([*arguments, "--format", "json"])
    rows = json.loads(capsys.readouterr().out)
    assert [row["paper_mb"] for row in rows] == [976.5, 125.9]
    required = {"model", "optimizer", "n_params", "routed_expert_params", "bytes_per_param"}
    assert required | {"paper_mb", "paper_counting_mb", "whole_model_mb"} <= set(rows[0])
    main([*arguments, "--format", "csv"])
    table = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [float(row["whole_model_mb"]) for row in table] == [r["whole_model_mb"] for r in rows]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--model", "qwen3_8"], r"unknown model 'qwen3_8' \(did you mean"),
        (["--optimizer", "adam"], "unknown optimizer 'adam'"),
        (["--devices", "0"], "--devices=0 must be"),
        (["--measure", "--devices", "8"], "--devices goes with the analytic table"),
        (["groups.head.name=adamw", "--model", "gpt2_small"], "groups.head: gpt2_small has no"),
        (["lr=1"], "'lr=1' is not of the form groups.KIND.KEY=VALUE"),
        (["--formats", "csv"], "unrecognized arguments: --formats"),
    ],
)
def test_bad_input_is_one_sentence(arguments, sentence):
    with pytest.raises(UserError, match=sentence):
        main(arguments)


@pytest.mark.parametrize("optimizer", optim.names())
@pytest.mark.parametrize("model", ["gpt2_small", "qwen3_30b_a3b"])
def test_real_state_is_the_analytic_figure(model, optimizer):
    """Within 0.1 %: a norm's last block of int8 state is not full."""
    row = measure(model, optimizer)
    assert abs(row["difference"]) < 1e-3
    assert row["state_mb"] * 2**20 == pytest.approx(
        row["measured_bytes_per_param"] * row["n_params"]
    )


def test_each_kind_counts_under_its_own_rule(capsys):
    """GPT-2 Small: AdamW's eight bytes on its tied table, 1.03125 on all else."""
    (row,) = memory.rows(["gpt2_small"], ["powerstep_int8"], 8, ["groups.embeddings.name=adamw"])
    table, total = (50304 + 1024) * 768, 124_373_760
    assert row["bytes_per_param"] == pytest.approx((8 * table + 1.03125 * (total - table)) / total)
    assert row["groups"] == "AdamW on embeddings"
    part = ["groups.positions.name=adamw", "groups.embeddings.name=adamw_int8"]
    main(["--measure", "--optimizer", "powerstep_int8", "--model", "gpt2_small", *part])
    assert "PowerStep int8, AdamW on positions, AdamW int8 on embeddings" in capsys.readouterr().out
    for groups in (["groups.embeddings.name=adamw"], part):
        assert abs(measure("gpt2_small", "powerstep_int8", overrides=groups)["difference"]) < 1e-3


def test_a_name_given_twice_is_one_row(capsys):
    main(["--model", "gpt2_small,gpt2_small", "--optimizer", "adamw,adamw", "--format", "json"])
    assert len(json.loads(capsys.readouterr().out)) == 1
