"""A small GPT-2 trainer: model, token data, schedule, loop, checkpoint.

It knows no optimizer by name: it is handed one. It needs torch and numpy only.
"""
