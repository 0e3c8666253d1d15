"""Small models of each family, and batches for them."""

import pytest
import torch

from powerstep_repro.config import compose
from powerstep_repro.data import resolve
from powerstep_repro.models import build


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture
def small():
    """Return ``small(name, seed=0, **changes) -> module`` at the tiny shape, or as changed."""

    def make(name, seed=0, **changes):
        torch.manual_seed(seed)
        return build({**compose([f"model={name}"])["model"], **changes})

    return make


@pytest.fixture
def batch():
    """Return ``batch(sequences, length, seed=0) -> (tokens, targets)`` of random bytes."""

    def make(sequences, length, seed=0):
        generator = torch.Generator().manual_seed(seed)
        tokens = torch.randint(257, (sequences, length + 1), generator=generator)
        return tokens[:, :-1], tokens[:, 1:]

    return make


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """The embedded corpus, as the tiny profile trains on."""
    return resolve(compose([])["data"], tmp_path_factory.mktemp("data"))
