"""One optimizer that steps different parameters by different rules."""

import inspect
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor


class MultiOptimizer(torch.optim.Optimizer):
    """Several optimizers, each with parameters of its own, that save, load and step as one.

    For example 8-bit PowerStep where most parameters are, AdamW on embeddings and gains::

        parts = groups_by_kind(model, "embeddings", "gains", weight_decay=0.1)
        optimizer = MultiOptimizer({
            "powerstep": PowerStepInt8(parts["rest"], lr=6e-4),
            "adamw": torch.optim.AdamW(parts["embeddings"] + parts["gains"], lr=2.4e-3),
        })

    ``param_groups`` holds the members' own groups, so a scheduler scales each group's own rate and
    what is written into a group reaches its rule; a group's ``rule`` names its member. ``state`` is
    shared as well. State dictionaries have torch's form and cover all members, in the order of
    ``param_groups``; each member loads its part by its own ``load_state_dict``, so 8-bit state
    keeps its bits. Hooks of this object run once a step, whatever the number of members.

    With ``torch.amp.GradScaler`` the device decides whether a step is left out if all members can
    do that (fused ones), else the host does, for all of them.

    Args:
        optimizers: Optimizers by a name of your choice. They are this object's from here on: not
            to be stepped, saved or loaded by themselves.

    Raises:
        ValueError: There are none, or two hold the same parameter, or some have named parameters
            and others do not.
    """

    def __init__(self, optimizers: Mapping[str, torch.optim.Optimizer]):
        self.optimizers = dict(optimizers)
        for name, member in self.optimizers.items():
            for group in member.param_groups:
                group["rule"] = name
        groups = [group for member in self.optimizers.values() for group in member.param_groups]
        super().__init__(groups, {})
        self._share()

    def _share(self) -> None:
        """Make the groups and the state of this object those of its members."""
        left = {name: iter(member.param_groups) for name, member in self.optimizers.items()}
        self.param_groups = [next(left[group["rule"]]) for group in self.param_groups]
        self.state: defaultdict[Any, Any] = defaultdict(dict)
        for member in self.optimizers.values():
            self.state.update(member.state)
            member.state = self.state

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to one of the members.

        Args:
            param_group: As torch takes it; ``rule`` names the member.

        Raises:
            ValueError: There is no such member, or it or another one refuses the group; nothing
                has been changed then.
        """
        rule = param_group.get("rule")
        if rule not in self.optimizers:
            known = ", ".join(self.optimizers)
            raise ValueError(f"a group's 'rule' must be one of {known}, not {rule!r}")
        member = self.optimizers[rule]
        if any(group is param_group for group in member.param_groups):  # of the constructor
            super().add_param_group(param_group)
            return
        member.add_param_group(param_group)
        try:
            super().add_param_group(member.param_groups[-1])
        except ValueError:
            member.param_groups.pop()
            raise

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Whether every member's step honours ``found_inf``, by torch's name for it."""
        # torch's own take from a loaded state whether they are fused, and claim what they did.
        return all(
            getattr(member, "_step_supports_amp_scaling", False)
            and all(group.get("fused", True) for group in member.param_groups)
            for member in self.optimizers.values()
        )

    @torch.no_grad()
    def step(
        self, closure: Callable[[], Any] | None = None, *, grad_factor: Tensor | None = None
    ) -> Any:
        """Take a step of every member.

        Args:
            closure: Re-evaluates the model and returns the loss; called once.
            grad_factor: One number that gradients are multiplied by as they are read; only where
                every member takes one, as those of this package do.

        Returns:
            What the closure returned, else None.

        Raises:
            ValueError: ``found_inf`` or ``grad_factor`` is given and a member does not know it.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # torch.amp.GradScaler sets these two for the time of a step.
        names = ("grad_scale", "found_inf")
        scaling: dict[str, Any] = {k: vars(self)[k] for k in names if k in vars(self)}
        if scaling and not self._step_supports_amp_scaling:
            raise ValueError("found_inf is set, but not every member's step is a fused one")
        factor: dict[str, Any] = {} if grad_factor is None else {"grad_factor": grad_factor}
        for name, member in self.optimizers.items():
            if factor and "grad_factor" not in inspect.signature(member.step).parameters:
                raise ValueError(f"grad_factor is given, but {name!r} does not take one")
        for member in self.optimizers.values():
            vars(member).update(scaling)
            try:
                member.step(**factor)
            finally:
                for key in scaling:
                    del vars(member)[key]
        return loss

    @torch._disable_dynamo
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what ``state_dict`` returned; each member loads its own part.

        Raises:
            ValueError: It has other groups, or groups of other rules, or a member refuses it.
        """
        state_dict = state_dict.copy()
        for hook in self._optimizer_load_state_dict_pre_hooks.values():
            if (changed := hook(self, state_dict)) is not None:
                state_dict = changed
        saved = state_dict["param_groups"]
        there = [(g.get("rule"), len(g["params"])) for g in saved]
        here = [(g["rule"], len(g["params"])) for g in self.param_groups]
        if there != here:
            raise ValueError(
                f"the loaded state has groups of (rule, parameters) {there}; this optimizer's are "
                f"{here}"
            )
        state = dict(state_dict["state"])
        for name, member in self.optimizers.items():
            groups = [group for group in saved if group["rule"] == name]
            own = {index: state.pop(index, None) for group in groups for index in group["params"]}
            own = {index: values for index, values in own.items() if values is not None}
            member.load_state_dict({"state": own, "param_groups": groups})
        self._share()
        self.state.update(state)  # keys that are no parameter's, as torch keeps them
        for post_hook in self._optimizer_load_state_dict_post_hooks.values():
            post_hook(self)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "optimizers": self.optimizers}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._share()
