"""The one exception whose text is meant for the person at the keyboard."""

import sys
from collections.abc import Callable
from typing import NoReturn


class UserError(ValueError):
    """Bad input: one clear sentence that names the thing, its value and what is allowed."""


def exit_on_user_error(main: Callable[[], int | None]) -> NoReturn:
    """Run a command's ``main`` and exit with its code; a ``UserError`` ends as one line and code 1."""
    try:
        sys.exit(main() or 0)
    except UserError as error:
        sys.exit(f"error: {error}")
