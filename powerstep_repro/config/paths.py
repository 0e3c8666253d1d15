"""Where the config groups and the sweep files are."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
_CHECKOUT = _PACKAGE.parent
_IS_CHECKOUT = (_CHECKOUT / "pyproject.toml").is_file() and (_CHECKOUT / "conf").is_dir()

# A clone uses its own folders; an installed wheel the copies bundled with it.
ROOT = _CHECKOUT if _IS_CHECKOUT else _PACKAGE / "_bundled"
CONF = ROOT / "conf"
SWEEPS = ROOT / "sweeps"
