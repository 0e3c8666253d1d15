"""Runs that were mirrored to W&B, brought back as run directories.

``remote`` asks W&B, ``convert`` turns answers into the contents of files, ``place`` puts them on
disk, ``cli`` is the command. A directory comes whole or not at all: the history is scanned in full
(never sampled), and its rows are counted against what the run says it logged or, where it could
not say, against the lines that W&B says it received.

What comes back: the config, every row, the summary, and the last evaluation's loss per validation
window. What was never mirrored does not: checkpoints, ``log.txt``, a failed run's traceback.

Verified without a W&B account, against a local server that answers as wandb's own sources expect
(see tests/pull). Only a real server can tell:

- that it keeps every row of a long run, through a resume, and that ``historyLineCount`` counts the
  lines it received: a run that closed itself is checked against its own count and needs neither;
- in which form it gives non-finite numbers: strings and bare ``NaN`` are both understood;
- the states that it gives to runs that were killed (crashed, killed and preempted are understood);
- its limits on summaries, of which the losses per window are the largest part.
"""
