"""Optimizers by name: ``create``, ``names``, and their memory on paper and as measured.

An optimizer registers itself with ``@register`` in its own file, every file beside this one is
imported, and its class is then a name of the package: a new file (and ``conf/optimizer/NAME.yaml``
for the harness) is all it takes.
"""

import difflib
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT


@dataclass(frozen=True)
class _Entry:
    factory: Callable[..., torch.optim.Optimizer]
    bytes_per_param: float | None

    def defaults(self) -> dict[str, Any]:
        parameters = inspect.signature(self.factory).parameters.values()
        return {p.name: p.default for p in parameters if p.name != "params"}


_ENTRIES: dict[str, _Entry] = {}


Factory = TypeVar("Factory", bound=Callable[..., torch.optim.Optimizer])


def register(name: str, *, bytes_per_param: float | None = None) -> Callable[[Factory], Factory]:
    """Register a class (or a function that returns an optimizer) under ``name``.

    Args:
        name: The name that ``create`` and ``conf/optimizer/NAME.yaml`` use.
        bytes_per_param: State bytes a float32 parameter; None asks the class (``BaseOptimizer``).

    Raises:
        ValueError: The name is taken.
    """

    def add(factory: Factory) -> Factory:
        if name in _ENTRIES:
            raise ValueError(f"optimizer {name!r} is registered twice")
        _ENTRIES[name] = _Entry(factory, bytes_per_param)
        return factory

    return add


def discover(package: str, paths: Iterable[str]) -> dict[str, type]:
    """Import every module (not package) in ``paths``; return all registered classes by name."""
    for module in pkgutil.iter_modules(paths):
        if not module.ispkg:
            importlib.import_module(f"{package}.{module.name}")
    factories = [entry.factory for entry in _ENTRIES.values()]
    return {factory.__name__: factory for factory in factories if isinstance(factory, type)}


def names() -> list[str]:
    """Return the names of all optimizers, sorted."""
    return sorted(_ENTRIES)


def create(name: str, params: ParamsT, **hyperparameters: Any) -> torch.optim.Optimizer:
    """Build an optimizer by its name; all parameters it is given are decayed alike.

    Args:
        name: One of ``names()``.
        params: Parameters or groups of them, as torch takes them.
        **hyperparameters: Those of the optimizer, with ``lr``, ``weight_decay`` and
            ``implementation``; what is left out has the paper's value (no decay, though).

    Raises:
        ValueError: An unknown name or hyperparameter (with a suggestion), or a value out of range.
    """
    _defaults_with(name, hyperparameters)
    return _ENTRIES[name].factory(params, **hyperparameters)


def bytes_per_param(name: str, **hyperparameters: Any) -> float:
    """Return the optimizer state's bytes per float32 parameter, by arithmetic.

    Whole blocks are assumed for quantized state: a parameter whose size is no multiple of the
    block size carries one scale more.

    Args:
        name: One of ``names()``.
        **hyperparameters: As for ``create``; those that do not touch the state do not matter.

    Raises:
        ValueError: An unknown name or hyperparameter.
    """
    values = _defaults_with(name, hyperparameters)
    entry = _ENTRIES[name]
    if entry.bytes_per_param is not None:
        return entry.bytes_per_param
    return entry.factory.bytes_per_param(values)  # type: ignore[attr-defined]


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Return the bytes of an optimizer's state as it stands: scales included, counters not.

    A parameter has state from its first gradient on. Sharded state counts as its local part.
    """
    return sum(_tensor_bytes(state) for state in optimizer.state.values())


def _tensor_bytes(value: Any) -> int:
    if isinstance(value, Tensor):
        local = getattr(value, "_local_tensor", value)
        return local.numel() * local.element_size()
    if isinstance(value, dict):
        return sum(_tensor_bytes(v) for k, v in value.items() if k != "step")
    if isinstance(value, list | tuple):
        return sum(map(_tensor_bytes, value))
    return 0


def _defaults_with(name: str, hyperparameters: dict[str, Any]) -> dict[str, Any]:
    """Return the optimizer's defaults under ``hyperparameters``; ValueError on unknown ones."""
    if name not in _ENTRIES:
        raise ValueError(f"unknown optimizer {name!r}{_suggestion(name, names())}")
    defaults = _ENTRIES[name].defaults()
    for key in hyperparameters:
        if key not in defaults:
            raise ValueError(
                f"optimizer {name!r} has no hyperparameter {key!r}"
                f"{_suggestion(key, sorted(defaults))}"
            )
    return defaults | hyperparameters


def _suggestion(word: str, known: list[str]) -> str:
    near = difflib.get_close_matches(str(word), known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ";"
    return f"{hint} allowed: {', '.join(known)}"
