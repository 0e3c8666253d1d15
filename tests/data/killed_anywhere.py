"""Run by ``test_prepare_interrupted``: kill a build at each of its acts on the file system.

A child process builds a small data set under an audit hook that kills it with SIGKILL at its n-th
opening, renaming, making or removing of a file, for n = 1, 2, ... until a build gets through.
After each kill nothing may look finished, unless it is; a second build must then give the bytes of
the undisturbed one and leave nothing else behind.

usage: killed_anywhere.py FOLDER
"""

import os
import signal
import sys
from pathlib import Path

from nanogpt.data import TokenData
from powerstep_repro.data.shards import Rows
from powerstep_repro.data.store import Corpus, ensure, is_complete
from powerstep_repro.data.tokenizers import ByteTokenizer

TEXTS = [f"document {number} " * (number % 5 + 1) for number in range(14)]
FILES = ("train.bin", "val.bin", "meta.json")
ACTS = {"open", "os.rename", "os.mkdir", "os.rmdir", "os.remove", "shutil.rmtree"}


def build(folder):
    corpus = Corpus(
        "killed", ByteTokenizer(), Rows.of(TEXTS[:4], 2), Rows.of(TEXTS[4:], 3), {"kind": "test"}
    )
    ensure(folder, lambda: corpus)


def build_and_die(folder, last_act):
    acts = 0

    def hook(event, arguments):
        nonlocal acts
        # Of the openings, those that are about the data: the rest is Python's own imports.
        if event in ACTS and "killed" in str(arguments[0]):
            acts += 1
            if acts == last_act:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    build(folder)


def in_child(function, *arguments):
    """Return whether the call got through in a process of its own."""
    child = os.fork()
    if child == 0:
        function(*arguments)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert status == 0 or os.WTERMSIG(status) == signal.SIGKILL, status
    return status == 0


def main(root):
    in_child(build, root / "undisturbed")
    expected = {name: (root / "undisturbed" / name).read_bytes() for name in FILES}
    for last_act in range(1, 1000):
        folder = root / str(last_act) / "killed"
        through = in_child(build_and_die, folder, last_act)
        if folder.exists():  # then it is whole
            assert is_complete(folder)
            TokenData.open(folder)
        assert in_child(build, folder)
        assert {name: (folder / name).read_bytes() for name in FILES} == expected
        left = {path.name for path in folder.parent.iterdir()}
        assert left == {"killed", ".killed.lock"}, left
        if through:
            print(f"killed at {last_act - 1} acts")
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]))
