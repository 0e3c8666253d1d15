"""Data sets by name: from a run's ``data`` config to token files that can be read.

``resolve`` is all that training needs. The embedded corpus and local text are built on first use,
ready token files are described, and what comes from a hub must have been prepared before
(``python -m powerstep_repro.prepare``).
"""

from powerstep_repro.data.resolve import resolve
from powerstep_repro.data.statistics import unigram_entropy

__all__ = ["resolve", "unigram_entropy"]
