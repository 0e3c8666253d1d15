"""The thin optimizer class around a pure update rule.

A rule is a file: a subclass that names its hyperparameters' ``rules`` and the ``moments`` it keeps,
and has one function, in place on float32 tensors (float64 for float64 parameters)::

    update(p, g, *moments, **hyperparameters)            # one parameter; the oracle
    foreach_update(ps, gs, *moments, **hyperparameters)  # lists of all of these; optional

Where the rule ``counts``, the number of the step comes after the moments, as a tensor.
Everything else is the same for all and lives here: validation, refusals, closures, precision, 8-bit
moments, shards, checkpoints, and the choice of an implementation.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from powerstep_repro.optim import fused
from powerstep_repro.optim.kept import STORAGE, Kept, facts
from powerstep_repro.optim.loading import check_group, check_state_dict, fitted
from powerstep_repro.optim.quantize import block_code, dequantize, quantize, zero_blocks
from powerstep_repro.optim.rules import Choice, Interval, LearningRate, Rule, flag
from powerstep_repro.optim.sharded import has_whole_rows, is_sharded, local, local_grad, whole

IMPLEMENTATIONS = Choice(("auto", "reference", "foreach", "fused"))
# Elements that the list form takes at a time: on a CPU so many that its passes hit the cache;
# elsewhere the temporaries of a step stay below half a GiB, however large the model.
CPU_BUNDLE, DEVICE_BUNDLE = 1 << 18, 1 << 26


@dataclass
class Batch:
    """Parameters of one group that are stepped together."""

    group: dict[str, Any]
    quantized: bool
    dtype: torch.dtype  # of the arithmetic
    taken: str  # "reference", "foreach" or "fused"
    names: tuple[str, ...]  # of the moments in a parameter's state
    params: list[Tensor] = field(default_factory=list)
    steps: list[Tensor] = field(default_factory=list)  # counters, where the rule has them
    launch: Any = None  # what a fused step keeps from the one before


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
    _kept: dict[int, Kept]  # by a group's index
    _tables: dict[int, dict[tuple, Any]]  # the same; a captured graph needs them for ever

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        inherited: dict[str, Rule] = getattr(super(cls, cls), "rules")  # noqa: B009
        cls.rules = inherited | cls.rules
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
        for name in self.moments:
            if self._quantizes(p, group):
                codes, scales = zero_blocks(p, self._code(name, group), group["block_size"])
                state[f"{name}_codes"], state[f"{name}_scales"] = codes, scales
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
        unique = {id(p[1] if isinstance(p, tuple) else p): p for p in params}
        group["params"] = list(unique.values())
        for p in group["params"]:
            p = p[1] if isinstance(p, tuple) else p
            if isinstance(p, Tensor):
                if not p.is_floating_point():
                    what = f"{p.dtype} of shape {tuple(p.shape)}"
                    name = type(self).__name__
                    raise ValueError(f"{name} takes floating-point parameters, not {what}")
                self._batch(group, p)
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
            for batch in batches:
                self._step_batch(index, batch, factor, found_inf)
            self._keep(index, batches)
        return loss

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Whether ``found_inf`` is honoured, as torch names it: if every step is fused."""
        groups = self.param_groups
        return all(self._batch(g, p).taken == "fused" for g in groups for p in g["params"])

    def _quantizes(self, p: Tensor, group: dict[str, Any]) -> bool:
        """Say whether moments of ``p`` are stored in 8 bits."""
        if not (self.quantized and group["quantized"]):
            return False
        return not group["whole_blocks"] or has_whole_rows(p, group["block_size"])

    def _code(self, moment: str, group: dict[str, Any]) -> Any:
        name = group.get(f"code_{moment}") or group["code"]
        return block_code(name, signed=self.moments[moment])

    def _batch(self, group: dict[str, Any], p: Tensor) -> Batch:
        """Return the empty batch that ``p`` belongs to; ValueError for ``fused`` without one."""
        quantized, dtype = self._quantizes(p, group), math_dtype(p)
        taken = group["implementation"]
        if taken in ("auto", "fused"):
            block_size = group["block_size"] if quantized else fused.BLOCK_SIZES[0]
            there = self.kernel is not None and fused.available(p.device, dtype, block_size)
            if taken == "auto":
                taken = "fused" if there and p.device.type != "cpu" else "foreach"
            elif not there:
                blocks = f" with block_size={block_size}" if quantized else ""
                raise ValueError(
                    f"implementation='fused' is a kernel for GPUs, and not available for "
                    f"{type(self).__name__}{blocks} and {dtype} arithmetic on {p.device}; "
                    "use auto, foreach or reference"
                )
        parts = ("_codes", "_scales") if quantized else ("",)
        names = tuple(f"{name}{part}" for name in self.moments for part in parts)
        return Batch(group, quantized, dtype, taken, names)

    def _batches(self, index: int, group: dict[str, Any]) -> list[Batch]:
        """Return the parameters to step, put together; ValueError for a bad gradient or state."""
        known = self.__dict__.setdefault("_kept", {}).pop(index, None)
        # A CUDA graph that is being captured needs address tables of its own.
        if (
            known is not None
            and not fused.capturing(known.batches[0].params[0].device)
            and known.facts == facts(self, group, known.lookups)
        ):
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
            key = (p.device, p.dtype == torch.float64, self._quantizes(p, group))
            if key not in batches:
                batches[key] = self._batch(group, p)
            batches[key].params.append(p)
            if p in self.state:
                self._check_size(p, batches[key])
        return list(batches.values())

    def _check_size(self, p: Tensor, batch: Batch) -> None:
        """Refuse a state that its parameter has outgrown: a kernel would write beyond its end."""
        state, numel = self.state[p], local(p).numel()
        for name in batch.names if batch.names[0] in state else ():
            size = batch.group["block_size"] if name.endswith("_scales") else 1
            held = local(state[name])
            if held.numel() != -(-numel // size) or held.device != p.device:
                raise ValueError(
                    f"{type(self).__name__} keeps a state of {held.numel():,} elements on "
                    f"{held.device}, {name}, that is not for a parameter of {numel:,} (shape "
                    f"{tuple(p.shape)}) on {p.device}: delete its entry in optimizer.state, or "
                    "make a new optimizer"
                )

    def _keep(self, index: int, batches: list[Batch]) -> None:
        """Remember a group's fused batches for as long as all of it stays in place."""
        if index in self._kept or not all(b.launch is not None and b.launch.lasts for b in batches):
            return
        if any(map(is_sharded, (p for b in batches for p in b.params))) or not batches:
            return
        counter = ("step",) if self.counts else ()
        lookups = [
            (self.state[p], name) for b in batches for p in b.params for name in b.names + counter
        ]
        group = batches[0].group
        if now := facts(self, group, lookups):
            self._kept[index] = Kept(batches, lookups, now)

    def _step_batch(
        self, index: int, batch: Batch, factor: Tensor | None, found_inf: Tensor | None
    ) -> None:
        group, device = batch.group, batch.params[0].device
        hyper = {name: group[name] for name in self.rules if name not in STORAGE}
        if isinstance(hyper["lr"], Tensor):
            hyper["lr"] = _on(device, hyper["lr"])
        factor, found_inf = _on(device, factor), _on(device, found_inf)
        if self.counts:
            batch.steps = batch.steps or [self.state[p]["step"] for p in batch.params]
            # One addend a counter: a single tensor for all would be read by the host.
            done = 1 if found_inf is None else [(found_inf == 0).float()] * len(batch.steps)
            torch._foreach_add_(batch.steps, done)
        if batch.launch is None:
            params = [local(p) for p in batch.params]
            grads = [local_grad(p) for p in batch.params]
            states = [[local(self.state[p][name]) for name in batch.names] for p in batch.params]
            if batch.taken != "fused":
                self._step_lists(batch, params, grads, states, factor, hyper)
                return
            batch.launch = self._prepare(index, batch, params, grads, states)
        if batch.launch is not None and self.kernel is not None:
            coefficients = self.kernel.coefficients(hyper)
            batch.launch.take(
                lr=hyper["lr"], weight_decay=hyper["weight_decay"], coefficients=coefficients,
                eps=hyper.get("eps", 0.0), grad_factor=factor, found_inf=found_inf,
            )  # fmt: skip

    def _step_lists(
        self, batch: Batch, params: list[Tensor], grads: list[Tensor], states: list[list[Tensor]],
        factor: Tensor | None, hyper: dict[str, Any],
    ) -> None:  # fmt: skip
        """Take the reference's step, or the list form's."""
        limit = CPU_BUNDLE if params[0].device.type == "cpu" else DEVICE_BUNDLE
        for chosen in _bundles(params, 1 if batch.taken == "reference" else limit):
            # The tensors themselves, unless of low precision.
            ps = [params[i].to(batch.dtype) for i in chosen]
            gs = [grads[i].to(batch.dtype) for i in chosen]
            if factor is not None:
                gs = list(torch._foreach_mul(gs, factor))
            moments = [self._read(batch, states[i]) for i in chosen]
            steps = [[batch.steps[i]] if self.counts else [] for i in chosen]
            lists = zip(ps, gs, moments, steps, strict=True)
            list_form = type(self).foreach_update
            if batch.taken == "foreach" and list_form and not batch.quantized:
                columns = zip(*((p, g, *m, *s) for p, g, m, s in lists), strict=True)
                list_form(*map(list, columns), **hyper)
            else:
                for p, g, m, s in lists:
                    type(self).update(p, g, *m, *s, **hyper)
            for i, p, m in zip(chosen, ps, moments, strict=True):
                if p is not params[i]:
                    params[i].copy_(p)
                self._write(batch, states[i], m)

    def _read(self, batch: Batch, state: list[Tensor]) -> list[Tensor]:
        """Return a parameter's moments in full precision: its state itself, or decoded."""
        if not batch.quantized:
            return state
        pairs = zip(self.moments, state[::2], state[1::2], strict=True)
        size = batch.group["block_size"]
        return [dequantize(c, s, self._code(name, batch.group), size) for name, c, s in pairs]

    def read_moments(self, p: Tensor, group: dict[str, Any]) -> list[tuple[Tensor, bool]]:
        """Return the moments of ``p``, a parameter of ``group``, to look at.

        Returns:
            Each moment in full precision, of the shape of the local ``p``, and whether it is
            stored in 8 bits; none before the first step.
        """
        batch, state = self._batch(group, p), self.state.get(p, {})
        if batch.names[0] not in state:
            return []
        moments = self._read(batch, [local(state[name]) for name in batch.names])
        return [(moment, batch.quantized) for moment in moments]

    def _write(self, batch: Batch, state: list[Tensor], moments: list[Tensor]) -> None:
        """Code moments, where that is how they are stored."""
        pairs = zip(self.moments, moments, state[::2], state[1::2], strict=True)
        for name, moment, codes, scales in pairs if batch.quantized else ():
            code = self._code(name, batch.group)
            new_codes, new_scales = quantize(moment, code, batch.group["block_size"])
            codes.copy_(new_codes)
            scales.copy_(new_scales.view(scales.shape))

    def _prepare(
        self, index: int, batch: Batch, params: list[Tensor], grads: list[Tensor],
        states: list[list[Tensor]],
    ) -> Any:  # fmt: skip
        """Return a fused step of these tensors; None if there are none, as in an empty shard."""
        kept = [i for i, p in enumerate(params) if p.numel()]
        if not kept or self.kernel is None:
            return None
        columns = [[states[i][k] for i in kept] for k in range(len(batch.names))]
        if batch.quantized:
            pairs = zip(self.moments, columns[::2], columns[1::2], strict=True)
            group = batch.group
            moments = [
                fused.Moment(c, s, group.get(f"code_{name}") or group["code"])
                for name, c, s in pairs
            ]
        else:
            moments = [fused.Moment(column) for column in columns]
        tables = self.__dict__.setdefault("_tables", {}).setdefault(index, {})
        return fused.step(
            self.kernel.rule, [params[i] for i in kept], [grads[i] for i in kept], *moments,
            steps=[batch.steps[i] for i in kept] if self.counts else (), tables=tables,
            block_size=batch.group["block_size"] if batch.quantized else 128,
        )  # fmt: skip

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
        loaded: dict[Any, dict[str, Any]] = {}

        # torch would cast codes and scales to the parameter's dtype. So it loads the groups alone,
        # and the state, as the hooks before left it, is put beside them for the hooks after.
        def take(_: Any, given: dict[str, Any]) -> dict[str, Any]:
            groups, rest = list(given["param_groups"]), dict(given["state"])
            own = self.rules.keys() - BaseOptimizer.rules.keys()
            for i, (present, saved) in enumerate(zip(self.param_groups, groups, strict=False)):
                check_group(saved, own, self)
                groups[i] = {**present, **saved, "implementation": present["implementation"]}
                for p, key in zip(present["params"], saved["params"], strict=False):
                    if state := rest.pop(key, None):
                        loaded[p] = fitted(state, self.init_state(p.detach(), groups[i]), p, self)
            return {"state": rest, "param_groups": groups}

        def put(_: Any) -> None:
            self.state.update(loaded)

        hooks = [
            self.register_load_state_dict_pre_hook(take),
            self.register_load_state_dict_post_hook(put, prepend=True),
        ]
        try:
            super().load_state_dict(state_dict)
        finally:
            for hook in hooks:
                hook.remove()


def math_dtype(p: Tensor) -> torch.dtype:
    """Return the dtype of arithmetic and state for ``p``: float64 for float64, else float32."""
    return torch.float64 if p.dtype == torch.float64 else torch.float32


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
