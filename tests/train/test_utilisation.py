"""Guards: utilisation against another card's peak; compiling counted as training; a line invented
for a run without rows.
"""

import json

import pytest

from powerstep_repro.utilisation import peak_flops, speed_line

SUMMARY = {
    "device": "NVIDIA H100 80GB HBM3",
    "flops_per_token": 1e9,
    "world_size": 2,
    "peak_memory_bytes": 3 * 2**30,
}


@pytest.mark.parametrize(
    ("card", "precision", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", "amp_bf16", 989e12),
        ("NVIDIA H100 PCIe", "bf16", 756e12),
        ("NVIDIA H100 80GB HBM3", "fp32", 67e12),
        ("a card of tomorrow", "bf16", None),
    ],
)
def test_the_right_peak(card, precision, peak):
    assert peak_flops(card, precision) == peak


def test_the_median_without_the_first_tenth(tmp_path):
    rates = [1.0, 1.0] + [989e3] * 17 + [5.0]
    rows = [{"step": i, "tokens_per_s": rate} for i, rate in enumerate(rates, start=1)]
    rows += [{"step": 21, "tokens_per_s": None}, {"step": 22}]  # damage is no rate
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    line = speed_line(tmp_path, SUMMARY, "bf16", cuda=True)
    assert line == "989,000 tokens/s, 50.0 % MFU, at most 3.00 GiB"
    unknown = SUMMARY | {"device": "a processor"}
    assert speed_line(tmp_path, unknown, "fp32", cuda=True) == "989,000 tokens/s, at most 3.00 GiB"
    assert speed_line(tmp_path, unknown, "fp32", cuda=False) == "989,000 tokens/s"


def test_nothing_is_said_of_a_run_without_rows(tmp_path):
    assert speed_line(tmp_path, SUMMARY, "bf16", cuda=True) is None
