"""The one exception whose text is meant for the person at the keyboard."""

import signal
import sys
from collections.abc import Callable
from typing import NoReturn


class UserError(ValueError):
    """Bad input: one clear sentence that names the thing, its value and what is allowed."""


def exit_on_user_error(main: Callable[[], int | None]) -> NoReturn:
    """Run a command's ``main`` and exit with its code.

    A ``UserError`` ends as one line and code 1, Ctrl-C as one word and code 130.
    """
    try:
        sys.exit(main() or 0)
    except UserError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
