"""How a command ends when something is wrong, and who says so."""

import argparse
import contextlib
import os
import select
import shlex
import signal
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from nanogpt.errors import UserError

__all__ = ["CommandParser", "UserError", "exit_on_user_error", "lacking", "require", "tell"]


class CommandParser(argparse.ArgumentParser):
    """A command's parser; what is wrong with the arguments is a ``UserError`` like any other."""

    def error(self, message: str) -> NoReturn:
        """Refuse the arguments."""
        raise UserError(f"{message} (see {self.prog} --help)")


# The extras of pyproject.toml that bring all a command imports; the others take "figures".
_EXTRAS = {"train": "train", "sweep": "train", "bench": "train"}
_EXTRAS |= {"prepare": "data", "pull": "figures,wandb"}


def lacking(module: str, what: str, extra: str) -> str:
    """Return the sentence on a missing package, with the line that installs it.

    Args:
        module: What is missing.
        what: What needs it.
        extra: The extra of pyproject.toml that brings it.
    """
    root = Path(__file__).resolve().parents[1]
    if (root / "pyproject.toml").is_file():  # a clone
        where = "." if Path.cwd() == root else root
        project = f"-e {shlex.quote(f'{where}[{extra}]')}"
    else:
        project = f"'powerstep-repro[{extra}]'"
    return f"{what} needs {module}, which is not installed: python -m pip install {project}"


def require(module: str, what: str, extra: str) -> None:
    """Refuse ``what`` where a package of one of pyproject.toml's extras is not installed."""
    if find_spec(module) is None:
        raise UserError(lacking(module, what, extra))


def missing_package_hook(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """As ``sys.excepthook``: end a command that lacks a package in one sentence.

    The package sets it for its commands (``python -m``), whose imports come before any ``main``.
    """
    command = getattr(sys.modules["__main__"].__spec__, "name", "").removesuffix(".__main__")
    if not command:  # a package whose own imports come before its __main__
        command = " ".join(sys.orig_argv).partition(" -m ")[2].partition(" ")[0]
    module = getattr(error, "name", None) or ""
    ours = {"powerstep_repro", "nanogpt", *sys.stdlib_module_names}
    if isinstance(error, ModuleNotFoundError) and module.partition(".")[0] not in {"", *ours}:
        extra = _EXTRAS.get(command.rpartition(".")[2], "figures")
        print(f"error: {lacking(module, f'python -m {command}', extra)}", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


def tell(line: str) -> None:
    """Print a line of a run, which goes on without a word when nobody can read it any more.

    The reader has left (``| head``), the terminal was closed, or the disk that takes it is full.
    """
    try:
        print(line, flush=True)
    except OSError:
        _to_nobody()


def _to_nobody() -> None:
    """Let what is still buffered, and all that follows, go to no reader; nothing complains then."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def exit_on_user_error(main: Callable[[], int | None]) -> NoReturn:
    """Run a command's ``main`` and exit with its code.

    A ``UserError``, and what the system refuses (a full disk, a folder without permission), end as
    one line and code 1, Ctrl-C as one word and code 130, a reader that left (``| head``) in silence
    and code 141, as a program that SIGPIPE ends.
    """
    for stream in (sys.stdout, sys.stderr):
        # A console that has no β must not end a command; a test's stand-in for one cannot be told.
        with contextlib.suppress(AttributeError, OSError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        code = main() or 0
        sys.stdout.flush()
        sys.exit(code)
    except BrokenPipeError:
        watch = select.poll()
        watch.register(sys.stdout, 0)
        if not watch.poll(0):  # some other pipe or socket
            raise
        _to_nobody()
        sys.exit(128 + signal.SIGPIPE)
    except (UserError, OSError) as error:
        try:
            sys.stdout.flush()
        except OSError:  # the full disk is the one that takes the output
            _to_nobody()
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
