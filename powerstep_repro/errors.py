"""The one exception whose text is meant for the person at the keyboard, and who raises it."""

import argparse
import os
import select
import signal
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import NoReturn


class UserError(ValueError):
    """Bad input: one clear sentence that names the thing, its value and what is allowed."""


class CommandParser(argparse.ArgumentParser):
    """A command's parser; what is wrong with the arguments is a ``UserError`` like any other."""

    def error(self, message: str) -> NoReturn:
        """Refuse the arguments."""
        raise UserError(f"{message} (see {self.prog} --help)")


def require(module: str, what: str, extra: str) -> None:
    """Refuse ``what`` where a package of one of pyproject.toml's extras is not installed."""
    if find_spec(module) is None:
        raise UserError(
            f"{what} needs {module}, which is not installed: python -m pip install -e '.[{extra}]'"
        )


def exit_on_user_error(main: Callable[[], int | None]) -> NoReturn:
    """Run a command's ``main`` and exit with its code.

    A ``UserError`` ends as one line and code 1, Ctrl-C as one word and code 130, a reader that
    left (``| head``) in silence and code 141, as a program that SIGPIPE ends.
    """
    try:
        code = main() or 0
        sys.stdout.flush()
        sys.exit(code)
    except BrokenPipeError:
        watch = select.poll()
        watch.register(sys.stdout, 0)
        if not watch.poll(0):  # some other pipe or socket
            raise
        # What is still buffered has no reader: the flush at exit must not complain of it either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    except UserError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
