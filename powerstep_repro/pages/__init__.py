"""Figures, tables and the report: how the numbers of ``evidence`` are laid out for people.

Importing this package imports neither matplotlib nor torch; ``pages.figures`` does the drawing.
"""
