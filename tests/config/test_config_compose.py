"""Guards: overrides compose to one resolved config, and each mistake ends in one clear sentence."""

import re
import shutil
from pathlib import Path

import pytest

from powerstep_repro.config import CONF, axes, choices, compose, composition, flatten
from powerstep_repro.config.validate import RULES
from powerstep_repro.errors import UserError

MODELS = [
    *("gpt2_small", "gpt2_medium", "qwen3_0_6b", "qwen3_1_7b", "qwen3_4b", "qwen3_8b"),
    *("qwen3_32b", "qwen3_30b_a3b", "qwen3_235b_a22b", "deepseek_v2_lite"),
    "gpt2_16m",
    "gpt2_30m",
    "gpt2_51m",
]


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("optimzer=adamw", ["'optimzer'", "'optimizer'"]),
        ("optimizer.bta=0.2", ["'optimizer.bta'", "'optimizer.beta'", "gamma"]),
        ("beta=0.2", ["'beta'", "'optimizer.beta'"]),
        ("model.layer=2", ["'model.layer'", "'model.layers'"]),
        ("+extra=1", ["'extra'"]),
        ("~lr", ["'~lr'"]),
        ("optimizer=adamv", ["'adamv'", "'adamw'", "powerstep_int8_released"]),
        ("model=gpt2small", ["'gpt2small'", "'gpt2_small'", "deepseek_v2_lite"]),
        ("data=bultin", ["'bultin'", "'builtin'", "openwebtext"]),
        ("profile=h200", ["'h200'", "'h100'", "tiny", "paper"]),
        ("optimizer.name=adamw", ["optimizer.name", "optimizer=NAME"]),
        ("optimizer.beta=1.5", ["optimizer.beta", "[0, 1]", "1.5"]),
        ("optimizer.gamma=1", ["optimizer.gamma", "[0, 1)", "got 1"]),
        ("steps=0", ["steps", "from 1", "got 0"]),
        ("steps=1.5", ["steps", "whole number", "1.5"]),
        ("lr=0", ["lr", "above 0"]),
        ("lr=abc", ["lr", "'abc'"]),
        ("lr=nan", ["lr", "nan"]),
        ("lr=null", ["lr", "null"]),
        ("seed=-1", ["seed", "-1"]),
        ("compile=yes", ["compile", "true or false", "'yes'"]),
        ("precision=fp16", ["precision", "amp_bf16", "'fp16'"]),
        ("micro_batch=0", ["micro_batch", "or null", "got 0"]),
        ("model.layers=two", ["model.layers", "'two'"]),
        ("seed=1,2", ["seed=1,2", "--multirun"]),
        ("lr", ["'lr'", "key=value"]),
        ("lr='${model.rate}'", ["model.rate"]),
    ],
)
def test_a_mistake_is_one_sentence_that_names_it(override, words):
    with pytest.raises(UserError) as caught:
        compose([override])
    sentence = str(caught.value)
    assert "\n" not in sentence
    for word in words:
        assert word in sentence


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (
            ["optimizer=signsgd", "optimizer.beta=.1"],
            "'optimizer.beta'; optimizer=signsgd has gamma",
        ),
        (["++optimizer.foo=1"], "'optimizer.foo'; optimizer=powerstep has gamma, beta"),
        (["+model.foo=1"], "'model.foo'; model=gpt2_small has layers, "),
        (["model.family_=x"], "'model.family_'; model"),
        (["lrr=1"], "'lrr' (did you mean 'lr'?)"),
        (["beat=0.2"], "'beat' (did you mean 'optimizer.beta'?)"),
        (["optimzer.beta=0.2"], "'optimzer.beta' (did you mean 'optimizer.beta'?)"),
    ],
)
def test_only_a_near_key_that_is_allowed_there_is_suggested(overrides, sentence):
    with pytest.raises(UserError, match=re.escape(f"unknown key {sentence}")):
        compose(overrides)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("seed=range(3,3)", "gives no value: write seed=A,B or a range"),
        ("lr=interval(1,2)", "is no list of values to run through: write lr=A,B"),
        ("optimizer=glob(x*)", "matches none of adams, "),
        ("lr=glob(x*)", "matches nothing: it goes with a group alone"),
    ],
)
def test_values_that_nothing_runs_through_are_refused_with_what_is_allowed(override, words):
    with pytest.raises(UserError, match=re.escape(words)):
        axes([override])


def test_a_pair_of_betas_is_checked_element_by_element():
    with pytest.raises(
        UserError, match=r"optimizer.betas must be a list of two numbers in \[0, 1\)"
    ):
        compose(["optimizer=adamw", "optimizer.betas=[0.9,1.0]"])
    with pytest.raises(UserError, match=r"optimizer\.betas"):
        compose(["optimizer=adamw", "optimizer.betas=[0.9]"])


@pytest.mark.parametrize("spelling", ["lr=6e-4", "lr='6e-4'", "lr=0.0006", "++lr=6.0e-4"])
def test_a_rate_is_a_number_however_it_is_spelt(spelling):
    # Plain YAML reads 6e-4, without a point, as a string.
    assert compose([spelling])["lr"] == 0.0006


def test_a_count_may_be_written_in_powers_of_ten():
    steps = compose(["steps=1e3"])["steps"]
    assert steps == 1000
    assert isinstance(steps, int)


def test_of_two_overrides_of_one_key_the_later_counts():
    assert compose(["seed=1", "seed=2"])["seed"] == 2


def test_the_models_own_defaults_reach_the_top_and_give_way_to_overrides():
    config = compose(["profile=paper"])
    assert (config["lr"], config["batch"], config["context"], config["steps"]) == (
        6e-4,
        480,
        1024,
        50_000,
    )
    assert compose(["profile=paper", "lr=1e-3"])["lr"] == 1e-3


def test_warm_up_is_the_papers_or_a_tenth_of_a_shorter_run():
    assert compose(["profile=paper"])["warmup_steps"] == 2000
    assert compose(["steps=205"])["warmup_steps"] == 20
    assert compose(["steps=5"])["warmup_steps"] == 0
    assert compose(["warmup_steps=7"])["warmup_steps"] == 7


def test_each_profile_brings_its_data_unless_data_is_chosen():
    assert compose([])["data"]["name"] == "builtin"
    assert compose(["profile=h100"])["data"]["name"] == "tokens"
    assert compose(["profile=paper"])["data"]["name"] == "openwebtext"
    assert compose(["profile=paper", "model=qwen3_8b"])["data"]["name"] == "c4"
    assert compose(["profile=paper", "model=qwen3_8b", "data=text"])["data"]["name"] == "text"


@pytest.mark.parametrize("model", MODELS)
def test_every_model_composes_in_every_profile(model):
    assert choices("model") == sorted(MODELS)
    paper = compose([f"model={model}", "profile=paper"])
    h100 = compose([f"model={model}", "profile=h100"])
    tiny = compose([f"model={model}", "profile=tiny"])
    assert {c["model"]["name"] for c in (paper, h100, tiny)} == {model}
    assert tiny["model"]["vocab_size"] == 257
    assert tiny["model"]["layers"] < paper["model"]["layers"]
    assert tiny["steps"] < h100["steps"] <= paper["steps"]


def test_a_model_without_a_shape_is_refused_where_it_would_run_whole(tmp_path, monkeypatch):
    """As a new model is until somebody writes how it is scaled down: never the whole on a CPU."""
    shutil.copytree(CONF, tmp_path / "conf")
    monkeypatch.setattr(composition, "CONF", tmp_path / "conf")
    composition._base.cache_clear()
    text = (CONF / "model" / "qwen3_8b.yaml").read_text()
    (tmp_path / "conf/model/mine.yaml").write_text(text.replace("qwen3_8b", "mine"))
    try:
        for profile in ("tiny", "h100"):
            sentence = f"model mine has no shape for profile {profile}: write .*{profile}/mine.yaml"
            with pytest.raises(UserError, match=sentence):
                compose(["model=mine", f"profile={profile}"])
        assert compose(["model=mine", "profile=paper"])["model"]["name"] == "mine"
        (tmp_path / "conf/shape/tiny/mine.yaml").write_text("layers: 1\n")
        assert compose(["model=mine"])["model"]["layers"] == 1
    finally:
        composition._base.cache_clear()


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("results_dir=2026.10", "results_dir", "2026.10"),
        ("results_dir='a, \\'b\\''", "results_dir", "a, 'b'"),
        ("data_dir=a=b#c(d)[e]", "data_dir", "a=b#c(d)[e]"),
        ("results_dir=[x]", "results_dir", "[x]"),
        ("data_dir=~", "data_dir", str(Path.home())),
        ("data_dir=~no_such_user/x", "data_dir", "~no_such_user/x"),
        ("++results_dir=1,2", "results_dir", "1,2"),
    ],
)
def test_a_path_is_read_as_it_stands(override, key, value):
    assert compose([override])[key] == value
    assert axes([override]) == {key: [override]}


def test_data_files_may_be_a_path_a_list_or_one_a_split():
    for text, value in [
        ("a,b (1).json", "a,b (1).json"),
        ("[a.json,b.json]", ["a.json", "b.json"]),
        ("{train: a.json}", {"train": "a.json"}),
    ]:
        found = compose(["profile=paper", f"data.data_files={text}"])["data"]["data_files"]
        assert found == value


def test_every_optimizer_composes_and_carries_no_rate_or_decay_of_its_own():
    for name in choices("optimizer"):
        optimizer = compose([f"optimizer={name}"])["optimizer"]
        assert optimizer["name"] == name
        assert not {"lr", "weight_decay"} & set(optimizer)


def test_every_key_has_a_rule_or_a_type():
    # A key whose file gives null has no type to keep, so it needs a rule.
    for group in ("model", "optimizer", "data", "logger"):
        for name in choices(group):
            for key, value in flatten(compose([f"{group}={name}"])):
                assert key in RULES or value is not None, key


def test_every_key_of_the_main_config_is_explained_below_it():
    lines = (CONF / "config.yaml").read_text().split("hydra:")[0].splitlines()
    for number, line in enumerate(lines):
        if re.match(r"[a-z_]+: ", line):
            assert lines[number + 1].startswith("# "), line
