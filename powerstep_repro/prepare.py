"""Prepare a data set: ``python -m powerstep_repro.prepare NAME [key=value ...]``."""

# Each worker process imports this module again: what only the parent needs is imported where it
# is used.
import argparse
import os
import signal
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from powerstep_repro.errors import CommandParser, UserError, exit_on_user_error

HELP = """\
Make the token files of a data set, once, so that training runs find them.

data sets:
  openwebtext  OpenWebText, the paper's data for GPT-2. About 25 GB to download, 40 GB for the
               documents in the datasets library's cache, 18 GB for the token files and as much
               again while they are made.
  c4           C4 (English), the paper's data for Qwen3 and DeepSeek-V2; model=qwen3_0_6b or
               model=deepseek_v2_lite chooses the tokenizer. Read while it downloads (about
               20 GB) until max_tokens=10.5e9 are there; 42 GB for the token files and as much
               again while they are made.
  text         Local text files: path=FILE, FOLDER or 'GLOB'; tokenizer=byte, gpt2 or others.
  tokens       Ready train.bin and val.bin: path=FOLDER. They are checked and hashed.
  builtin      The embedded corpus. Training builds it by itself, in two seconds.

Beside the download, a core tokenizes about 11 MB of text a second for GPT-2 and 3 MB for others:
minutes on 16 cores for either. Sizes and times are estimates.

keys:
  Those of conf/data/NAME.yaml, which explains them: workers, tokenizer, id, config, revision,
  data_files, split, text_column, val_fraction, max_tokens ... Of the other keys data_dir (default:
  data) and model matter. The downloads' own cache follows the environment variable HF_HOME.

An interrupted preparation leaves nothing that looks finished; the same command goes on where it
stopped. The result is the same, byte for byte, for any number of workers.
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
LINE_INTERVAL_S = 10.0


def main(arguments: list[str] | None = None) -> int:
    """Prepare the data set that the command line names; return the exit code."""
    from nanogpt.data import TokenData
    from powerstep_repro.config import choices
    from powerstep_repro.data.resolve import module

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
    signal.signal(signal.SIGTERM, _terminate)
    workers = config.get("workers") or _cores()
    try:
        with Reporter() as report:
            folder = module(config).prepare(config, data_dir, workers=workers, report=report)
        data = TokenData.open(folder)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        return 128 + signal.SIGINT
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
    return config["data"], Path(config["data_dir"]).expanduser()


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _terminate(number: int, frame: Any) -> None:
    raise SystemExit(128 + number)


class Reporter:
    """Shows how far each split is: bars on a terminal, a line every ten seconds elsewhere."""

    def __init__(self):
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        self.live = console.is_terminal
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[state]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not self.live,
        )
        self.tasks: dict[str, int] = {}
        self.printed = time.monotonic()

    def __enter__(self) -> "Reporter":
        self.bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.bars.stop()

    def __call__(self, split: str, documents: int, tokens: int, total: int | None) -> None:
        """See ``powerstep_repro.data.shards.Report``."""
        of = f"/{total:,}" if total is not None else ""
        state = f"{documents:,}{of} documents, {tokens:,} tokens"
        if self.live:
            if split not in self.tasks:
                self.tasks[split] = self.bars.add_task(split, total=total, state=state)
            self.bars.update(self.tasks[split], completed=documents, state=state)
        elif time.monotonic() - self.printed >= LINE_INTERVAL_S:
            self.printed = time.monotonic()
            print(f"{split}: {state}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    exit_on_user_error(main)
