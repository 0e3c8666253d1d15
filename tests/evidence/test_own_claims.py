"""Guards the judges of our own claims: each confirmed, refuted and left open by runs made so."""

import json

import numpy as np
import pytest

from powerstep_repro.evidence import Evidence
from powerstep_repro.evidence.judged import judge_claim, judge_own
from powerstep_repro.evidence.verdicts import JUDGES
from powerstep_repro.evidence.verdicts_own import rise
from powerstep_repro.paper import CLAIMS, OWN_CLAIMS

HELD, REFUTED, OPEN = "reproduced", "not reproduced", "inconclusive"
EMBEDDINGS = {"groups.embeddings.name": "adamw"}
BOTH = EMBEDDINGS | {"groups.gains.name": "adamw"}
NONE = {"groups.embeddings.name": None}


def judged(name, world):
    claim = next(claim for claim in OWN_CLAIMS if claim.name == name)
    return judge_claim(claim, Evidence(world.results, "h100"))


def add(world, sweep, optimizer, losses, where=(), first_seed=1337, **kwargs):
    where = {"optimizer": optimizer, **dict(where)}
    world.add(sweep, where, losses=losses, first_seed=first_seed, **kwargs)


def warm(world, optimizer, steps, loss, rules=NONE, **kwargs):
    add(world, "warmup", optimizer, (loss,), {"warmup_steps": steps, **rules}, **kwargs)


def test_each_says_what_settles_it_and_nothing_run_is_not_run(world):
    assert len(CLAIMS) == 22
    names = [claim.name for claim in (*CLAIMS, *OWN_CLAIMS)]
    assert len({*names}) == len(names)
    for claim in OWN_CLAIMS:
        assert claim.kind in JUDGES
        assert claim.confirms != claim.refutes
    assert {c.stage for c in OWN_CLAIMS if c.models == ("gpt2_small",)} == {"test"}
    assert {c.stage for c in OWN_CLAIMS if c.models == ("gpt2_30m",)} == {"exploration"}
    judgements = judge_own(Evidence(world.results, "h100"))
    assert {judgement.verdict for judgement in judgements} == {"not run"}


@pytest.mark.parametrize(
    ("powerstep", "signsgd", "verdict"),
    [(4.99, 4.99, HELD), (4.99, 4.82, REFUTED), (4.99, 4.86, OPEN), (4.99, None, HELD)],
)
def test_what_a_short_warmup_costs_beyond_what_it_costs_adamw(world, powerstep, signsgd, verdict):
    warm(world, "adamw", 150, 4.50)
    warm(world, "adamw", 38, 4.51)  # so that 0.05 more is 0.06
    for optimizer, short in (("powerstep", powerstep), ("signsgd", signsgd)):
        warm(world, optimizer, 150, 4.80)
        warm(world, optimizer, 38, short, diverged_at=None if short else 99)
    judgement = judged("short_warmup_costs_signs_more", world)
    assert judgement.verdict == verdict
    assert judgement.items[0].evidence == "+0.180 ± 0.03, n = 1 (4.990 against 4.800)"
    assert judged("short_warmup_costs_adamw_nothing", world).verdict == HELD
    # The hybrid's runs are its own, and PowerStep's everywhere are none of them.
    hybrid = judged("short_warmup_costs_through_the_embeddings", world)
    assert hybrid.verdict == "not run"


@pytest.mark.parametrize(("short", "verdict"), [(4.61, HELD), (4.75, REFUTED), (4.66, OPEN)])
def test_the_hybrid_loses_no_more_than_adamw(world, short, verdict):
    for optimizer, rules in (("adamw", NONE), ("powerstep", BOTH)):
        warm(world, optimizer, 150, 4.60, rules)
    warm(world, "adamw", 38, 4.60)
    warm(world, "powerstep", 38, short, BOTH)
    assert judged("short_warmup_costs_through_the_embeddings", world).verdict == verdict


def test_no_optimizer_does_without_a_warmup(world):
    sides = (("adamw", NONE), ("signsgd", NONE), ("powerstep", NONE), ("powerstep", BOTH))
    for optimizer, rules in sides:
        warm(world, optimizer, 150, 4.60, rules)
        warm(world, optimizer, 0, 5.60, rules)
        known = judged("no_warmup_costs_all", world)
    assert (known.verdict, known.coverage) == (HELD, "4 of 4")
    warm(world, "signsgd", 0, 4.55, first_seed=1338)
    warm(world, "signsgd", 150, 4.60, first_seed=1338)
    assert judged("no_warmup_costs_all", world).verdict == OPEN  # two seeds that disagree


def rising(by):
    """A log whose last tenth stands ``by`` nats above what came before."""

    def change(lines):
        rows = [json.loads(line) for line in lines]
        for row in rows[-len(rows) // 10 :]:
            row["train_loss"] += by
        return [json.dumps(row) for row in rows] + [""]

    return change


@pytest.mark.parametrize(("by", "verdict"), [(3.0, HELD), (0.3, REFUTED)])
def test_collapse_is_a_rise_above_ones_own_minimum(world, by, verdict):
    for steps in (0, 38):
        warm(world, "adamw_int8_released", steps, 5.5, log=rising(by), log_interval=5)
    warm(world, "adamw_int8_released", 150, 9.9, log_interval=5)  # slow is not collapsed
    assert judged("released_int8_collapses_at_a_short_warmup", world).verdict == verdict
    assert judged("released_int8_trains_at_a_long_warmup", world).verdict == HELD


def test_which_part_of_the_released_code_collapses(world):
    for betas, ends in (([0.9, 0.95], 90), ([0.9, 0.999], None)):
        where = {"warmup_steps": 38, "optimizer.betas": betas}
        loss = (None if ends else 5.5,)
        add(world, "collapse", "adamw_int8_released", loss, where, diverged_at=ends)
    judgement = judged("collapse_is_not_beta2", world)
    assert judgement.verdict == REFUTED
    assert [item.verdict for item in judgement.items] == [HELD, REFUTED]
    add(world, "collapse", "adamw_int8", (5.5,), {"warmup_steps": 38})
    judgement = judged("collapse_needs_the_released_code", world)
    assert judgement.words == "inconclusive so far: 1 of 1 parts run holds"
    add(world, "collapse", "adamw_int8", (None,), {"warmup_steps": 150}, diverged_at=90)
    assert judged("collapse_needs_the_released_code", world).verdict == REFUTED


def test_a_rise_is_from_the_lowest_before():
    assert rise(np.array([9.0, 4.0, 3.0, 3.5, 2.0])) == 0.5
    assert rise(np.array([])) == 0.0


@pytest.mark.parametrize(
    ("hybrid", "verdict"),
    [((3.70, 3.71), HELD), ((3.78, 3.79), REFUTED), ((3.60, 3.86), OPEN), ((3.70,), OPEN)],
)
def test_half_of_the_gap_at_124m(world, hybrid, verdict):
    for optimizer, rules, ends, rates in (
        ("adamw", NONE, (3.66, 3.67), (2.4e-3, 1.2e-3, 4.8e-3)),
        ("powerstep", NONE, (3.80, 3.81), (6e-4, 3e-4, 1.2e-3)),
        ("powerstep", EMBEDDINGS, hybrid, (6e-4, 3e-4, 1.2e-3)),
    ):
        for lr, losses in zip(rates, (ends, (4.0,), (4.1,)), strict=True):
            add(world, "where_small", optimizer, losses, {"lr": lr, **rules})
    assert judged("gap_sits_in_the_embeddings", world).verdict == verdict


def test_half_of_the_gap_is_open_at_an_edge_and_one_run_counts_in_exploration(world):
    name = "gap_sits_in_the_embeddings_at_30m"
    add(world, "where", "adamw", (4.45,), {"lr": 2.4e-3, "groups.matrices.name": None})
    for lr, loss in ((1.5e-4, 4.9), (3e-4, 4.6), (6e-4, 4.53)):
        add(world, "where", "powerstep", (loss,), {"lr": lr, "groups.embeddings.lr": 2.4e-3} | BOTH)
    for lr, loss in ((3e-4, 5.0), (4.2e-4, 4.89)):
        plain = {"lr": lr, "groups.embeddings.name": None}
        add(world, "where", "powerstep", (loss,), plain)
    judgement = judged(name, world)
    assert judgement.verdict == OPEN
    assert "PowerStep's best rate 4.2e-4 is the highest run" in judgement.items[0].evidence
    plain = {"lr": 6e-4, "groups.embeddings.name": None, "groups.token_embeddings.name": None}
    plain |= {f"groups.{kind}.name": None for kind in ("matrices", "positions", "gains")}
    add(world, "where", "powerstep", (4.95,), plain)
    add(world, "where", "powerstep", (4.7,), {"lr": 8.5e-4} | BOTH)
    for lr in (1.2e-3, 3.4e-3):
        add(world, "where", "adamw", (4.6,), {"lr": lr})
    judgement = judged(name, world)
    assert judgement.verdict == HELD
    assert judgement.items[0].evidence.startswith("-0.140 ± 0.03, n = 1")


@pytest.mark.parametrize(
    ("reruns", "verdict"),
    [((5.00, 5.01, 5.02), HELD), ((5.0001, 5.0002, 5.0), REFUTED), ((5.010, 5.0, 5.005), OPEN)],
)
def test_the_spread_of_reruns_beside_that_of_seeds(world, reruns, verdict):
    seeds = (5.0, 5.01, 5.02, 5.03)
    add(world, "repeats", "powerstep", seeds, {"repeat": 0, "seed": 1337})
    for repeat, loss in enumerate(reruns, start=1):
        judgement = judged("a_rerun_spreads_like_a_seed", world)
        assert repeat > 2 or judgement.verdict == OPEN  # too few
        add(world, "repeats", "powerstep", (loss,), {"repeat": repeat})
    assert judged("a_rerun_spreads_like_a_seed", world).verdict == verdict
