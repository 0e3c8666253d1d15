"""Token files and the batches drawn from them.

A data set is a folder of raw little-endian token ids, ``train.bin`` and ``val.bin``, and a
``meta.json`` that says what they hold. Batches are a pure function of (seed, step, position in
the global batch): a resumed run needs no loader state, and any split of the batch into ranks and
micro-batches sees the same sequences.
"""

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from nanogpt.errors import UserError

FORMAT = 1
DTYPES = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
ORDERS = ("windows", "permuted")
META = {"name": str, "dtype": str, "hash": str}
META |= {"vocab_size": int, "train_tokens": int, "val_tokens": int}

# Up to this size a split is searched for ids beyond the vocabulary when it is opened (0.1 s).
# Larger ones are checked batch by batch, so that opening a 17 GB file does not read all of it.
SCAN_LIMIT = 2**27


def dataset_hash(train_sha256: str, val_sha256: str, dtype: str) -> str:
    """Return a data set's identity: 16 hex digits over both files' digests and their dtype."""
    return hashlib.sha256(f"{train_sha256}:{val_sha256}:{dtype}".encode()).hexdigest()[:16]


class TokenData:
    """The two splits of a data set, memory-mapped.

    Args:
        folder: Where ``train.bin`` and ``val.bin`` lie.
        meta: Their description; :meth:`open` reads it from ``meta.json``. Needs the keys of
            ``META``; ``dtype`` is ``uint16`` or ``uint32``.

    Raises:
        UserError: A file is missing, cut or longer than described, or holds an id beyond the
            vocabulary.
    """

    def __init__(self, folder: str | Path, meta: dict[str, Any]):
        self.folder = Path(folder)
        for key, kind in META.items():
            value = meta.get(key)
            if type(value) is not kind or (kind is int and value < 1):
                allowed = "a text" if kind is str else "a whole number, at least 1"
                raise UserError(
                    f"the description of the data in {self.folder} has {key} = {value!r}; "
                    f"it must be {allowed}"
                )
        if meta["dtype"] not in DTYPES:
            raise UserError(
                f"the data in {self.folder} has dtype {meta['dtype']!r}; "
                f"allowed are {' and '.join(DTYPES)}"
            )
        self.meta = meta
        self.name: str = meta["name"]
        self.hash: str = meta["hash"]
        self.vocab_size: int = meta["vocab_size"]
        self.train = self._split("train")
        self.val = self._split("val")

    @classmethod
    def open(cls, folder: str | Path) -> "TokenData":
        """Open a data set's folder by its ``meta.json``."""
        path = Path(folder) / "meta.json"
        try:
            meta = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UserError(f"no data set in {folder}: meta.json is missing") from None
        except (OSError, ValueError) as error:
            raise UserError(f"{path} cannot be read: {error}") from None
        if not isinstance(meta, dict) or meta.get("format") != FORMAT:
            found = meta.get("format") if isinstance(meta, dict) else meta
            raise UserError(f"{path} has format {found!r}; this version reads format {FORMAT}")
        return cls(folder, meta)

    def _split(self, split: str) -> np.ndarray:
        path, dtype = self.folder / f"{split}.bin", DTYPES[self.meta["dtype"]]
        expected = self.meta[f"{split}_tokens"]
        if not path.is_file():
            raise UserError(f"{path} is missing")
        size = path.stat().st_size
        if size != expected * dtype.itemsize:
            raise UserError(
                f"{path} has {size} bytes where its description says {expected} tokens of "
                f"{self.meta['dtype']} ({expected * dtype.itemsize} bytes): it is cut or not the "
                "file described"
            )
        tokens = np.memmap(path, dtype=dtype, mode="r")
        return self._within_vocabulary(tokens, split) if expected <= SCAN_LIMIT else tokens

    def _within_vocabulary(self, tokens: np.ndarray, split: str) -> np.ndarray:
        if (largest := int(tokens.max())) >= self.vocab_size:
            raise UserError(
                f"{self.folder / split}.bin holds token id {largest}, beyond the vocabulary of "
                f"{self.vocab_size}"
            )
        return tokens

    def check_vocabulary(self, rows: int) -> None:
        """Raise ``UserError`` unless a model of ``rows`` token ids knows all of these."""
        if self.vocab_size > rows:
            raise UserError(
                f"the data set {self.name!r} has a vocabulary of {self.vocab_size}, the model one "
                f"of {rows}: choose model.vocab_size at least {self.vocab_size}"
            )

    def check_context(self, context: int) -> None:
        """Raise ``UserError`` unless each split holds at least one window of ``context``."""
        for split in ("train", "val"):
            if (tokens := len(getattr(self, split))) < context + 1:
                raise UserError(
                    f"{self.folder / split}.bin has {tokens} tokens, too few for one window of "
                    f"context {context} (it needs {context + 1})"
                )

    def batch(
        self,
        seed: int,
        step: int,
        context: int,
        batch: int,
        positions: slice = slice(None),
        order: str = "windows",
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draw the sequences of one step from the training split.

        Args:
            seed: The run's seed, not negative.
            step: The optimizer step, counted from 1.
            context: Tokens in a sequence.
            batch: Sequences in the global batch of the step.
            positions: Which of them to return; a rank takes its own slice.
            order: ``windows``, random ones with replacement, which may overlap; or ``permuted``,
                each of the windows side by side once a pass over the data, in a new order each.

        Returns:
            Inputs and targets, int64 of shape (len(positions), context); a target is the token
            that follows its input. Row i depends on (seed, step, position i) alone.
        """
        self.check_context(context)
        if order == "permuted":
            starts = self._permuted(seed, (step - 1) * batch, batch, context)
        else:
            uniform = _random(seed, step).random(batch)
            starts = (uniform * (len(self.train) - context)).astype(np.int64)
        windows = np.stack([self.train[start : start + context + 1] for start in starts[positions]])
        windows = self._within_vocabulary(windows, "train").astype(np.int64)
        return windows[:, :-1], windows[:, 1:]

    def _permuted(self, seed: int, first: int, count: int, context: int) -> np.ndarray:
        """Return where ``count`` windows start, from the ``first``-th of all passes on."""
        size = (len(self.train) - 1) // context  # windows in a pass
        parts, end = [], first + count
        while first < end:
            number, at = divmod(first, size)
            parts.append(_permutation(seed, number, size)[at : at + end - first] * context)
            first += len(parts[-1])
        return np.concatenate(parts)

    def val_windows(self, context: int, limit: int | None = None) -> np.ndarray:
        """Return the validation windows, a view of shape (n, context + 1) in the file's dtype.

        Row i is tokens ``i * context`` to ``(i + 1) * context`` inclusive, so each target is
        predicted once; a remainder shorter than a window is left out.

        Args:
            context: Tokens in a window's input.
            limit: Take the first ``limit`` windows; None takes all.
        """
        self.check_context(context)
        rows = np.lib.stride_tricks.sliding_window_view(self.val, context + 1)[::context][:limit]
        return self._within_vocabulary(rows, "val")


def _random(seed: int, number: int) -> np.random.Generator:
    """Return the generator of a step, or of a pass.

    Philox is keyed, not seeded: neighbouring pairs give unrelated streams, and no sum of the two
    makes one seed's step another seed's.
    """
    return np.random.Generator(np.random.Philox(key=[seed, number]))


@lru_cache(maxsize=2)  # a batch may lie in two passes; one of OpenWebText takes 70 MB
def _permutation(seed: int, number: int, size: int) -> np.ndarray:
    """Return the order of a pass's windows."""
    return _random(seed, number).permutation(size)
