"""The tokenizers: bytes, GPT-2's, and any of Hugging Face's."""

from collections.abc import Iterable
from typing import Protocol

import numpy as np


class Tokenizer(Protocol):
    """Turns documents into token ids.

    Attributes:
        name: What ``meta.json`` calls it.
        fingerprint: Names all that its ids depend on.
        vocab_size: One more than its largest id.
        end: The id that follows each document.
    """

    name: str
    fingerprint: str
    vocab_size: int
    end: int

    @property
    def dtype(self) -> str:
        """The files' integer type: ``uint16``, or ``uint32`` for more than 65536 ids."""

    def encode(self, texts: list[str]) -> Iterable[np.ndarray | list[int]]:
        """Return each text's ids, the end mark not among them."""


class _Sized:
    vocab_size: int

    @property
    def dtype(self) -> str:
        return "uint16" if self.vocab_size <= 2**16 else "uint32"


class ByteTokenizer(_Sized):
    """UTF-8 bytes, and 256 as the end mark."""

    name = fingerprint = "byte"
    vocab_size = 257
    end = 256

    def encode(self, texts: list[str]) -> Iterable[np.ndarray]:
        """See :class:`Tokenizer`."""
        for text in texts:
            yield np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8).astype(np.int64)
