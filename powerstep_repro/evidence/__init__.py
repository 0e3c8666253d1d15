"""From runs to numbers: each sweep's cells, their curves, gaps, intervals and verdicts.

What is laid out for people is ``pages``. Imports neither matplotlib nor torch.
"""

from powerstep_repro.evidence.sources import Evidence, Source

__all__ = ["Evidence", "Source"]
