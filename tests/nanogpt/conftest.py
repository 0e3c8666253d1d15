import pytest
import torch
from trainer_kit import write_data

from nanogpt.data import TokenData


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def data_folder(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("walk"))


@pytest.fixture(scope="session")
def data(data_folder):
    return TokenData.open(data_folder)
