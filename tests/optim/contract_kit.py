"""What the two files of the contract share: cases, comparisons, and how a check is run.

A check is a function of one optimizer at one choice of hyperparameters. It runs at the defaults
and at all of them changed; ``-m slow`` runs it at every combination of ``VALUES``.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
import torch

from powerstep_repro.optim import create, names
from powerstep_repro.optim.registry import _defaults_with

# Per hyperparameter the values besides its default; an optimizer is tried at those it has.
VALUES = {
    "weight_decay": [0.1], "gamma": [0.0], "beta": [0.0, 1.0], "betas": [(0.5, 0.9)],
    "eps": [1e-4], "power": [2.0], "alpha": [0.0], "tau": [0.0], "block_size": [3],
    "code": ["linear"], "code_m": ["linear"], "code_v": ["linear"], "whole_blocks": [True],
    "implementation": ["reference"],
}  # fmt: skip


@dataclass
class Case:
    """An optimizer's name and hyperparameters; called with parameters it makes the optimizer."""

    name: str
    settings: dict = field(default_factory=dict)

    def __call__(self, params, **own):
        return create(self.name, params, **{"lr": 0.01, **self.settings, **own})


class Contract(list[Callable[[Case], None]]):
    """The checks of a file, in order; a decorator adds one, ``every`` runs a test at each."""

    def __call__(self, check):
        self.append(check)
        return check

    def every(self, test):
        test = pytest.mark.parametrize("check", self, ids=lambda check: check.__name__)(test)
        return pytest.mark.parametrize("name", names())(test)


def combinations(name: str) -> Iterator[Case]:
    """Every combination of an optimizer's values, from the defaults to all of them changed."""
    has = _defaults_with(name, {})
    if "code_m" in has:  # then code says nothing that code_m and code_v do not
        del has["code"]
    choices = {key: [has[key], *values] for key, values in VALUES.items() if key in has}
    for values in itertools.product(*choices.values()):
        yield Case(name, dict(zip(choices, values, strict=True)))


def first_and_last(name: str) -> list[Case]:
    every = list(combinations(name))
    return [every[0], every[-1]]


def take_steps(optimizer, params, steps=3, first=0):
    """Each parameter's gradients follow from its shape and the step alone."""
    for step in range(first, first + steps):
        for p in params:
            ramp = torch.linspace(-1, 2, p.numel(), dtype=torch.float32).view(p.shape)
            p.grad = (ramp * (1 + step)).to(p.dtype)
        optimizer.step()


def copies(params):
    return [torch.nn.Parameter(p.detach().clone()) for p in params]


def equal(these, those):
    return all(torch.equal(a, b) for a, b in zip(these, those, strict=True))


def same_state(one, other):
    """Names, dtypes and bits, in the order of the parameters."""
    left, right = one.state_dict()["state"], other.state_dict()["state"]
    return left.keys() == right.keys() and all(
        left[i].keys() == right[i].keys()
        and all(
            v.dtype == right[i][k].dtype and torch.equal(v, right[i][k]) for k, v in left[i].items()
        )
        for i in left
    )
