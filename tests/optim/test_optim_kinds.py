"""Which parameters are embeddings, head, gains and matrices, found in any model."""

import pytest
import torch
from torch import nn

from nanogpt.model import GPT, GPTConfig
from powerstep_repro.config import choices, compose
from powerstep_repro.models import build
from powerstep_repro.models.count import count_by_kind
from powerstep_repro.optim import KINDS, groups_by_kind, parameter_kinds


def names_of(model: nn.Module) -> dict[str, set[str]]:
    kinds = parameter_kinds(model)
    return {kind: {n for n, k in kinds.items() if k == kind} for kind in set(kinds.values())}


def test_nanogpts_gpt2_even_where_a_block_has_the_vocabularys_width():
    model = GPT(GPTConfig(vocab_size=64, context=64, n_layer=1, n_head=2, n_embd=16))
    found = names_of(model)
    assert found["token_embeddings"] == {"wte.weight"}
    assert found["positions"] == {"wpe.weight"}
    assert len(found["gains"]) == 3
    assert found.keys() == {"token_embeddings", "positions", "gains", "matrices"}


@pytest.mark.parametrize("name", choices("model"))
def test_the_models_by_name_and_their_counts_in_closed_form(name):
    config = compose([f"model={name}", "profile=tiny"])["model"]
    with torch.device("meta"):
        model = build(config)
    found = names_of(model)
    tied = config.get("tied", True)
    assert len(found["token_embeddings"]) == 1
    assert len(found.get("head", ())) == (0 if tied else 1)
    assert len(found.get("positions", ())) == (1 if config["family"] == "gpt2" else 0)
    parameters = dict(model.named_parameters())
    assert all(parameters[n].dim() < 2 for n in found["gains"])
    assert all(parameters[n].dim() >= 2 for n in found["matrices"])
    vocabulary = (*found["token_embeddings"], *found.get("head", ()))
    assert {parameters[n].shape[0] for n in vocabulary} == {config["vocab_size"]}
    by_kind = {k: sum(parameters[n].numel() for n in found.get(k, ())) for k in KINDS}
    assert count_by_kind(config) == {k: n for k, n in by_kind.items() if k != "embeddings"}


def test_gpt2_with_a_head_of_its_own():
    config = compose(["model.tied_head=false"])["model"]
    model = build(config)
    assert names_of(model)["head"] == {"head.weight"}
    assert count_by_kind(config)["head"] == model.head.weight.numel() == 257 * 96
    logits = model(torch.arange(8)[None]).logits
    torch.nn.init.zeros_(model.head.weight)
    assert logits.any()
    assert not model(torch.arange(8)[None]).logits.any()


class Plain(nn.Module):
    def __init__(self, tied=False, bias=False):
        super().__init__()
        self.out = nn.Linear(8, 12, bias=bias)
        self.layers = nn.ModuleList([nn.Linear(8, 12), nn.Linear(12, 8)])
        self.wpe = nn.Embedding(20, 8)
        self.wte = nn.Embedding(12, 8)
        self.vocab_size = 12
        self.experts = nn.Parameter(torch.zeros(2, 8, 8))
        if tied:
            self.out.weight = self.wte.weight


def test_a_plain_model_with_and_without_a_tied_head():
    found = names_of(Plain(bias=True))
    assert found["head"] == {"out.weight"}
    assert found["token_embeddings"] == {"wte.weight"}
    assert found["positions"] == {"wpe.weight"}
    assert found["matrices"] == {"layers.0.weight", "layers.1.weight", "experts"}
    assert found["gains"] == {"out.bias", "layers.0.bias", "layers.1.bias"}
    # Tied: one parameter, under the name that comes first.
    assert names_of(Plain(tied=True))["token_embeddings"] == {"out.weight"}
    assert "head" not in names_of(Plain(tied=True))


def test_wrapped_and_frozen():
    model = Plain()
    model.wpe.weight.requires_grad_(False)
    wrapped = nn.ModuleDict({"module": model})
    assert "positions" not in names_of(wrapped)
    assert names_of(wrapped)["head"] == {"module.out.weight"}


def test_gpt2_of_transformers():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=64, n_positions=64)
    found = names_of(transformers.GPT2LMHeadModel(config))
    assert found["token_embeddings"] == {"transformer.wte.weight"}
    assert found["positions"] == {"transformer.wpe.weight"}
    assert len(found["matrices"]) == 4
    assert "head" not in found


def test_nothing_but_matrices_and_gains():
    assert set(parameter_kinds(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))).values()) == {
        "matrices",
        "gains",
    }


def names_in(groups) -> list[list[str]]:
    return [[name for name, _ in group["params"]] for group in groups]


def test_decay_is_for_matrices_unless_for_all():
    model = GPT(GPTConfig(61, 16, 2, 2, 16))
    model.wpe.weight.requires_grad_(False)
    (decayed, others), *nothing = groups_by_kind(model, weight_decay=0.1).values()
    assert not nothing
    assert {p.dim() for _, p in decayed["params"]} == {2}
    assert {p.dim() for _, p in others["params"]} == {1}
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.1, 0.0)
    order = [n for n, p in model.named_parameters() if p.requires_grad]
    assert sorted(n for names in names_in([decayed, others]) for n in names) == sorted(order)
    assert names_in([decayed]) == [[n for n in order if "ln" not in n]]
    everything = groups_by_kind(model, weight_decay=0.1, weight_decay_on="all")["rest"]
    assert [group["weight_decay"] for group in everything] == [0.1, 0.1]


def test_a_part_of_the_embeddings_goes_before_the_whole():
    model = Plain()
    parts = groups_by_kind(model, "embeddings", "token_embeddings", weight_decay=0.1)
    assert names_in(parts["token_embeddings"]) == [["wte.weight"]]
    assert names_in(parts["embeddings"]) == [["wpe.weight"]]
    alone = groups_by_kind(model, "positions")
    assert names_in(alone["positions"]) == [["wpe.weight"]]
    assert "wte.weight" in names_in(alone["rest"])[0]
    everything = [n for part in parts.values() for group in names_in(part) for n in group]
    assert sorted(everything) == sorted(n for n, _ in model.named_parameters())


def test_unknown_words_are_refused():
    with pytest.raises(ValueError, match="unknown kind 'gain'; did you mean 'gains'"):
        groups_by_kind(Plain(), "gain")
    with pytest.raises(ValueError, match="weight_decay_on must be matrices or all, not 'none'"):
        groups_by_kind(Plain(), weight_decay_on="none")
