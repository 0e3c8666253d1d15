"""Reproduction harness for PowerStep (signed power of a heavy-ball momentum buffer).

The package imports nothing heavy by itself: ``powerstep_repro.optim`` needs only torch,
``powerstep_repro.runs``, ``figures`` and ``tables`` need no torch at all.
"""

import sys

from powerstep_repro.errors import missing_package_hook

__version__ = "0.1.0"

if sys.argv[:1] == ["-m"]:  # what Python sets while it looks for a command of this package
    sys.excepthook = missing_package_hook
