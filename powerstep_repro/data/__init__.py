"""Data sets by name: from a run's ``data`` config to token files that can be read.

``resolve`` is all that training needs. The embedded corpus and local text are built on first use,
ready token files are described, and what ``datasets`` reads must have been prepared before
(``python -m powerstep_repro.prepare``).
"""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from nanogpt.data import TokenData
from powerstep_repro.errors import UserError

# A kind is a module here with ``prepare(config, data_dir, workers) -> folder``, which builds the
# data set unless it is there. A kind is imported only when it is asked for.
KINDS = ("builtin", "text", "tokens", "hub")


def resolve(config: Mapping[str, Any], data_dir: str | Path) -> TokenData:
    """Open the data set of a run.

    Args:
        config: The run's ``data`` config: ``kind`` (``builtin``, ``text``, ``tokens`` or
            ``hub``; default: the name), ``name`` (shown on figures) and the kind's options
            (``conf/data``).
        data_dir: Where built and prepared data sets live.

    Returns:
        The data set; its ``hash`` identifies the tokens.

    Raises:
        UserError: It does not exist and cannot be built here, an option is wrong, or its files are
            damaged.
    """
    kind, data_dir = module(config), Path(data_dir)
    # What takes downloads and hours is never started by a training run.
    find = getattr(kind, "locate", kind.prepare)
    return TokenData.open(find(config, data_dir))


def module(config: Mapping[str, Any]) -> Any:
    """Return the module of a config's kind."""
    kind = config.get("kind", config.get("name"))
    if kind not in KINDS:
        raise UserError(f"data.kind={kind!r} is not one of {', '.join(KINDS)}")
    return import_module(f"powerstep_repro.data.{kind}")
