"""Planned sweeps: a list of composed runs, each trained in a process of its own.

``plan`` says what is there and what is left, ``local`` trains it on this machine, ``slurm`` on a
cluster, ``wandb_grid`` writes it in W&B's format. Nothing here imports torch: the runs do.
"""
