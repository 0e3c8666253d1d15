"""The trainer's own error for bad input."""


class InputError(ValueError):
    """Bad input: one clear sentence that names the thing, its value and what is allowed."""
