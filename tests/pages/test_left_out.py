"""Guards what is said of runs that a table or a figure cannot show."""

from powerstep_repro.evidence import Evidence
from powerstep_repro.pages.figures import draw
from powerstep_repro.pages.report import document
from powerstep_repro.pages.tables import build

SMALL = {"model": "gpt2_small"}
ADAMW, POWERSTEP = SMALL | {"optimizer": "adamw"}, SMALL | {"optimizer": "powerstep"}


def test_a_run_on_other_data_is_not_called_not_run(world, texts):
    for where in (ADAMW, SMALL | {"optimizer": "signsgd"}):
        world.add("small", where, losses=(3.0, 3.1))
    (run,) = world.add("small", POWERSTEP, losses=(3.0,), data=("another-mix", "ff" * 8))
    evidence = Evidence(world.results, "h100")
    for name in ("valid_small", "lr_tuned"):
        (row,) = [
            r
            for r in build(name, evidence).long
            if r["optimizer"] == "powerstep" and r["model"] == "gpt2_small"
        ]
        assert (row["ours"], row["verdict"]) == ("other data", "other data")
    said = texts(draw("small", evidence))
    assert "PowerStep: other data" in said
    assert "AdamS: not run" in said
    text = document(evidence)
    findings = text.partition("## The paper's claims")[0]
    assert f"another-mix ({'ff' * 8}, 1 run)" in findings
    assert "english-mix (00aa11bb22cc33dd, 4 runs)" in findings
    left_out = "Left out beside runs on other data, of which there are more"
    assert f"{left_out}: {run.name} (another-mix)." in findings
    assert "Sweeps are on different data and are not compared: " in findings
    assert "GPT-2-Small (124M): PowerStep (other data)" in text


def test_a_panel_whose_runs_are_all_on_other_data_or_failed_says_so(world, texts):
    medium = {"model": "gpt2_medium"}
    world.add("small", ADAMW, losses=(3.0, 3.1, 3.2))
    world.add("small", medium | {"optimizer": "adamw"}, losses=(3.0,), data=("another", "ff" * 8))
    world.add("small", medium | {"optimizer": "adams"}, losses=(None,), status="failed")
    world.add("small", {"model": "qwen3_0_6b", "optimizer": "adams"}, losses=(3,), status="failed")
    evidence = Evidence(world.results, "h100")
    said = texts(draw("small", evidence))
    assert "other data" in said
    (reasons,) = [text for text in said if text.startswith("AdamW: other data\n")]
    assert "AdamS: failed\n" in reasons
    assert any(text.startswith("AdamS: failed\npython -m") for text in said)
    for row in build("valid_small", evidence).long:
        if row["model"] == "gpt2_medium" and row["optimizer"] in ("adamw", "adams"):
            assert row["ours"] == {"adamw": "other data", "adams": "failed"}[row["optimizer"]]


def test_a_sound_run_has_no_warnings(world, caplog):
    world.add("small", ADAMW, losses=(3.0, 3.1))
    signsgd = {"model": "gpt2_small", "optimizer": "signsgd"}
    world.add("small", signsgd, losses=(None,), diverged_at=640)
    evidence = Evidence(world.results, "h100")
    draw("small", evidence)
    assert "damaged" not in document(evidence).partition("## The paper's claims")[0]
    assert caplog.messages == []


def test_a_run_that_diverged_at_once_is_no_run_that_was_not_made(world, texts):
    signsgd = {"model": "gpt2_small", "optimizer": "signsgd"}
    world.add("small", signsgd, losses=(None,), diverged_at=1)
    said = texts(draw("small", Evidence(world.results, "h100")))
    assert "no data" in said
    assert any(text.startswith("SignSGD: diverged at step 1\n") for text in said)
    world.add("small", ADAMW, losses=(3.0,))
    said = texts(draw("small", Evidence(world.results, "h100")))
    assert "SignSGD: diverged at step 1" in said
    assert "PowerStep: not run" in said
