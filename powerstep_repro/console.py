"""The console that commands print their tables on."""

from rich.console import Console

# Wider than any table: a file or a pipe has no edge at which to cut or fold one.
UNCUT_WIDTH = 10_000


def table_console() -> Console:
    """Return a console as wide as the terminal, or as any table where there is none."""
    console = Console()
    if not console.is_terminal:
        console.width = UNCUT_WIDTH
    return console
