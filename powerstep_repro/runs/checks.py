"""Whether what a run left behind agrees with itself and with what other runs left."""

import hashlib
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping

import numpy as np
import pandas as pd

#: Both are written from one number; a mirror may have rounded it.
LOSS_TOLERANCE = 1e-4
#: Every optimizer here holds a buffer of at least a byte a parameter; a sharded one at most
#: divides it by the ranks.
LEAST_STATE_BYTES = 0.25
#: A cross entropy over a vocabulary that fits 32 bits, in nats, has no business above this.
MOST_LOSS = 1e3


def first_hole(steps: np.ndarray, between: object) -> tuple[int, int] | None:
    """Find where a log lacks rows that it should have.

    Args:
        steps: the logged steps, ascending; (k,).
        between: the config's steps between rows; a log that is regularly sparser is no hole.

    Returns:
        The last step before the first hole (0 if it is at the log's start) and the first after it.
    """
    if not len(steps):
        return None
    apart = np.diff(steps, prepend=0)
    usual = max(float(np.median(apart)), between if isinstance(between, int) else 1)
    wide = np.flatnonzero(apart > 1.5 * usual)
    return (int(steps[wide[0]] - apart[wide[0]]), int(steps[wide[0]])) if len(wide) else None


def contradiction(final: float, log: pd.DataFrame, steps: float) -> str:
    """Say what is wrong with a finished run's final validation loss; empty if nothing is.

    Args:
        final: what the summary tells; NaN where it tells nothing.
        log: the columns ``step`` and ``val_loss``.
        steps: the run's last step, as the summary tells it.
    """
    if not np.isfinite(final):
        return "it has ended, but its summary holds no final validation loss"
    if not 0 <= final < MOST_LOSS:
        return (
            f"its summary tells of a validation loss of {final:.4g}, which must be from 0 to below "
            f"{MOST_LOSS:,.0f}"
        )
    logged = log[log["val_loss"].notna() & (log["step"] >= steps)]
    if len(logged) and not abs(float(logged["val_loss"].iloc[-1]) - final) <= LOSS_TOLERANCE:
        there = float(logged["val_loss"].iloc[-1])
        return (
            f"its summary tells of a final validation loss of {final:.4f}, its log of {there:.4f}"
        )
    return ""


def windows_agree(windows: np.ndarray, final: float) -> bool:
    """Whether the losses per validation window average to the final loss that they stand for."""
    return abs(windows.mean() - final) <= LOSS_TOLERANCE


def fingerprint(log: pd.DataFrame) -> bytes | None:
    """Return what two logs share only if every row's training loss is equal; None for no log."""
    losses = log["train_loss"].to_numpy(dtype=np.float64)
    if np.isfinite(losses).sum() < 2:
        return None
    steps = log["step"].to_numpy(dtype=np.float64)
    return hashlib.sha256(steps.tobytes() + losses.tobytes()).digest()


def groups_of_several(keys: Mapping[str, Hashable]) -> Iterable[list[str]]:
    """Return the names that share a key, for every key that is shared."""
    groups: dict[Hashable, list[str]] = defaultdict(list)
    for name, key in keys.items():
        groups[key].append(name)
    return [names for names in groups.values() if len(names) > 1]
