"""Runs of known numbers for this folder's tests."""

from worlds import make_world, texts, world  # noqa: F401
