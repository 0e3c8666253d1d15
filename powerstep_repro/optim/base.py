"""The thin optimizer class around a pure update rule.

A rule is a file: a subclass that names its hyperparameters' ``rules`` and the ``moments`` it keeps,
and has one function, in place on float32 tensors (float64 for float64 parameters)::

    update(p, g, *moments, **hyperparameters)            # one parameter; the oracle
    foreach_update(ps, gs, *moments, **hyperparameters)  # lists of all of these; optional

Where the rule ``counts``, the number of the step comes after the moments, as a tensor.
Everything else is the same for all. Validation, refusals, closures, checkpoints and the choice of
an implementation live here; precision, 8-bit moments and shards in ``batch``.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from powerstep_repro.optim import fused
from powerstep_repro.optim.batch import Batch, math_dtype
from powerstep_repro.optim.kept import Kept
from powerstep_repro.optim.loading import check_state_dict, fitted
from powerstep_repro.optim.quantize import BlockCode, block_code, zero_blocks
from powerstep_repro.optim.rules import Choice, Interval, LearningRate, Rule, flag
from powerstep_repro.optim.sharded import has_whole_rows, is_sharded, local, whole

IMPLEMENTATIONS = Choice(("auto", "reference", "foreach", "fused"))


class BaseOptimizer(torch.optim.Optimizer):
    """What every optimizer of this package has in common.

    Semantics that all subclasses keep:

    - ``step`` refuses before it changes anything, leaves ``p.grad`` as it found it, and never
      waits for the device.
    - Arithmetic and state are float32 for float32, bfloat16 and float16 parameters, float64 for
      float64 ones; 8-bit moments have float32 scales.
    - A parameter's state is made at its first gradient, with a step counter of its own.
    - A parameter listed twice in a group (tied weights) is stepped once.
    - ``fused`` is a kernel on a GPU; ``auto`` takes it where there is one, else ``foreach``.
    - A fused kernel works under ``torch.amp.GradScaler`` without a host sync: gradients are divided
      by the attribute ``grad_scale``, and a step at which ``found_inf`` is not 0 changes nothing,
      counters included. Other steps refuse ``found_inf``.
    - State of a sharded parameter (DTensor) lies as the parameter lies, and a step has the numbers
      of one process. A group with ``quantized=False`` keeps its moments in float32.
    - Hyperparameters are checked in the constructor and in ``add_param_group``.

    Args:
        params: Parameters or groups of them, as torch takes them.
        hyperparameters: Every hyperparameter by name, ``implementation`` among them; other names
            are left out, so that a constructor may hand over its ``locals()``.

    Raises:
        ValueError: A hyperparameter out of range, an integer or complex parameter, ``fused`` where
            there is no fused step, or a shard that would cut a block of 8-bit state.
    """

    rules: ClassVar[dict[str, Rule]] = {
        "lr": LearningRate(),
        "weight_decay": Interval("[0, inf)"),
        "implementation": IMPLEMENTATIONS,
    }
    moments: ClassVar[dict[str, bool]] = {"momentum": True}  # names; whether they have a sign
    counts: ClassVar[bool] = False  # whether ``update`` takes ``step``, the number of the step
    quantized: ClassVar[bool] = False  # whether moments are stored in 8 bits
    update: ClassVar[Callable[..., None]]
    foreach_update: ClassVar[Callable[..., None] | None] = None
    kernel: ClassVar[fused.Kernel | None] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        every = [vars(base).get("rules", {}) for base in reversed(cls.__mro__)]
        cls.rules = {name: rule for rules in every for name, rule in rules.items()}
        if "update" in cls.__dict__:
            # A subclass with a rule of its own must not inherit its parent's fast paths.
            for name in ("foreach_update", "kernel"):
                if name not in cls.__dict__:
                    setattr(cls, name, None)

    def __init__(self, params: ParamsT, hyperparameters: dict[str, Any]) -> None:
        defaults = {name: rule(name, hyperparameters[name]) for name, rule in self.rules.items()}
        super().__init__(params, defaults)

    @classmethod
    def bytes_per_param(cls, hyperparameters: dict[str, Any]) -> float:
        """Return the bytes of state a float32 parameter, in whole blocks, by arithmetic."""
        each = 1 + 4 / hyperparameters["block_size"] if cls.quantized else 4
        return float(len(cls.moments) * each)

    def init_state(self, p: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        """Return the state of ``p`` before its first step.

        Each moment is zeros of the shape of ``p``, or ``NAME_codes`` of that shape and
        ``NAME_scales``, one a block; laid out as ``p`` is if that is sharded.
        """
        state: dict[str, Tensor] = {}
        codes = self._codes(p, group)
        for i, name in enumerate(self.moments):
            if codes:
                zeros = zero_blocks(p, codes[i], group["block_size"])
                state[f"{name}_codes"], state[f"{name}_scales"] = zeros
            else:
                like = torch.contiguous_format
                state[name] = torch.zeros_like(p, dtype=math_dtype(p), memory_format=like)
        if self.counts:  # on the device, where reading it costs no sync
            state["step"] = torch.zeros((), dtype=torch.float32, device=p.device)
        return state

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; its own hyperparameters are checked like the constructor's."""
        group = {**self.defaults, **param_group}
        for name, rule in self.rules.items():
            group[name] = rule(name, group[name])
        if self.quantized:
            group["quantized"] = flag("quantized", group.get("quantized", True))
        params = group["params"]
        if isinstance(params, Tensor):
            params = [params]
        elif isinstance(params, set):
            raise TypeError("parameters must come in an order that stays, so not in a set")
        # Named parameters are (name, tensor) pairs; torch has the message for all that is neither.
        pairs = [(p[1] if isinstance(p, tuple) else p, p) for p in params]
        group["params"] = list({id(tensor): p for tensor, p in pairs}.values())
        for p in (tensor for tensor, _ in pairs if isinstance(tensor, Tensor)):
            if not p.is_floating_point():
                what = f"{p.dtype} of shape {tuple(p.shape)}"
                name = type(self).__name__
                raise ValueError(f"{name} takes floating-point parameters, not {what}")
            self._batch(group, p)  # refuses "fused" where there is none
            if is_sharded(p):
                self.init_state(p, group)  # refuses a block that a shard would cut
        super().add_param_group(group)

    @torch._disable_dynamo
    @torch.no_grad()
    def step(  # type: ignore[override]
        self,
        closure: Callable[[], Any] | None = None,
        *,
        grad_factor: Tensor | float | None = None,
    ) -> Any:
        """Perform one update.

        Args:
            closure: Re-evaluates the model and returns the loss, under enabled gradients.
            grad_factor: One number that gradients are multiplied by as they are read, e.g. what
                clipping by norm comes to: it spares a pass over the gradients.

        Returns:
            What the closure returned, else None.

        Raises:
            ValueError: A sparse or complex gradient, a state of another size than its parameter
                has now, a ``grad_factor`` that is not one number, or ``found_inf`` for a step that
                is not a fused kernel's; no parameter has been changed then.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # All that can be refused is refused here, before the first change.
        by_group = [self._batches(i, group) for i, group in enumerate(self.param_groups)]
        batches = [batch for batches in by_group for batch in batches]
        factor = _one_number(grad_factor)
        # torch.amp.GradScaler sets these two for the time of a step.
        grad_scale, found_inf = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        if grad_scale is not None:
            inverse = grad_scale.reciprocal()  # exact for powers of two
            factor = inverse if factor is None else factor * inverse
        for batch in batches:
            if found_inf is not None and batch.taken != "fused":
                raise ValueError(
                    f"found_inf is set, but {type(self).__name__} with implementation="
                    f"{batch.group['implementation']!r} takes {batch.taken} steps here, and only a "
                    "fused kernel's can be left out by a flag on the device"
                )
        for batch in batches:
            for p in batch.params if batch.launch is None else ():
                if batch.names[0] not in self.state[p]:
                    self.state[p].update(self.init_state(p, batch.group))
        for index, batches in enumerate(by_group):
            tables = self._tables.setdefault(index, {})
            for batch in batches:
                batch.step(self.state, tables, factor, found_inf)
            if index not in self._kept and batches and all(batch.lasts for batch in batches):
                self._kept[index] = Kept(self, batches)
        return loss

    @cached_property
    def _kept(self) -> dict[int, Kept]:  # by a group's index; a copy or a pickle has none
        return {}

    @cached_property
    def _tables(self) -> dict[int, dict[tuple, Any]]:  # likewise; a captured graph keeps using them
        return {}

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Whether ``found_inf`` is honoured, as torch names it: if every step is fused."""
        groups = self.param_groups
        return all(self._batch(g, p).taken == "fused" for g in groups for p in g["params"])

    def _codes(self, p: Tensor, group: dict[str, Any]) -> list[BlockCode]:
        """Return the codes of the moments of ``p``, none where those are not quantized."""
        if not (self.quantized and group["quantized"]):
            return []
        if group["whole_blocks"] and not has_whole_rows(p, group["block_size"]):
            return []
        return [
            block_code(group.get(f"code_{name}") or group["code"], signed=signed)
            for name, signed in self.moments.items()
        ]

    def _batch(self, group: dict[str, Any], p: Tensor) -> Batch:
        """Return the empty batch that ``p`` belongs to; ValueError for ``fused`` without one."""
        codes, dtype, taken = self._codes(p, group), math_dtype(p), group["implementation"]
        if taken in ("auto", "fused"):
            block_size = group["block_size"] if codes else 128
            there = self.kernel is not None and fused.available(p.device, dtype, block_size)
            if taken == "auto":
                taken = "fused" if there and p.device.type != "cpu" else "foreach"
            elif not there:
                blocks = f" with block_size={block_size}" if codes else ""
                raise ValueError(
                    f"implementation='fused' is a kernel for GPUs, and not available for "
                    f"{type(self).__name__}{blocks} and {dtype} arithmetic on {p.device}; "
                    "use auto, foreach or reference"
                )
        return Batch(type(self), group, codes, taken)

    def _batches(self, index: int, group: dict[str, Any]) -> list[Batch]:
        """Return the parameters to step, put together; ValueError for a bad gradient or state."""
        known = self._kept.pop(index, None)
        if known is not None and known.holds(self, group):
            self._kept[index] = known
            return known.batches
        batches: dict[tuple, Batch] = {}
        for p in group["params"]:
            g = p.grad
            if g is None or p.numel() == 0:
                continue
            if g.is_complex() or g.layout != torch.strided:
                kind = "complex" if g.is_complex() else g.layout
                what = f"{kind} of shape {tuple(g.shape)}"
                raise ValueError(f"{type(self).__name__} takes dense real gradients, not {what}")
            key = (p.device, math_dtype(p), bool(self._codes(p, group)))
            if key not in batches:
                batches[key] = self._batch(group, p)
            batches[key].params.append(p)
            if p in self.state:
                batches[key].check(p, self.state[p])
        return list(batches.values())

    def read_moments(self, p: Tensor, group: dict[str, Any]) -> list[tuple[Tensor, bool]]:
        """Return the moments of ``p``, a parameter of ``group``, to look at.

        Returns:
            Each moment in full precision, of the shape of the local ``p``, and whether it is
            stored in 8 bits; none before the first step.
        """
        batch, state = self._batch(group, p), self.state.get(p, {})
        if batch.names[0] not in state:
            return []
        moments = batch.read([local(state[name]) for name in batch.names])
        return [(moment, bool(batch.codes)) for moment in moments]

    @torch._disable_dynamo
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state, bit for bit, whatever the parameters' dtype.

        Hyperparameters come from the checkpoint, as in torch; one that the checkpoint does not
        know keeps its present value, and so does ``implementation``, no property of the run.

        Raises:
            ValueError: It is another optimizer's state, or one of parameters of other shapes;
                nothing has been changed then.
        """
        check_state_dict(state_dict, self)
        loaded: dict[Tensor, dict[str, Any]] = {}

        # torch would cast codes and scales to the parameter's dtype. So it loads the groups alone,
        # and the state, as the hooks before left it, is put beside them for the hooks after.
        def take(_: Any, given: dict[str, Any]) -> dict[str, Any]:
            groups, rest = list(given["param_groups"]), dict(given["state"])
            own = self.rules.keys() - BaseOptimizer.rules.keys()
            for i, (present, saved) in enumerate(zip(self.param_groups, groups, strict=False)):
                if own and own.isdisjoint(saved):
                    raise ValueError(
                        f"the loaded state is another optimizer's: a group has {', '.join(saved)}; "
                        f"{type(self).__name__} has {', '.join(sorted(own))}"
                    )
                groups[i] = {**present, **saved, "implementation": present["implementation"]}
                for p, key in zip(present["params"], saved["params"], strict=False):
                    if state := rest.pop(key, None):
                        loaded[p] = fitted(state, self.init_state(p.detach(), groups[i]), p, self)
            return {"state": rest, "param_groups": groups}

        def put(_: Any) -> None:
            self.state.update(loaded)

        before = self.register_load_state_dict_pre_hook(take)
        after = self.register_load_state_dict_post_hook(put, prepend=True)
        try:
            super().load_state_dict(state_dict)
        finally:
            before.remove()
            after.remove()


def _one_number(factor: Any) -> Tensor | None:
    """Return ``grad_factor`` as a tensor; ValueError if it is no real number."""
    if factor is None:
        return None
    what = repr(factor)
    if isinstance(factor, Tensor):
        if factor.numel() == 1 and factor.is_floating_point():
            return whole(factor)
        what = f"a {factor.dtype} tensor of shape {tuple(factor.shape)}"
    elif isinstance(factor, int | float) and not isinstance(factor, bool):
        return torch.full((), factor, dtype=torch.float32, device="cpu")
    raise ValueError(f"grad_factor must be one real number or a tensor of one, not {what}")
