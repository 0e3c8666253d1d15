"""Parameters that are stepped together: state is read, a step is taken, state is written.

Three ways: ``reference`` calls the rule's ``update`` for each tensor, ``foreach`` its list form for
many at a time, ``fused`` a kernel that does it all in one pass over the memory.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from powerstep_repro.optim import fused
from powerstep_repro.optim.kept import STORAGE
from powerstep_repro.optim.quantize import BlockCode, dequantize, quantize
from powerstep_repro.optim.sharded import is_sharded, local, local_grad

# Elements that the list form takes at a time: on a CPU so many that its passes hit the cache;
# elsewhere the temporaries of a step stay below half a GiB, however large the model.
CPU_BUNDLE, DEVICE_BUNDLE = 1 << 18, 1 << 26


@dataclass
class Batch:
    """Parameters of one group that are stepped together."""

    rule: Any  # the optimizer's class
    group: dict[str, Any]
    codes: list[BlockCode]  # of the moments; empty where they are not quantized
    taken: str  # "reference", "foreach" or "fused"
    params: list[Tensor] = field(default_factory=list)
    steps: list[Tensor] = field(default_factory=list)  # counters, where the rule has them
    launch: Any = None  # the fused step of these tensors, kept from the step before

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the moments in a parameter's state."""
        parts = ("_codes", "_scales") if self.codes else ("",)
        return tuple(f"{name}{part}" for name in self.rule.moments for part in parts)

    @property
    def lasts(self) -> bool:
        """Whether the fused step is good for as long as all of its tensors stay in place."""
        fixed = self.launch is not None and self.launch.lasts
        return fixed and not any(map(is_sharded, self.params))

    def check(self, p: Tensor, state: dict[str, Any]) -> None:
        """Refuse a state that its parameter has outgrown: a kernel would write beyond its end."""
        numel = local(p).numel()
        for name in self.names if self.names[0] in state else ():
            size = self.group["block_size"] if name.endswith("_scales") else 1
            held = local(state[name])
            if held.numel() != -(-numel // size) or held.device != p.device:
                raise ValueError(
                    f"{self.rule.__name__} keeps a state of {held.numel():,} elements on "
                    f"{held.device}, {name}, that is not for a parameter of {numel:,} (shape "
                    f"{tuple(p.shape)}) on {p.device}: delete its entry in optimizer.state, or "
                    "make a new optimizer"
                )

    def step(
        self, state: Mapping[Tensor, dict[str, Any]], tables: dict[tuple, Any],
        factor: Tensor | None, found_inf: Tensor | None,
    ) -> None:  # fmt: skip
        """Step all parameters in place, or none on the device where ``found_inf`` is not 0."""
        device = self.params[0].device
        hyper = {name: self.group[name] for name in self.rule.rules if name not in STORAGE}
        if isinstance(hyper["lr"], Tensor):
            hyper["lr"] = _on(device, hyper["lr"])
        factor, found_inf = _on(device, factor), _on(device, found_inf)
        if self.rule.counts:
            self.steps = self.steps or [state[p]["step"] for p in self.params]
            # One addend a counter: a single tensor for all would be read by the host.
            done = 1 if found_inf is None else [(found_inf == 0).float()] * len(self.steps)
            torch._foreach_add_(self.steps, done)
        if self.launch is None:
            params, grads = [local(p) for p in self.params], [local_grad(p) for p in self.params]
            states = [[local(state[p][name]) for name in self.names] for p in self.params]
            if self.taken != "fused":
                self._step_lists(params, grads, states, factor, hyper)
                return
            self.launch = self._prepare(params, grads, states, tables)
        if self.launch is not None:
            self.launch.take(
                lr=hyper["lr"], weight_decay=hyper["weight_decay"], eps=hyper.get("eps", 0.0),
                coefficients=self.rule.kernel.coefficients(hyper), grad_factor=factor,
                found_inf=found_inf,
            )  # fmt: skip

    def _step_lists(
        self, params: list[Tensor], grads: list[Tensor], states: list[list[Tensor]],
        factor: Tensor | None, hyper: dict[str, Any],
    ) -> None:  # fmt: skip
        dtype = math_dtype(params[0])
        limit = CPU_BUNDLE if params[0].device.type == "cpu" else DEVICE_BUNDLE
        for chosen in _bundles(params, 1 if self.taken == "reference" else limit):
            # The tensors themselves, unless of low precision.
            ps, gs = [params[i].to(dtype) for i in chosen], [grads[i].to(dtype) for i in chosen]
            if factor is not None:
                gs = list(torch._foreach_mul(gs, factor))
            moments = [self.read(states[i]) for i in chosen]
            columns = [ps, gs, *map(list, zip(*moments, strict=True))]
            if self.rule.counts:
                columns.append([self.steps[i] for i in chosen])
            if self.taken == "foreach" and self.rule.foreach_update and not self.codes:
                self.rule.foreach_update(*columns, **hyper)
            else:
                for row in zip(*columns, strict=True):
                    self.rule.update(*row, **hyper)
            for i, p, values in zip(chosen, ps, moments, strict=True):
                if p is not params[i]:
                    params[i].copy_(p)
                self.write(values, states[i])

    def read(self, state: list[Tensor]) -> list[Tensor]:
        """Return a parameter's moments in full precision, which are its state unless quantized."""
        if not self.codes:
            return state
        stored = zip(self.codes, state[::2], state[1::2], strict=True)
        size = self.group["block_size"]
        return [dequantize(codes, scales, code, size) for code, codes, scales in stored]

    def write(self, moments: list[Tensor], state: list[Tensor]) -> None:
        """Write a parameter's moments to its codes and scales, if it has such."""
        for i, code in enumerate(self.codes):
            codes, scales = quantize(moments[i], code, self.group["block_size"])
            state[2 * i].copy_(codes)
            state[2 * i + 1].copy_(scales.view(state[2 * i + 1].shape))

    def _prepare(
        self, params: list[Tensor], grads: list[Tensor], states: list[list[Tensor]],
        tables: dict[tuple, Any],
    ) -> Any:  # fmt: skip
        """Return the fused step of these tensors; None if all are empty, as a shard may be."""
        some = [i for i, p in enumerate(params) if p.numel()]
        if not some:
            return None
        columns = [[states[i][k] for i in some] for k in range(len(self.names))]
        moments = [fused.Moment(values) for values in columns]
        if self.codes:
            names = [code.name for code in self.codes]
            moments = list(map(fused.Moment, columns[::2], columns[1::2], names))
        return fused.step(
            self.rule.kernel.rule, [params[i] for i in some], [grads[i] for i in some], *moments,
            steps=[self.steps[i] for i in some] if self.steps else (), tables=tables,
            block_size=self.group["block_size"] if self.codes else 128,
        )  # fmt: skip


def math_dtype(p: Tensor) -> torch.dtype:
    """Return the dtype of arithmetic and state for ``p``: float64 for float64, else float32."""
    return torch.float64 if p.dtype == torch.float64 else torch.float32


def _on(device: torch.device, number: Any) -> Any:
    return None if number is None else number.to(device, non_blocking=True).reshape(())


def _bundles(params: list[Tensor], limit: int) -> Iterator[list[int]]:
    """Yield the indices of all tensors, in bundles of ``limit`` elements at most or of one."""
    bundle: list[int] = []
    room = limit
    for i, p in enumerate(params):
        if bundle and p.numel() > room:
            yield bundle
            bundle, room = [], limit
        bundle.append(i)
        room -= p.numel()
    if bundle:
        yield bundle
