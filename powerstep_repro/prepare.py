"""Prepare a data set: ``python -m powerstep_repro.prepare NAME [key=value ...]``."""

import argparse
import os
import signal
import sys
from pathlib import Path
from typing import Any

from powerstep_repro.errors import CommandParser, UserError, exit_on_user_error

HELP = """\
Make the token files of a data set, once, so that training runs find them.

data sets:
  openwebtext  OpenWebText, the paper's data for GPT-2. About 25 GB to download, 40 GB for the
               documents and 18 GB for their tokens in the datasets library's cache, 18 GB for the
               token files.
  c4           C4 (English), the paper's data for Qwen3 and DeepSeek-V2; model=qwen3_0_6b or
               model=deepseek_v2_lite chooses the tokenizer. Read while it downloads (about
               20 GB) until max_tokens=10.5e9 are there; 42 GB for the token files.
  text         Local text files: path=FILE, FOLDER or 'GLOB'; tokenizer=byte, gpt2 or others.
  tokens       Ready train.bin and val.bin: path=FOLDER. They are checked and hashed.
  builtin      The embedded corpus. Training builds it by itself, in two seconds.
  Any other that the datasets library reads: a file of five lines in conf/data, such as

    defaults: [openwebtext, _self_]
    name: fineweb
    id: HuggingFaceFW/fineweb
    config: sample-10BT
    val_fraction: 0.001

Beside the download, a core tokenizes about 11 MB of text a second for GPT-2 and 3 MB for others:
minutes on 16 cores for either. Sizes and times are estimates.

keys:
  Those of conf/data/NAME.yaml, which explains them: workers, tokenizer, id, config, revision,
  data_files, split, text_column, val_fraction, max_tokens ... Of the other keys data_dir (default:
  data) and model matter. The library's own cache follows the environment variable HF_HOME.

A data set stands in a folder whose name holds what it was made of: changed options or changed local
files make another. An interrupted preparation leaves nothing that looks finished; the same command
goes on from what the library's cache holds (with streaming, from the start). The result is the
same, byte for byte, for any number of workers.
Exit code: 0 prepared, 1 failed, 130/143 interrupted.
"""
EXAMPLES = """\
examples:
  python -m powerstep_repro.prepare openwebtext workers=16
  python -m powerstep_repro.prepare c4 model=qwen3_0_6b max_tokens=1e9
  python -m powerstep_repro.prepare openwebtext name=mine id=parquet data_files='mine/*.parquet'
  python -m powerstep_repro.prepare openwebtext name=mine id=./folder-of-jsonl val_fraction=0.01
  python -m powerstep_repro.prepare text path=./corpus tokenizer=gpt2 workers=4
"""
SIGNALS = (signal.SIGINT, signal.SIGTERM)
_stopped: list[int] = []


def main(arguments: list[str] | None = None) -> int:
    """Prepare the data set that the command line names; return the exit code."""
    from nanogpt.data import TokenData
    from nanogpt.signals import handling
    from powerstep_repro.config import choices
    from powerstep_repro.data import module

    parser = CommandParser(
        prog="python -m powerstep_repro.prepare",
        usage="%(prog)s NAME [key=value ...]",
        description=HELP,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    known = ", ".join(choices("data"))
    parser.add_argument("name", metavar="NAME", help=f"one of {known}")
    parser.add_argument("overrides", metavar="key=value", nargs="*", default=[], help="as above")
    options = parser.parse_args(arguments)
    if "=" in options.name:
        raise UserError(
            f"the name of the data set is missing: before {options.name!r} write one of {known}"
        )

    config, data_dir = _config(options.name, options.overrides)
    _stopped.clear()
    try:
        with handling(_stop, SIGNALS):
            folder = module(config).prepare(config, data_dir, config.get("workers") or _cores())
    except (SystemExit, UserError):  # a library may make an error of its own of our exit
        if not _stopped:
            raise
        print("interrupted; the same command goes on from here", file=sys.stderr)
        return 128 + _stopped[0]
    data = TokenData.open(folder)
    print(
        f"{data.name}: {len(data.train):,} training and {len(data.val):,} validation tokens "
        f"({data.meta['tokenizer'] or 'unknown tokenizer'}, vocabulary {data.vocab_size}, "
        f"hash {data.hash}) in {folder}"
    )
    return 0


def _config(name: str, overrides: list[str]) -> tuple[dict[str, Any], Path]:
    """Return the ``data`` config and the data folder; a bare key of the data set is its own."""
    from powerstep_repro.config import compose

    # The paper's profile: in the tiny one every model's tokenizer is the bytes.
    base = ["profile=paper", f"data={name}"]
    own = compose(base)["data"]
    given = [
        f"data.{override}" if override.partition("=")[0].lstrip("+") in own else override
        for override in overrides
    ]
    config = compose([*base, *given])
    return config["data"], Path(config["data_dir"])


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _stop(number: int, frame: Any) -> None:
    _stopped.append(number)
    raise SystemExit(128 + number)


def _forked() -> None:
    """Let a worker that the datasets library forks end at once by the signals that we wait for.

    It may be asleep in a lock when the library sends it away, where no handler would be called.
    """
    if signal.getsignal(signal.SIGTERM) is _stop:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)


os.register_at_fork(after_in_child=_forked)


if __name__ == "__main__":
    exit_on_user_error(main)
