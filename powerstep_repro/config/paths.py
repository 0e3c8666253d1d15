"""Where the config groups and the sweep files are, and how a path on a command line is read."""

import os
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
_CHECKOUT = _PACKAGE.parent
_IS_CHECKOUT = (_CHECKOUT / "pyproject.toml").is_file() and (_CHECKOUT / "conf").is_dir()

# A clone uses its own folders; an installed wheel the copies bundled with it.
ROOT = _CHECKOUT if _IS_CHECKOUT else _PACKAGE / "_bundled"
CONF = ROOT / "conf"
SWEEPS = ROOT / "sweeps"


def read_path(text: str) -> str:
    """Read the path of a ``key=PATH`` as every command does: as it stands, whatever it holds.

    ``2026.10`` is no number and ``a,b`` no list. Quotes around the whole, which Hydra's grammar
    wants for such a text, are taken off; ``~`` at the beginning is the home folder, because no
    shell expands it after an equals sign.
    """
    quote = text[:1]
    if quote in ("'", '"') and len(text) > 1 and text.endswith(quote):
        text = text[1:-1].replace(f"\\{quote}", quote)
    return os.path.expanduser(text)
