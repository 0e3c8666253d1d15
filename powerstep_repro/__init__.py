"""Reproduction harness for PowerStep (signed power of a heavy-ball momentum buffer).

The package imports nothing heavy by itself: ``powerstep_repro.optim`` needs only torch,
``powerstep_repro.runs``, ``figures`` and ``tables`` need no torch at all.
"""

__version__ = "0.1.0"
