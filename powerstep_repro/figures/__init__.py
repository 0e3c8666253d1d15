"""One function per figure of the paper: from loaded runs to a matplotlib figure.

Importing this package imports neither matplotlib nor torch; ``figures.catalogue`` does the
drawing.
"""
