"""Guards that no file makes the project run code: nothing is unpickled, evaluated or trusted.

Every call in every source of the project is looked at. What a run shares is JSON, YAML, Parquet,
raw token ids, and tensors that ``torch.load`` reads with ``weights_only=True``.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path for folder in ("nanogpt", "powerstep_repro") for path in (ROOT / folder).rglob("*.py")
)
# Modules that turn bytes into objects by running what the bytes say.
UNPICKLERS = {"_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
BUILTINS = {"eval", "exec"}
CALLS = {"read_pickle", "Unpickler", "unsafe_load", "full_load", "UnsafeLoader", "FullLoader"}


def complaints(source: str) -> list[str]:
    """What in a source could run code from a file, each with its line."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            found += [
                f"{node.lineno}: imports {module}{alias.name}"
                for alias in node.names
                if f"{module}{alias.name}".split(".")[0] in UNPICKLERS or module == "pickle."
            ]
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            name = called.rpartition(".")[2]
            keywords = {word.arg: ast.unparse(word.value) for word in node.keywords}
            if called == "torch.load" and keywords.get("weights_only") != "True":
                found.append(f"{node.lineno}: torch.load without weights_only=True")
            if keywords.get("allow_pickle", "False") != "False":
                found.append(f"{node.lineno}: allow_pickle")
            if keywords.get("trust_remote_code", "False") != "False":
                found.append(f"{node.lineno}: trust_remote_code")
            if called in ("yaml.load", "yaml.load_all") and "Loader" not in keywords:
                found.append(f"{node.lineno}: {called} without a safe Loader")
            if called in BUILTINS or name in CALLS or called in ("pickle.load", "pickle.loads"):
                found.append(f"{node.lineno}: {called}")
    return found


@pytest.mark.parametrize(
    "source",
    [
        "import joblib",
        "from dill import load",
        "pickle.load(file)",
        "from pickle import loads",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path, allow_pickle=True)",
        "yaml.load(text)",
        "AutoTokenizer.from_pretrained(name, trust_remote_code=True)",
        "pd.read_pickle(path)",
        "eval(text)",
    ],
)
def test_the_search_finds(source):
    assert complaints(source)


def test_no_source_does():
    assert len(SOURCES) > 60
    found = {str(path.relative_to(ROOT)): complaints(path.read_text()) for path in SOURCES}
    assert {path: lines for path, lines in found.items() if lines} == {}
