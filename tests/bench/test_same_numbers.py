"""Guards that losses of two ways to train are recorded step by step, and held to the bound."""

import argparse
import json

import numpy as np
import pytest

from powerstep_repro.bench import same_numbers
from powerstep_repro.data import resolve
from powerstep_repro.errors import UserError


@pytest.fixture
def files(tmp_path):
    """Write losses, a list a file; returns the paths."""

    def write(*contents):
        paths = [tmp_path / f"{number}.json" for number in range(len(contents))]
        for path, content in zip(paths, contents, strict=True):
            path.write_text(content if isinstance(content, str) else json.dumps(content))
        return paths

    return write


@pytest.mark.slow
def test_every_step_is_recorded_in_both_ways(tmp_path, monkeypatch):
    tokens = np.arange(400, dtype="<u2") % 7
    for split in ("train", "val"):
        (tmp_path / f"{split}.bin").write_bytes(tokens.tobytes())
    tokens_config = {"kind": "tokens", "path": str(tmp_path)}
    data = resolve(tokens_config, tmp_path / "data").folder
    options = {"data": data, "batch": 2, "context": 8, "steps": 3, "layers": 1, "eager": True}
    monkeypatch.setattr(same_numbers.kernels, "enabled", True)
    found = [
        same_numbers.record(
            argparse.Namespace(**options, plain=plain, micro_batch=micro, attention=attention)
        )
        for plain, micro, attention in (
            (True, 2, None), (True, 1, None), (False, 2, None), (True, 2, "math")
        )
    ]  # fmt: skip
    assert [len(losses) for losses in found] == [3, 3, 3, 3]
    assert found[0][0] > found[0][2]
    np.testing.assert_allclose(found[1], found[0], rtol=2e-3)
    np.testing.assert_allclose(found[2], found[0], rtol=2e-3)
    np.testing.assert_allclose(found[3], found[0], rtol=2e-3)
    assert found[3] != found[0]  # another order it is


def test_the_bound_is_twice_the_drift_of_plain_orders(files, capsys):
    """In the mean over pairs: 1/4 among the plain ones, then 3/8 and 23/40 from them."""
    *plain, near, far = files([4.0, 3.0], [4.5, 3.0], [4.25, 3.5], [4.25, 3.9])
    assert same_numbers.compare(plain, [near])
    assert not same_numbers.compare(plain, [far])
    assert same_numbers.compare(plain, [near, far])
    printed = capsys.readouterr().out
    assert "0, 2: mean |difference| 3.75e-01, largest 5.00e-01, with its sign +3.75e-01" in printed
    assert "2 steps: plain orders from each other 2.50e-01, kernels from plain 3.75e-01" in printed


def test_the_warm_up_is_held_to_the_bound_too(files, capsys):
    """The end of one plain order is far off; the first tenth still tells them apart."""
    rest = [4.0] * 18
    *plain, kernels = files([5.0, 5.0, *rest, 4.0], [5.0, 5.1, *rest, 6.0], [5.0, 5.0, *rest, 4.0])
    assert same_numbers.compare(plain, [kernels])
    kernels.write_text(json.dumps([5.2, 5.2, *rest, 4.0]))
    assert not same_numbers.compare(plain, [kernels])
    printed = capsys.readouterr().out
    assert (
        "\n2 steps: plain orders from each other 5.00e-02, kernels from plain 1.75e-01" in printed
    )


@pytest.mark.parametrize(
    ("contents", "sentence"),
    [
        (([1.0], [1.0]), "--plain has 1 file; it takes two or more"),
        (([1.0], [1.0], [1.0, 2.0]), "2.json has 2 steps and .*0.json 1"),
        (([], [], []), "0.json holds no list of losses"),
        (([1.0], {"a": 1.0}, [1.0]), "1.json holds no list of losses"),
        (([1.0], [1.0], "[1.0,"), "2.json cannot be read"),
    ],
)
def test_what_cannot_be_compared_is_a_sentence(files, contents, sentence):
    *plain, kernels = files(*contents)
    with pytest.raises(UserError, match=sentence):
        same_numbers.compare(plain, [kernels])
