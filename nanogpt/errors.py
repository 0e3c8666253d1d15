"""The trainer's own errors. Each carries one sentence for the person at the keyboard."""


class UserError(ValueError):
    """Bad input: one clear sentence that names the thing, its value and what is allowed."""


class OutOfMemory(RuntimeError):
    """The device ran out of memory; the sentence names micro-batch, precision and the knobs."""


class CheckpointError(RuntimeError):
    """A checkpoint could not be written (disk full, no permission); earlier ones are untouched."""
