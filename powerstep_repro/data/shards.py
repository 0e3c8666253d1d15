"""Tokenizing documents in parallel, shard by shard.

A shard is a fixed number of consecutive documents, whatever the number of workers, so the joined
result does not depend on it. The parent reads the documents in order and hands each shard to a
worker, which writes it under a temporary name and renames it: a shard that exists is whole, and a
later run leaves it alone.
"""

import math
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import connection
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from nanogpt.data import DTYPES
from powerstep_repro.data.tokenizers import Tokenizer, dtype
from powerstep_repro.errors import UserError

SIGNALS = (signal.SIGINT, signal.SIGTERM)

Report = Callable[[str, int, int, int | None], None]
"""Called with the split, its documents and tokens done so far, and its documents in all."""


class SourceError(UserError):
    """The documents themselves are at fault: what was made of them is of no use to a later call."""


def silent(split: str, documents: int, tokens: int, total: int | None) -> None:
    """Report nothing."""


class Documents(Protocol):
    """One split's documents, in a fixed order.

    Attributes:
        size: Documents in a shard; the last shard may hold fewer.
        total: Documents in all, None if that is known only at the end.
    """

    size: int
    total: int | None

    def shards(
        self, finished: Callable[[int], bool], scratch: Path
    ) -> Iterator[tuple[int, list[str] | None]]:
        """Yield each shard's number and its texts, or None in place of a finished one's texts.

        Args:
            finished: Tells whether a shard is on disk already.
            scratch: The folder of the split's shards, which outlives an interruption.
        """


class Rows:
    """Documents that can be read from any row on.

    Args:
        total: Their number.
        read: Returns the texts of rows start to stop.
        size: Documents in a shard.
    """

    def __init__(self, total: int, read: Callable[[int, int], list[str]], size: int):
        self.total, self.read, self.size = total, read, size

    @classmethod
    def of(cls, texts: Sequence[str], size: int) -> "Rows":
        """Serve texts that are in memory."""
        return cls(len(texts), lambda start, stop: list(texts[start:stop]), size)

    def shards(
        self, finished: Callable[[int], bool], scratch: Path
    ) -> Iterator[tuple[int, list[str] | None]]:
        """See :class:`Documents`."""
        for shard in range(math.ceil(self.total / self.size)):
            start = shard * self.size
            stop = min(start + self.size, self.total)
            yield shard, None if finished(shard) else self.read(start, stop)


def tokenize(
    split: str,
    documents: Documents,
    tokenizer: Tokenizer,
    folder: Path,
    pool: "Pool",
    *,
    max_tokens: int | None,
    report: Report,
) -> list[Path]:
    """Write the shards of one split that are not there yet.

    Args:
        split: ``train`` or ``val``, for the report.
        documents: The split's documents.
        tokenizer: Encodes them; each is followed by the tokenizer's end mark.
        folder: Where the shards go.
        pool: Workers that have the tokenizer.
        max_tokens: Stop once the leading shards hold so many tokens; None reads to the end.
        report: Is told of the progress.

    Returns:
        The shards' files, in the documents' order.
    """
    folder.mkdir(parents=True, exist_ok=True)
    width = DTYPES[dtype(tokenizer)].itemsize
    tokens: dict[int, int] = {}  # of each shard on disk
    leading = leading_tokens = 0  # shards 0 to leading - 1 are all on disk

    def path(shard: int) -> Path:
        return folder / f"{shard:07d}.bin"

    def add(shard: int) -> None:
        nonlocal leading, leading_tokens
        tokens[shard] = path(shard).stat().st_size // width
        while leading in tokens:
            leading_tokens += tokens[leading]
            leading += 1
        done = len(tokens) * documents.size
        if documents.total is not None:
            done = min(done, documents.total)
        report(split, done, sum(tokens.values()), documents.total)

    def enough() -> bool:
        return max_tokens is not None and leading_tokens >= max_tokens

    pending: dict[Future, int] = {}

    def collect(at_most: int) -> None:
        while len(pending) > at_most:
            for future in wait(pending, return_when=FIRST_COMPLETED).done:
                future.result()
                add(pending.pop(future))

    for shard, texts in documents.shards(lambda number: path(number).exists(), folder):
        if texts is None:
            add(shard)
        else:
            pending[pool.submit(_encode_shard, texts, path(shard))] = shard
            # Two shards a worker: none idles, and memory stays bounded.
            collect(2 * pool.workers - 1)
        if enough():
            break
    collect(0)
    return [path(shard) for shard in range(leading)]


class Pool:
    """Workers that encode shards, for the length of a ``with`` block.

    Args:
        workers: Their number.
        tokenizer: What they encode with.

    Raises:
        UserError: There is less than one, or one died.
    """

    def __init__(self, workers: int, tokenizer: Tokenizer):
        if workers < 1:
            raise UserError(f"workers={workers} must be at least 1")
        self.workers = workers
        self.executor: Executor
        if workers == 1:  # a thread: reading goes on meanwhile, and no process needs to start
            self.executor = ThreadPoolExecutor(1, initializer=_start, initargs=(tokenizer,))
        else:
            self.executor = ProcessPoolExecutor(
                workers,
                # Not fork: the parent holds the threads of Arrow and of the tokenizers.
                mp_context=multiprocessing.get_context("spawn"),
                initializer=_start_process,
                initargs=(tokenizer,),
            )

    def submit(self, function: Callable, *arguments: Any) -> Future:
        """Hand a call to a worker."""
        # It may start a process. A signal's exception in the middle of that would leave a child
        # with half of its instructions; the child takes over the mask.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            with _signals_later():
                return self.executor.submit(function, *arguments)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def __enter__(self) -> "Pool":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.executor.shutdown(cancel_futures=True)
        if isinstance(error, BrokenProcessPool):
            raise UserError(
                "a worker process died, most likely for want of memory; run again with fewer "
                f"workers than {self.workers} (finished shards are kept)"
            ) from None


@contextmanager
def _signals_later() -> Iterator[None]:
    """Put off what signals do until the end of the block.

    A mask alone does not: a signal to the process reaches any thread that has none, and Python then
    runs the handler in the main one.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {number: signal.signal(number, lambda n, _: came.append(n)) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in came:
            signal.raise_signal(number)


_tokenizer: Tokenizer


def _start(tokenizer: Tokenizer) -> None:
    global _tokenizer
    _tokenizer = tokenizer


def _start_process(tokenizer: Tokenizer) -> None:
    # Ctrl-C reaches the whole group, and the parent sees to it: SIGINT stays blocked.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core a worker
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    _start(tokenizer)


def _leave_with_parent() -> None:
    # A worker of a killed parent would wait for work forever: it holds both ends of the queue.
    connection.wait([multiprocessing.parent_process().sentinel])
    os._exit(1)


def _encode_shard(texts: list[str], path: Path) -> None:
    pieces = []
    for ids in _tokenizer.encode(texts):
        pieces += (np.asarray(ids, np.int64), [_tokenizer.end])
    tokens = np.concatenate(pieces) if pieces else np.zeros(0, np.int64)
    if (largest := int(tokens.max(initial=0))) >= _tokenizer.vocab_size:
        raise SourceError(
            f"tokenizer {_tokenizer.name} gave token id {largest}, beyond its vocabulary of "
            f"{_tokenizer.vocab_size}"
        )
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        file.write(tokens.astype(DTYPES[dtype(_tokenizer)]).tobytes())
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
