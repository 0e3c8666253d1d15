"""Guards the judges: each claim confirmed, refuted and left open by runs made to do so."""

import pytest

from powerstep_repro.evidence import Evidence
from powerstep_repro.evidence.judged import judge_all, judge_claim
from powerstep_repro.evidence.tuned import tuned
from powerstep_repro.evidence.verdicts import JUDGES
from powerstep_repro.evidence.verdicts_other import codes_that_differ
from powerstep_repro.paper import CLAIMS

ONE_HOLDS = "inconclusive so far: 1 of 1 parts run holds"


def judged(name, world, profile="h100"):
    claim = next(claim for claim in CLAIMS if claim.name == name)
    return judge_claim(claim, Evidence(world.results, profile))


def add(world, sweep, model, optimizer, losses, **kwargs):
    where = {"model": model, "optimizer": optimizer, **kwargs.pop("where", {})}
    world.add(sweep, where, losses=losses, **kwargs)


def test_every_claim_has_a_judge_and_nothing_run_is_not_run(world):
    assert {claim.kind for claim in CLAIMS} <= set(JUDGES)
    verdicts = {j.claim.name: j.verdict for j in judge_all(Evidence(world.results, "h100"))}
    by_arithmetic = {"memory_8x": "reproduced", "heavy_ball_more_robust": "not reproduced"}
    assert verdicts == {name: by_arithmetic.get(name, "not run") for name in verdicts}


def test_tiny_judges_nothing(world):
    judgements = judge_all(Evidence(world.results, "tiny"))
    assert {j.verdict for j in judgements} == {"no verdict"}
    assert not any(j.items for j in judgements)


@pytest.mark.parametrize(
    ("losses", "verdict"),
    [
        ((3.01, 3.11), ONE_HOLDS),
        ((3.05, 3.15), "not reproduced"),
        ((3.01,), "inconclusive"),
        ((3.00, 3.16), "inconclusive"),
    ],
)
def test_parity(world, losses, verdict):
    add(world, "small", "gpt2_small", "adamw", (3.0, 3.1))
    add(world, "small", "gpt2_small", "powerstep", losses)
    judgement = judged("parity", world)
    assert judgement.words == verdict
    assert verdict.startswith(judgement.verdict)
    assert judgement.coverage == "1 of 6"
    assert "6 of 6 within ±0.028" in judgement.on_paper


def test_parity_is_refuted_by_divergence_of_every_seed_only(world):
    add(world, "small", "gpt2_small", "adamw", (3.0, 3.1))
    add(world, "small", "gpt2_small", "powerstep", (None,), diverged_at=300)
    assert judged("parity", world).verdict == "inconclusive"
    add(world, "small", "gpt2_small", "powerstep", (None,), first_seed=2, diverged_at=400)
    assert judged("parity", world).verdict == "not reproduced"


# Full size for every model: h100 scales the large ones.
PAPER = {"profile": "paper", "log_interval": 5000, "parquet": False}


def test_typically_needs_more_than_half_of_the_six(world):
    models = ("gpt2_small", "gpt2_medium", "qwen3_0_6b", "qwen3_1_7b")
    for count, model in enumerate(models, start=1):
        for optimizer in ("adamw", "powerstep"):
            add(world, "small", model, optimizer, (3.0, 3.1), window_noise=0.001, **PAPER)
        if count >= 3:
            expected = "inconclusive" if count == 3 else "reproduced"
            assert judged("parity_typical", world, "paper").verdict == expected


@pytest.mark.parametrize(
    ("gaps", "verdict"),
    [
        ((0.0, 0.02, 0.04, 0.06), "not reproduced"),
        ((0.010, 0.0101, 0.0099, 0.010), "reproduced"),
        ((0.0, 0.2, -0.2, 0.1), "inconclusive"),
    ],
)
def test_trend_with_scale(world, gaps, verdict):
    models = ("gpt2_small", "gpt2_medium", "qwen3_1_7b", "qwen3_8b")
    for model, gap in zip(models, gaps, strict=True):
        add(world, "small", model, "adamw", (3.0, 3.1), **PAPER)
        add(world, "small", model, "powerstep", (3.0 + gap, 3.1 + gap), **PAPER)
    judgement = judged("no_trend_with_scale", world, "paper")
    assert judgement.verdict == verdict
    assert "not reproduced by this rule" in judgement.on_paper  # the printed gaps grow


def test_a_scaled_model_is_shown_but_settles_nothing(world):
    for model in ("gpt2_small", "qwen3_8b"):
        losses = (3.0, 3.1) if model == "gpt2_small" else (9.0, 9.1)
        add(world, "small", model, "adamw", (3.0, 3.1))
        add(world, "small", model, "powerstep", losses)
    judgement = judged("parity", world)
    assert (judgement.verdict, judgement.coverage) == ("inconclusive", "1 of 6")
    (scaled,) = [item for item in judgement.items if item.verdict == "another model"]
    assert "not reproduced there, but the model is scaled to " in scaled.evidence


def test_others_slower_counts_divergence_and_the_paper_contradicts_itself(world):
    add(world, "small", "gpt2_small", "powerstep", (3.0, 3.1))
    add(world, "small", "gpt2_small", "pbsgdm", (3.4, 3.5))
    add(world, "small", "gpt2_small", "adams", (None, None), diverged_at=99)
    judgement = judged("others_slower", world)
    assert judgement.words == "inconclusive so far: 2 of 2 parts run hold"
    assert "10 of 18" in judgement.on_paper
    add(world, "small", "gpt2_small", "signsgd", (2.9, 3.0))
    assert judged("others_slower", world).verdict == "not reproduced"


@pytest.mark.parametrize(
    ("claim", "optimizer"),
    [
        ("adamw_int8_collapses", "adamw_int8"),
        ("adamw_int8_released_collapses", "adamw_int8_released"),
    ],
)
@pytest.mark.parametrize(
    ("losses", "verdict"),
    [
        ((30.7, 31.0), ONE_HOLDS),
        ((4.19, 4.20), "not reproduced"),
        ((4.19, 31.0), "inconclusive"),
        ((30.7,), "inconclusive"),
    ],
)
def test_collapse(world, claim, optimizer, losses, verdict):
    add(world, "quant", "gpt2_small", "adamw", (4.15, 4.16))
    add(world, "quant", "gpt2_small", optimizer, losses)
    assert judged(claim, world).words == verdict


def test_a_universal_claim_is_reproduced_by_all_its_parts_alone(world):
    for model in ("gpt2_small", "gpt2_medium"):
        add(world, "quant", model, "adamw", (4.15, 4.16), **PAPER)
        add(world, "quant", model, "adamw_int8_released", (30.7, 31.0), **PAPER)
        name = "adamw_int8_released_collapses"
        expected = ONE_HOLDS if model == "gpt2_small" else "reproduced"
        assert judged(name, world, "paper").words == expected


def test_which_claims_are_not_universal():
    assert {c.name for c in CLAIMS if not c.universal} == {"parity_typical", "memory_8x"}


def test_int8_powerstep_is_judged_for_both_codes(world):
    add(world, "quant", "gpt2_small", "powerstep", (4.50, 4.51))
    dynamic, linear = ({"optimizer.code": code} for code in ("dynamic", "linear"))
    add(world, "quant", "gpt2_small", "powerstep_int8", (4.50, 4.51), where=dynamic)
    add(world, "quant", "gpt2_small", "powerstep_int8", (4.90, 4.91), where=linear)
    stable = judged("powerstep_int8_stable", world)
    assert stable.words == "inconclusive so far: 2 of 2 parts run hold"
    judgement = judged("int8_equals_fp32", world)
    assert judgement.verdict == "not reproduced"
    verdicts = {item.what: item.verdict for item in judgement.items if item.verdict != "not run"}
    assert verdicts == {
        "GPT-2-Small (124M): PowerStep int8, code = dynamic": "reproduced",
        "GPT-2-Small (124M): PowerStep int8, code = linear": "not reproduced",
    }


def test_beta_zero_against_signsgd(world):
    for beta, losses in ((0.0, (None, None)), (0.1, (3.0, 3.1)), (0.2, (3.2, 3.3))):
        diverged = 500 if beta == 0 else None
        add(
            world,
            "beta",
            "gpt2_medium",
            "powerstep",
            losses,
            where={"optimizer.beta": beta},
            diverged_at=diverged,
        )
    assert judged("beta0_collapses", world).verdict == "reproduced"
    assert judged("beta_best", world).verdict == "reproduced"
    add(world, "small", "gpt2_medium", "adamw", (3.0, 3.1))
    add(world, "small", "gpt2_medium", "signsgd", (3.02, 3.12))
    assert judged("signsgd_trains_on_medium", world).verdict == "reproduced"


def test_another_model_is_shown_but_settles_nothing(world):
    world.add("gamma", overrides=("model=gpt2_small",), losses=(3.0, 3.1))
    judgement = judged("gamma_robust", world)
    assert judgement.verdict == "inconclusive"
    assert {item.verdict for item in judgement.items} == {"another model"}
    assert all("reproduced there, but it is not the paper's" in i.evidence for i in judgement.items)


def test_parity_at_own_rate_names_the_edge(world):
    for optimizer, lr, losses in (
        ("adamw", 6e-4, (4.2, 4.3)),
        ("adamw", 1.2e-3, (4.0, 4.1)),
        ("powerstep", 3e-4, (4.01, 4.11)),
    ):
        world.add("lr_tuned", {"optimizer": optimizer, "lr": lr}, losses=losses)
    judgement = judged("parity_not_an_lr_artifact", world)
    assert judgement.verdict == "inconclusive"
    (item,) = judgement.items
    assert item.evidence.startswith("at 3e-4 against 1.2e-3: gap +0.010")
    assert "PowerStep's best rate 3e-4 is the only one run" in item.evidence
    assert "AdamW's best rate 1.2e-3 is the highest run" in item.evidence


@pytest.mark.parametrize(
    ("powerstep", "verdict"),
    [
        ({3e-4: 4.01}, "inconclusive"),
        ({3e-4: 4.01, 6e-4: 4.5}, "inconclusive"),
        ({3e-4: 9.0, 6e-4: 8.5}, "inconclusive"),
        ({1.5e-4: 4.5, 3e-4: 4.01, 6e-4: 4.5}, "reproduced"),
        ({1.5e-4: 9.0, 3e-4: 8.5, 6e-4: 9.0}, "not reproduced"),
    ],
)
def test_parity_at_own_rates_is_open_until_each_best_lies_inside_its_grid(
    world, powerstep, verdict
):
    """The shared rate alone says nothing of an artifact of the shared rate."""
    adamw = {6e-4: 4.2, 1.2e-3: 4.0, 2.4e-3: 4.2}
    for optimizer, losses in (("adamw", adamw), ("powerstep", powerstep)):
        for lr, loss in losses.items():
            where = {"optimizer": optimizer, "lr": lr}
            world.add("lr_tuned", where, losses=(loss, loss + 0.1))
    assert judged("parity_not_an_lr_artifact", world).verdict == verdict
    assert tuned(Evidence(world.results, "h100"))["powerstep"].verdict == verdict


def rates(world, optimizer, losses):
    grid = (1e-4, 2e-4, 4e-4, 6e-4, 8e-4, 1e-3)
    for lr, loss in zip(grid, losses, strict=True):
        world.add("lr", {"optimizer": optimizer, "lr": lr}, losses=(loss, loss + 0.1))


def test_larger_rates(world):
    rates(world, "adamw", (3.5, 3.4, 3.3, 3.2, 3.1, 3.0))
    rates(world, "powerstep", (3.51, 3.41, 3.31, 3.21, 3.11, 3.01))
    assert judged("faster_at_larger_lr", world).verdict == "reproduced"
    assert judged("lr_sensitivity_alike", world).verdict == "reproduced"


def test_larger_rates_are_open_while_the_largest_is_not_run(world):
    for optimizer in ("adamw", "powerstep"):
        for lr, loss in ((1e-4, 3.5), (6e-4, 3.0)):
            where = {"optimizer": optimizer, "lr": lr}
            world.add("lr", where, losses=(loss, loss + 0.1))
    assert judged("faster_at_larger_lr", world).verdict == "inconclusive"
    assert judged("lr_sensitivity_alike", world).verdict == "inconclusive"


def test_larger_rates_that_hurt(world):
    rates(world, "adamw", (3.5, 3.4, 3.3, 3.2, 3.1, 3.0))
    rates(world, "powerstep", (3.5, 3.4, 3.3, 3.4, 3.5, 3.6))
    assert judged("faster_at_larger_lr", world).verdict == "not reproduced"
    assert judged("lr_sensitivity_alike", world).verdict == "not reproduced"


def test_stacey_early_and_at_the_end(world):
    add(world, "stacey", "gpt2_small", "powerstep", (3.0, 3.1), where={"lr": 6e-4})
    add(world, "stacey", "gpt2_small", "stacey", (3.01, 3.11), where={"lr": 6e-4})
    early = judged("faster_than_stacey_early", world)
    assert early.words == ONE_HOLDS  # the whole synthetic curve is 0.01 higher
    assert early.coverage == "1 of 4"
    assert judged("equal_to_stacey_at_the_end", world).words == ONE_HOLDS


@pytest.mark.parametrize(
    ("speed", "verdict"), [(1.01, ONE_HOLDS), (0.8, "not reproduced"), (1.2, "not reproduced")]
)
def test_wall_clock(world, speed, verdict):
    add(world, "small", "gpt2_small", "adamw", (3.0, 3.1))
    add(world, "small", "gpt2_small", "powerstep", (3.0, 3.1), speed=speed)
    assert judged("no_wall_clock_difference", world).words == verdict


def test_speeds_of_two_revisions_are_not_compared(world):
    add(world, "small", "gpt2_small", "adamw", (3.0, 3.1))
    later = {"git_revision": "89abcdef0123"}
    add(world, "small", "gpt2_small", "powerstep", (3.0, 3.1), speed=1.2, summary=later)
    assert judged("no_wall_clock_difference", world).words == "not run"


def test_measured_state_enters_the_memory_claim(world):
    params = 124_373_760
    sizes = {"adamw": 8, "powerstep_int8": 1.03125}
    for optimizer, size in sizes.items():
        state = {"optimizer_state_bytes": int(size * params)}
        add(world, "quant", "gpt2_small", optimizer, (3.0,), summary=state)
    judgement = judged("memory_8x", world)
    assert judgement.verdict == "reproduced"
    assert [item.evidence for item in judgement.items][-1] == "7.76"
    assert "7.76" in judgement.on_paper


def test_a_measured_state_says_of_which_size_it_is(world):
    for optimizer, size in (("adamw", 8), ("powerstep_int8", 1.03125)):
        summary = {"n_params": 1_000_000_000, "optimizer_state_bytes": int(size * 1e9)}
        add(world, "large", "qwen3_32b", optimizer, (3.0,), summary=summary)
    items = judged("memory_8x", world).items
    assert items[-1].what == "Qwen3-32B, scaled to 1B parameters, measured"


def test_heavy_ball_and_average_hold_the_same_codes():
    assert codes_that_differ(blocks=32, steps=100) < 1e-4
