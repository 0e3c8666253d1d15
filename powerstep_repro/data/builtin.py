"""The embedded corpus: English that every Python carries.

The documents are the language reference's topics as ``help()`` shows them (``pydoc_data.topics``)
and, one document a module, the docstrings of the standard library's sources. Nothing is shipped
and nothing downloaded; the text differs a little between Python versions.
"""

import ast
import hashlib
import os
import platform
import sysconfig
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from powerstep_repro.data.shards import Report, Rows, silent
from powerstep_repro.data.store import Corpus, ensure
from powerstep_repro.data.tokenizers import ByteTokenizer
from powerstep_repro.errors import UserError

VAL_FRACTION = 0.07
# Installed packages, tests (some distributions leave them out), tables of codes, and what newer
# Pythons no longer have.
SKIPPED = {
    *("site-packages", "dist-packages", "__pycache__", "test", "tests", "idlelib"),
    *("encodings", "pydoc_data", "lib2to3", "distutils"),
}
DOCUMENTED = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def prepare(
    config: Mapping[str, Any], data_dir: Path, workers: int = 1, report: Report = silent
) -> Path:
    """Return this Python's corpus, built first if need be (about two seconds)."""
    if path := config.get("path"):
        raise UserError(
            f"data.path={path} is not read by data=builtin: choose data=tokens for a folder of "
            "token files or data=text for one of text"
        )
    folder = data_dir / f"builtin-{platform.python_implementation().lower()}-{_version()}"
    ensure(folder, corpus, report=report)
    return folder


def corpus() -> Corpus:
    """Return the corpus of the running Python."""
    texts = documents()
    held_out = {name for name in texts if _fraction(name) < VAL_FRACTION}
    splits = {
        split: [text for name, text in texts.items() if (name in held_out) == (split == "val")]
        for split in ("val", "train")
    }
    return Corpus(
        name="builtin",
        tokenizer=ByteTokenizer(),
        val=Rows.of(splits["val"], size=4096),
        train=Rows.of(splits["train"], size=4096),
        source={"kind": "builtin", "python": _version(), "documents": len(texts)},
    )


def documents() -> dict[str, str]:
    """Return the corpus's documents by name, sorted."""
    texts = {}
    try:
        from pydoc_data.topics import topics
    except ImportError:  # left out by some distributions; the docstrings remain
        topics = {}
    for name, text in topics.items():
        texts[f"topics/{name}"] = text
    library = Path(sysconfig.get_path("stdlib"))
    for parent, folders, files in os.walk(library):
        folders[:] = [name for name in folders if name not in SKIPPED]
        for path in (Path(parent, name) for name in files if name.endswith(".py")):
            if text := "\n\n".join(_docstrings(path)):
                texts[f"library/{path.relative_to(library).as_posix()}"] = text
    if not texts:
        raise UserError(
            "this Python carries neither its documentation topics nor its library's sources, so "
            "data=builtin has no text; use data=text with a folder of your own"
        )
    return dict(sorted(texts.items()))


def _docstrings(path: Path) -> Iterator[str]:
    """Yield the docstrings of a source's module, classes and functions, from the top down."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in old sources
            todo = [ast.parse(path.read_bytes())]
    except (SyntaxError, ValueError):
        return
    while todo:
        node = todo.pop()
        if doc := ast.get_docstring(node):
            yield doc
        todo.extend(child for child in reversed(node.body) if isinstance(child, DOCUMENTED))


def _fraction(name: str) -> float:
    """Map a document's name to [0, 1), the same in every Python."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") / 2**64


def _version() -> str:
    return platform.python_version()
