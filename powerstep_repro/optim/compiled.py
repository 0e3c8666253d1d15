"""Steps compiled for the CPU: torch makes one C++ loop of an optimizer's list form.

The list form passes over a tensor once an operation, the loop once in all. Compiling takes
seconds (torch keeps the result on disk) and a C++ compiler, so that it is done on demand only,
for ``implementation="fused"``. A loop serves tensors of all sizes, every learning rate, weight
decay and β; dtypes, the number of threads, the other coefficients (γ) and the exact ends of a
range (no decay, β = 0) are part of its code: each that is new takes a compilation of its own.
"""

import os
import shutil
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

# Elements that are worth a call of their own, which takes about 50 µs.
OWN_CALL = 1 << 14
# Loops that torch keeps before it would fall back to the list form; its own limit is 8.
LOOPS = 256


def available() -> bool:
    """Say whether steps can be compiled: there is a C++ compiler, and Triton is not interpreted.

    A step that is itself being compiled was asked before.
    """
    if torch.compiler.is_compiling():
        return True
    return os.environ.get("TRITON_INTERPRET", "0") != "1" and compiler() is not None


@cache
def compiler() -> str | None:
    """Return the path of the C++ compiler, or None: ``$CXX``, else the first that is known."""
    wanted = os.environ.get("CXX")
    found = map(shutil.which, [wanted] if wanted else ["c++", "g++", "clang++"])
    return next(filter(None, found), None)


def step(
    update: Callable[..., None],
    ps: list[Tensor],
    gs: list[Tensor],
    states: list[dict[str, Tensor]],
    dtype: torch.dtype,
    grad_factor: Tensor | None,
    hyper: dict[str, Any],
) -> tuple[list[Tensor], list[Tensor], list[dict[str, Tensor]]]:
    """Step the tensors that are worth a call, in place.

    Args:
        update: The list form of an optimizer's rule, ``foreach_update``.
        ps: Parameters, flat and contiguous, of any dtype.
        gs: Their gradients, alike.
        states: Their states, alike, in ``dtype``.
        dtype: The arithmetic's.
        grad_factor: What gradients are multiplied by as they are read, if anything.
        hyper: Hyperparameters by name.

    Returns:
        The parameters, gradients and states that are left to step in the list form.
    """
    if torch.compiler.is_compiling():  # as a whole: its parts need not be
        return ps, gs, states
    # A schedule must not make new loops; in double precision it rounds as a number does.
    hyper = {**hyper, "lr": torch.as_tensor(hyper["lr"], dtype=torch.float64)}
    rest = ([], [], [])
    # By the name that torch 2.6 has for it too.
    with torch._dynamo.config.patch(cache_size_limit=LOOPS):
        for p, g, state in zip(ps, gs, states, strict=True):
            if p.numel() < OWN_CALL:
                for kind, value in zip(rest, (p, g, state), strict=True):
                    kind.append(value)
                continue
            # Of a view, torch would look at the whole's shape as well, and compile for each.
            plain = {name: s.data for name, s in state.items()}
            _loop()(update, p.data, g.data, plain, dtype, grad_factor, hyper)
            torch.autograd.graph.increment_version(p)
    return rest


@cache
def _loop() -> Callable[..., None]:
    return torch.compile(_one, dynamic=True, options={"cpp.cxx": (compiler(),)})


def _one(update, p, g, state, dtype, grad_factor, hyper):
    working, g = p.to(dtype), g.to(dtype)
    if grad_factor is not None:
        g = g * grad_factor
    update([working], [g], **{name: [s] for name, s in state.items()}, **hyper)
    if working is not p:
        p.copy_(working)
