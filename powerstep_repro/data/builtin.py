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

from powerstep_repro.data.store import is_complete, write
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


def prepare(config: Mapping[str, Any], data_dir: Path, workers: int = 1) -> Path:
    """Return this Python's corpus, built first if need be (about two seconds)."""
    if path := config.get("path"):
        raise UserError(
            f"data.path={path} is not read by data=builtin: choose data=tokens for a folder of "
            "token files or data=text for one of text"
        )
    version = platform.python_version()
    folder = data_dir / f"builtin-{platform.python_implementation().lower()}-{version}"
    if not is_complete(folder):
        texts = documents()
        held_out = {name for name in texts if _fraction(name) < VAL_FRACTION}
        tokenizer = ByteTokenizer()
        splits = {
            split: tokenizer.documents([texts[name] for name in names])
            for split, names in (
                ("val", [name for name in texts if name in held_out]),
                ("train", [name for name in texts if name not in held_out]),
            )
        }
        source = {"kind": "builtin", "python": version, "documents": len(texts)}
        write(folder, "builtin", tokenizer, splits, source)
    return folder


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
