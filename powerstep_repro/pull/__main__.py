"""``python -m powerstep_repro.pull``."""

from powerstep_repro.errors import exit_on_user_error
from powerstep_repro.pull.cli import main

if __name__ == "__main__":
    exit_on_user_error(main)
