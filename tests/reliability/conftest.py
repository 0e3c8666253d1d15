import pytest
import torch
from reliability_kit import Harness


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "words.txt"
    path.write_text("".join(f"{n} plus {n % 7} is {n + n % 7}.\n" for n in range(3000)))
    return path


@pytest.fixture
def harness(tmp_path, text):
    return Harness(tmp_path, text)
