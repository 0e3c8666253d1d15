"""A Slurm of one machine, for tests: ``fake_slurm.py {sbatch,srun,sacct,scontrol} ARGUMENTS``.

Jobs start at once. A file in FAKE_SLURM names each job that is queued or runs, and "environment"
holds that of the last submission.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

STATE = Path(os.environ["FAKE_SLURM"])


def sbatch(script):
    """Start every task of the script's array; keep a copy of the script."""
    number = len(list(STATE.glob("*.sh"))) + 1
    kept = STATE / f"{number}.sh"
    shutil.copy(script, kept)
    (STATE / "environment").write_text(json.dumps(dict(os.environ)))
    array = re.search(r"--array=0-(\d+)", kept.read_text())
    tasks = range(int(array[1]) + 1) if array else [None]
    for task in tasks:
        name = str(number) if task is None else f"{number}_{task}"
        (STATE / f"{name}.job").touch()
        env = os.environ | {"SLURM_JOB_ID": str(number), "SLURM_NTASKS": "1", "SLURM_PROCID": "0"}
        if task is not None:
            env |= {"SLURM_ARRAY_JOB_ID": str(number), "SLURM_ARRAY_TASK_ID": str(task)}
        subprocess.Popen(
            [sys.executable, "-IS", __file__, "job", name, str(kept)],
            env=env,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    print(f"Submitted batch job {number}")


def job(name, script):
    """Run the script until nobody asks for it again."""
    while True:
        subprocess.run(["bash", script], check=False)
        try:
            (STATE / f"{name}.requeue").unlink()
        except FileNotFoundError:
            break
    (STATE / f"{name}.job").unlink()


def srun(*arguments):
    """Become the command, its output appended where --output says."""
    start = next(i for i, argument in enumerate(arguments) if argument == sys.executable)
    options = list(arguments[:start])
    output = options[options.index("--output") + 1]
    for sign, name in (("A", "ARRAY_JOB_ID"), ("a", "ARRAY_TASK_ID"), ("j", "JOB_ID")):
        output = output.replace(f"%{sign}", os.environ.get(f"SLURM_{name}", ""))
    log = os.open(output.replace("%t", "0"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.execv(arguments[start], arguments[start:])


def sacct(*_):
    """Tell which jobs run; of others nothing is known."""
    print("JobID|State|NodeList")
    for path in STATE.glob("*.job"):
        print(f"{path.stem}|RUNNING|here")


def scontrol(verb, name):
    """Put a job back into the queue."""
    assert verb == "requeue"
    (STATE / f"{name}.requeue").touch()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
