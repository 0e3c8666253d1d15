"""The paper's ten models by family, behind the one interface that the trainer uses.

``forward(tokens (B, T), targets (B, T) or None, passes=1) -> Output(loss, logits, aux)``,
``n_params()``, ``n_active_params()`` and ``flops_per_token(context)``. Importing this package
imports neither torch nor transformers; ``build`` imports the one family that it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from powerstep_repro.models.architecture import check

if TYPE_CHECKING:
    from torch import nn


def build(model: Mapping[str, Any]) -> nn.Module:
    """Build the model that a config's ``model`` section describes, with fresh weights.

    Weights are drawn from torch's global generator, on the default device and in the default
    dtype, so the same ``torch.manual_seed`` before the call gives the same weights.

    Args:
        model: The architecture's keys, as in ``conf/model/NAME.yaml``; keys that belong to the
            training set-up (``lr``, ``batch``, ...) are ignored.

    Returns:
        A module with the interface above.

    Raises:
        UserError: a family that does not exist, or shapes that do not fit together.
    """
    check(model)
    return import_module(f"{__name__}.{model['family']}").build(model)
