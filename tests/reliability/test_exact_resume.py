"""Guards exact resume at the harness's level: a run killed anywhere, and started again, leaves
what an undisturbed run leaves, bit for bit: weights, optimizer state, log, windows, summary.
"""

import os
import random
import signal
import time
from functools import partial

import pytest
from reliability_kit import at_checkpoint, at_file_act, differences, hold, kill, left, rows, summary

from powerstep_repro.optim import names

STEPS = 12
GPT2 = ("model.dropout=0.1", "micro_batch=2")
# Two experts of four work on a token; grouped heads wider than hidden / heads.
MOE = (
    *("model=qwen3_30b_a3b", "model.kv_heads=1", "model.head_dim=8", "model.experts=4"),
    *("model.experts_per_token=2", "model.expert_ffn=8"),
)
# Two rules at a rate of their own each, one of them on two kinds.
HYBRID = (
    *("optimizer=powerstep_int8", "groups.embeddings.name=adamw", "groups.embeddings.lr=2e-3"),
    *("groups.gains.name=adamw", "groups.matrices.name=adamw_int8"),
)
CASES = [
    *(pytest.param((*GPT2, f"optimizer={name}"), id=f"gpt2-{name}") for name in names()),
    pytest.param((*GPT2, "optimizer=powerstep_int8", "precision=bf16"), id="gpt2-bf16"),
    pytest.param((*GPT2, *HYBRID[:-1]), id="gpt2-hybrid"),
    pytest.param((*MOE, *HYBRID), id="moe-hybrid"),
    *(
        pytest.param((*MOE, f"optimizer={name}"), id=f"moe-{name}", marks=pytest.mark.slow)
        for name in names()
    ),
]


@pytest.fixture
def chance():
    """Another one each time; a failure shows its seed."""
    seed = int.from_bytes(os.urandom(4), "big")
    print(f"random.Random({seed})")
    return random.Random(seed)


def kill_from_outside(harness, run, chance, first) -> None:
    """SIGKILL while the process does whatever it does in the two steps after ``first``."""
    child = harness.start(run, accident=partial(hold, first, first + 2))
    assert child.hear() == first, harness.said
    time.sleep(chance.uniform(0, 0.02))
    child.process.kill()
    assert child.end() == -signal.SIGKILL


@pytest.mark.parametrize("run", CASES)
def test_killed_from_outside_and_within_a_checkpoint(harness, chance, run):
    kill_from_outside(harness, run, chance, chance.randint(1, STEPS - 4))
    assert summary(harness.run())["status"] == "running"
    stage = chance.choice(["writing", "writing", "writing", "written", "renamed"])
    piece = chance.randint(1, 30) if stage == "writing" else 1
    print(f"then killed in a checkpoint: {stage} {piece}")
    child = harness.start(run, accident=partial(at_checkpoint, stage, piece, kill))
    assert child.end() == -signal.SIGKILL, harness.said
    # The last start and the undisturbed run share a process, to save one.
    assert harness.start(run, (*run, "results_dir=whole")).end() == 0, harness.said
    whole, resumed = left(harness.run("whole")), left(harness.run())
    assert [row["step"] for row in whole["rows"]] == list(range(1, STEPS + 1))
    assert not differences(whole, resumed)
    assert summary(harness.run())["starts"] == 3


def test_killed_before_the_first_checkpoint_it_says_that_it_starts_anew(harness, chance):
    run = (*GPT2, "optimizer=powerstep", "checkpoint_interval=100")
    kill_from_outside(harness, run, chance, 2)
    assert harness.start(run, (*run, "results_dir=whole")).end() == 0, harness.said
    assert harness.said.count("no checkpoint: starts at step 1") == 1
    assert not differences(left(harness.run("whole")), left(harness.run()))


def test_a_log_is_one_history_after_any_number_of_kills(harness, chance):
    run = (*GPT2, "optimizer=powerstep", "steps=20", "checkpoint_interval=2")
    kills, first = 0, 1
    while first <= 18:
        kill_from_outside(harness, run, chance, first)
        kills += 1
        steps = [row["step"] for row in rows(harness.run())]
        assert steps == list(range(1, len(steps) + 1)), "a row is doubled, missing or cut"
        first += chance.randint(3, 5)  # beyond where the next start resumes
    assert harness.start(run, (*run, "results_dir=whole")).end() == 0, harness.said
    assert not differences(left(harness.run("whole")), left(harness.run()))
    assert summary(harness.run())["starts"] == kills + 1
    assert not list(harness.run().rglob("*.tmp"))


def test_killed_at_any_act_on_the_file_system(harness, chance):
    """Of the undisturbed run's acts, each start dies at another; those that end are compared."""
    run = (*GPT2, "optimizer=powerstep_int8", "steps=4", "checkpoint_interval=1")
    assert harness(*run, "results_dir=results_whole") == 0, harness.said
    whole = left(harness.run("results_whole"))
    kills, ends = [], 0
    while len(kills) < 10 or ends < 2:
        act, results = chance.randint(1, 50), f"results_{ends}"
        child = harness.start(
            (*run, f"results_dir={results}"), accident=partial(at_file_act, act, kill)
        )
        if child.end() == -signal.SIGKILL:
            kills.append(act)
        else:
            assert child.end() == 0, harness.said
            assert not differences(whole, left(harness.run(results))), kills
            ends += 1
    print(f"killed at acts {kills}")


def test_a_repeat_is_another_run_with_the_same_bits(harness):
    run = (*GPT2, "optimizer=powerstep", "data.order=permuted")
    assert harness.start(run, (*run, "repeat=1")).end() == 0, harness.said
    one, other = map(left, harness.runs())
    one["checkpoint"], other["checkpoint"] = (
        one["checkpoint"]["state"],
        other["checkpoint"]["state"],
    )
    assert not differences(one, other)
