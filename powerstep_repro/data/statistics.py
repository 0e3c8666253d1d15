"""What can be said of a data set without a model."""

import numpy as np


def unigram_entropy(tokens: np.ndarray) -> float:
    """Return the entropy of the tokens' own frequencies, in nats.

    It is the loss of the best model that ignores context: a model that has learned anything about
    order ends below it.

    Args:
        tokens: Token ids, of any integer type; may be memory-mapped.

    Raises:
        ValueError: There are no tokens.
    """
    if len(tokens) == 0:
        raise ValueError("the entropy of no tokens is undefined")
    counts = np.zeros(0, np.int64)
    for start in range(0, len(tokens), 2**24):  # bincount widens its input to int64
        part = np.bincount(tokens[start : start + 2**24], minlength=len(counts))
        part[: len(counts)] += counts
        counts = part
    share = counts[counts > 0] / len(tokens)
    return float(-(share * np.log(share)).sum())
