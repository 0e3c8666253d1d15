"""The thin optimizer class around a pure update rule.

A subclass gives its hyperparameters' ``rules``, the state a parameter starts with
(``init_state``) and the rule itself (``update``): a pure function, in place on flat tensors of
the arithmetic's dtype. Everything else is the same for all of them and lives here: validation,
refusals, closures, precision, layouts, checkpoints, and the choice of an implementation.

Three functions of a subclass are called with the same names::

    update(p, g, **state, **hyperparameters)            # tensors; the oracle
    foreach_update(ps, gs, **states, **hyperparameters)  # lists of such tensors
    fused_update(ps, gs, **states, **hyperparameters)    # lists; the tensors as they are

The first two see one-dimensional contiguous tensors of dtype float32 (float64 for float64
parameters), state included; ``fused_update`` sees parameters and gradients of any dtype, shape
and stride, and contiguous state. States come under the names that ``init_state`` gave them.
``foreach_update`` and ``fused_update`` are optional.
"""

import math
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from operator import is_, itemgetter
from typing import Any, ClassVar

import torch
from torch import Tensor

from powerstep_repro.optim import compiled
from powerstep_repro.optim.bundles import bundle_limit, bundles
from powerstep_repro.optim.dispatch import IMPLEMENTATIONS, implementation
from powerstep_repro.optim.rules import Choice, Interval, LearningRate, refuse_misspelt
from powerstep_repro.optim.shielding import check_size, fitted, no_state, shielded, unshielded
from powerstep_repro.optim.tensors import local, math_dtype


class BaseOptimizer(torch.optim.Optimizer):
    """What every optimizer of this package has in common.

    Semantics that all subclasses keep:

    - ``step`` refuses before it changes anything, leaves ``p.grad`` as it found it, and never
      waits for the device.
    - Arithmetic and state are float32 for float32, bfloat16 and float16 parameters, float64 for
      float64 ones; quantized state has float32 scales.
    - A parameter's state is made at its first gradient, with a step counter of its own.
    - A parameter listed twice in a group (tied weights) is stepped once.
    - ``fused`` is a kernel on a GPU and a loop compiled at the first step on the CPU;
      ``auto`` takes the kernel where there is one, else ``foreach``: it never compiles.
    - A fused kernel works under ``torch.amp.GradScaler`` without a host sync: gradients are divided
      by the attribute ``grad_scale``, and a step at which ``found_inf`` is not 0 changes nothing,
      counters included. Other steps refuse ``found_inf``.
    - A hyperparameter that is written into ``param_groups`` is checked at the next step (unless
      that is compiled as a whole by ``torch.compile``), a rate on a device by its shape alone.
    - ``load_state_dict`` keeps every bit of the state. Hyperparameters come from the
      checkpoint, as in torch; one that the checkpoint does not know keeps its present value.
      ``implementation`` is no property of the run: the present one stays.

    Args:
        params: Parameters or groups of them, as torch takes them.
        defaults: Every hyperparameter by name, ``implementation`` among them.

    Raises:
        ValueError: A hyperparameter out of range, an integer or complex parameter, or ``fused``
            where there is no fused step.
    """

    rules: ClassVar[dict[str, Callable[[str, Any], Any]]] = {
        "lr": LearningRate(),
        "weight_decay": Interval("[0, inf)"),
    }
    layout: ClassVar[frozenset[str]] = frozenset()  # hyperparameters that say how to read a state
    foreach_update: ClassVar[Callable | None] = None
    fused_update: ClassVar[Callable | None] = None

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        cls.rules = BaseOptimizer.rules | cls.rules
        cls._watched = (*(name for name in cls.rules if name != "lr"), "implementation")
        cls._values = itemgetter(*cls._watched)
        cls._layout_names = tuple(name for name in cls.rules if name in cls.layout)
        if "update" in cls.__dict__:
            # A subclass with a rule of its own must not inherit its parent's fast paths.
            for name in ("foreach_update", "fused_update"):
                if name not in cls.__dict__:
                    setattr(cls, name, None)

    def __init__(self, params: Iterable, **defaults: Any):
        self._seen: dict[int, tuple] = {}  # by group: the values that were checked last
        self._layouts: dict[int, tuple] = {}  # by group: how the states that it has are to be read
        self._sizes: dict[int, list[int]] = {}  # by group: elements of its tensors at the last step
        # Checked here too: torch reads the defaults only when there is a group to fill.
        super().__init__(params, self._checked(defaults))

    def init_state(self, p: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        """Return the state of ``p`` before its first step; a ``step`` entry counts by itself."""
        raise NotImplementedError

    @staticmethod
    def update(p: Tensor, g: Tensor, **state_and_hyperparameters: Any) -> None:
        """Apply the update rule to one tensor, in place on ``p`` and the state."""
        raise NotImplementedError

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; its own hyperparameters are checked like the constructor's.

        Other keys are the user's own, as in torch, unless one looks like a misspelt hyperparameter.
        """
        group = self._checked({**self.defaults, **param_group})
        self._refuse_misspelt(param_group)
        params = group["params"]
        if isinstance(params, Tensor):
            params = [params]
        elif isinstance(params, set):
            raise TypeError("parameters must come in an order that stays, so not in a set")
        # Named parameters are (name, tensor) pairs; torch has the message for all that is neither.
        unique = {id(p[1] if isinstance(p, tuple) else p): p for p in params}
        group["params"] = list(unique.values())
        for p in group["params"]:
            tensor = p[1] if isinstance(p, tuple) else p
            if isinstance(tensor, Tensor):
                if not tensor.is_floating_point():
                    what = f"{tensor.dtype} of shape {tuple(tensor.shape)}"
                    name = type(self).__name__
                    raise ValueError(f"{name} takes floating-point parameters, not {what}")
                implementation(type(self), group, tensor.device, math_dtype(tensor))
        super().add_param_group(group)
        for kept in (self._seen, self._layouts, self._sizes):
            kept.pop(id(group), None)  # another group's, which is gone

    @torch.no_grad()
    def step(
        self, closure: Callable[[], Any] | None = None, *, grad_factor: Tensor | None = None
    ) -> Any:
        """Perform one update.

        Args:
            closure: Re-evaluates the model and returns the loss, under enabled gradients.
            grad_factor: One number, as a tensor, that gradients are multiplied by as they are
                read, e.g. what clipping by norm comes to: it spares a pass over the gradients.

        Returns:
            What the closure returned, else None.

        Raises:
            ValueError: A sparse or complex gradient, a hyperparameter that was set out of range,
                a state of another size than its parameter has now, several gradient factors, or
                ``found_inf`` for a step that is not a fused kernel's; no parameter has been changed
                then.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # All that can be refused is refused here, before the first change.
        if not torch.compiler.is_compiling():
            self._check_changes()
        work = [
            (group, batch, implementation(type(self), group, device, dtype))
            for group in self.param_groups
            for (device, dtype), batch in self._batches(group).items()
        ]
        # torch.amp.GradScaler sets these two for the time of a step.
        grad_scale, found_inf = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        if grad_scale is not None:
            factor = grad_scale.reciprocal()  # exact for powers of two
            grad_factor = factor if grad_factor is None else grad_factor * factor
        if grad_factor is not None and grad_factor.numel() != 1:
            shape = tuple(grad_factor.shape)
            raise ValueError(f"grad_factor must be one number, not a tensor of shape {shape}")
        for group, _, taken in work:
            if found_inf is not None and taken != "fused":
                raise ValueError(
                    f"found_inf is set, but {type(self).__name__} with implementation="
                    f"{group['implementation']!r} takes {taken} steps here, and only a "
                    "fused kernel's can be left out by a flag on the device"
                )
        for group, params, taken in work:
            states = [self.state[p] for p in params]
            for p, state in zip(params, states, strict=True):
                if not state:
                    state.update(self.init_state(p, group))
            self._step_batch(group, params, states, taken, grad_factor, found_inf)
        return loss

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Whether ``found_inf`` is honoured, as torch names it: if every step is fused."""
        kinds = {
            (index, p.device, math_dtype(p))
            for index, group in enumerate(self.param_groups)
            for p in group["params"]
        }
        return all(
            implementation(type(self), self.param_groups[index], device, dtype) == "fused"
            for index, device, dtype in kinds
        )

    def _batches(
        self, group: dict[str, Any]
    ) -> dict[tuple[torch.device, torch.dtype], list[Tensor]]:
        """Return the parameters to step by device and arithmetic; ValueError for a bad gradient."""
        batches: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        sizes = []
        for p in group["params"]:
            g = p.grad
            sizes.append(0 if g is None else p.numel())
            if g is None:
                continue
            kind = "complex" if g.is_complex() else g.layout
            if kind != torch.strided:
                shape = tuple(g.shape)
                raise ValueError(
                    f"{type(self).__name__} takes dense real gradients, not {kind} of shape {shape}"
                )
            if sizes[-1]:
                batches.setdefault((p.device, math_dtype(p)), []).append(p)
        # A tensor that was put into ``p.data`` can be larger than the state, and a kernel would
        # write beyond its end. To compare sizes with the last step's costs next to nothing.
        if not torch.compiler.is_compiling() and sizes != self._sizes.get(id(group)):
            for p in chain.from_iterable(batches.values()):
                if p in self.state:
                    check_size(self.state[p], local(p), type(self).__name__)
            self._sizes[id(group)] = sizes
        return batches

    def _step_batch(
        self,
        group: dict[str, Any],
        params: list[Tensor],
        states: list[dict[str, Tensor]],
        taken: str,
        grad_factor: Tensor | None,
        found_inf: Tensor | None,
    ) -> None:
        hyper = {name: group[name] for name in self.rules}
        if isinstance(hyper["lr"], Tensor):
            hyper["lr"] = hyper["lr"].to(params[0].device, non_blocking=True).reshape(())
        by_name = {name: [local(state[name]) for state in states] for name in states[0]}
        grads = [local(p.grad) for p in params]
        params = [local(p) for p in params]
        if grad_factor is not None:
            grad_factor = grad_factor.to(params[0].device, non_blocking=True).reshape(())
        if found_inf is not None:
            found_inf = found_inf.to(params[0].device, non_blocking=True).reshape(()).float()
            hyper["found_inf"] = found_inf
        if "step" in by_name:
            # One addend a counter: a single tensor for all would be read by the host.
            counted = 1 if found_inf is None else [(found_inf == 0).float()] * len(params)
            torch._foreach_add_(by_name["step"], counted)
        if taken == "fused":
            if grad_factor is not None:
                hyper["grad_factor"] = grad_factor.float()
            self.fused_update(params, grads, **by_name, **hyper)
            return

        dtype = math_dtype(params[0])
        flat_params = [p.detach().reshape(-1) for p in params]  # views, unless strided
        flat_grads = [g.reshape(-1) for g in grads]
        flat_states = [
            {k: t if k == "step" else t.view(-1) for k, t in zip(by_name, parts, strict=True)}
            for parts in zip(*by_name.values(), strict=True)
        ]
        flat = flat_params, flat_grads, flat_states
        if taken == "compiled":
            flat = compiled.step(self.foreach_update, *flat, dtype, grad_factor, hyper)
        limit = None if taken == "reference" else bundle_limit(params[0].device)
        cut = partial(self.cut_state, group=group)
        for ps, gs, parts in bundles(*flat, cut, limit, group.get("block_size", 1)):
            working = [p.to(dtype) for p in ps]  # the tensors themselves, unless of low precision
            gs = [g.to(dtype) for g in gs]
            if grad_factor is not None:
                gs = torch._foreach_mul(gs, grad_factor)
            if limit is not None and self.foreach_update is not None:
                lists = {name: [part[name] for part in parts] for name in by_name}
                self.foreach_update(working, gs, **lists, **hyper)
            else:
                for p, g, state in zip(working, gs, parts, strict=True):
                    self.update(p, g, **state, **hyper)
            for p, w in zip(ps, working, strict=True):
                if p.dtype != dtype:
                    p.copy_(w)
        for p, flat in zip(params, flat_params, strict=True):
            if not p.is_contiguous():
                p.copy_(flat.view(p.shape))

    def _check_changes(self) -> None:
        """Check the hyperparameters that were written into the groups since the last step."""
        for group in self.param_groups:
            # Rates change at every step, so theirs is the one comparison.
            try:
                lr, values = group["lr"], self._values(group)
            except KeyError as error:
                raise ValueError(
                    f"a parameter group of {type(self).__name__} lost its {error.args[0]!r}"
                ) from None
            if not (type(lr) is float and 0 <= lr < math.inf):
                self.rules["lr"]("lr", lr)
            seen = self._seen.get(id(group))
            # By identity: comparing a tensor would read it.
            if seen is not None and all(map(is_, values, seen)) and len(group) == seen[-1]:
                continue
            self._refuse_misspelt(group)
            checked = self._checked(group)
            held = self._layouts.get(id(group), self._layout(checked))
            for name, value in zip(self._layout_names, held, strict=True):
                if checked[name] != value:
                    raise ValueError(
                        f"{name} must stay {value!r} once a step was taken, not {checked[name]!r}: "
                        "the state could not be read"
                    )
            group.update(checked)
            self._seen[id(group)] = (*self._values(group), len(group))
            self._layouts[id(group)] = self._layout(group)

    def cut_state(
        self, state: dict[str, Tensor], start: int, length: int, group: dict[str, Any]
    ) -> dict[str, Tensor]:
        """Return the part of a flat state that goes with ``length`` elements from ``start``."""
        return {k: s if k == "step" else s[start : start + length] for k, s in state.items()}

    def _layout(self, group: dict[str, Any]) -> tuple:
        return tuple(group[name] for name in self._layout_names)

    def _refuse_misspelt(self, keys: Iterable[str]) -> None:
        refuse_misspelt(keys, (*self.rules, "implementation"), type(self).__name__)

    def _checked(self, group: dict[str, Any]) -> dict[str, Any]:
        """Return ``group`` with every hyperparameter checked and in its plain form."""
        checked = {name: rule(name, group[name]) for name, rule in self.rules.items()}
        rule = Choice(IMPLEMENTATIONS)
        checked["implementation"] = rule("implementation", group["implementation"])
        return {**group, **checked}

    @torch._disable_dynamo
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state, bit for bit.

        torch would cast every state tensor to its parameter's dtype, which ruins codes (int8)
        and scales alike and cannot be undone afterwards. So tensors pass it in a wrapper.

        Raises:
            ValueError: The state is none, or another optimizer's as far as names tell (pbSGDM's
                have PowerStep's), or of parameters of other shapes or another arithmetic, or a
                hyperparameter is out of range; nothing has been changed then.
        """
        name = type(self).__name__
        if not isinstance(state_dict, dict):
            raise no_state(state_dict, name)
        own = self.rules.keys() - BaseOptimizer.rules.keys()
        shield = self.register_load_state_dict_pre_hook(
            lambda _, loaded: shielded(loaded, name, own)
        )
        try:
            super().load_state_dict(state_dict)
        finally:
            shield.remove()

    def _fit_states(self, group: dict[str, Any], states: dict[Tensor, dict[str, Any]]) -> None:
        """Make states of the group's parameters look like ``init_state``'s, or refuse them."""
        for index, p in enumerate(group["params"]):
            if state := states.get(p):
                # On the meta device a state is a shape and takes no memory.
                wanted = self.init_state(local(p).detach().to("meta"), group)
                of = f"parameter {index} of its group, of shape {tuple(p.shape)}"
                states[p] = fitted(state, wanted, type(self).__name__, of)

    def __setstate__(self, state: dict[str, Any]) -> None:
        for p, values in state["state"].items():
            state["state"][p] = unshielded(values, p.device if isinstance(p, Tensor) else None)
        if "param_groups" in self.__dict__:  # loading a checkpoint, not unpickling
            for loaded, present in zip(state["param_groups"], self.param_groups, strict=True):
                for key, value in present.items():
                    loaded.setdefault(key, value)
                loaded["implementation"] = present["implementation"]
                loaded.update(self._checked(loaded))
                self._fit_states(loaded, state["state"])
        self._seen, self._sizes = {}, {}
        super().__setstate__(state)
        self._layouts = {
            id(group): self._layout(group)
            for group in self.param_groups
            if any(self.state.get(p) for p in group["params"])
        }
