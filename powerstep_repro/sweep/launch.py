"""Become a training command that is told to stop when whatever started it is gone.

Run as a file: ``python launch.py PARENT_PID COMMAND...``. A sweep that is killed outright cannot
pass a signal on, so the kernel is asked to: on Linux the command gets SIGTERM, saves and ends.
SIGUSR2, with which Slurm announces that a job's time is up and which it sends to every process of
the job, is left to the job's own handler: by default it would end the training unsaved.
"""

import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h; survives exec


def main(parent: str, *command: str) -> None:
    """Replace this process by ``command``; leave at once if ``parent`` is already gone."""
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):
        sys.exit(128 + signal.SIGTERM)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
