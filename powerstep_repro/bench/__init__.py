"""What a step costs: optimizers and training, beside their peers, in one process.

A bar is the median of three rounds, each of many calls; the rounds of all contenders interleave,
so that a card that warms up slows all alike. Tables go to the screen, numbers to
``results/bench/*.json``.
"""
