import pytest
from train_kit import Command


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "words.txt"
    path.write_text("".join(f"{n} plus {n % 7} is {n + n % 7}.\n" for n in range(3000)))
    return path


@pytest.fixture
def command(tmp_path, text):
    return Command(tmp_path, text)
