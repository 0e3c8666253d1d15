"""The paper's optimizers for PyTorch, as equations and as released, with a registry by name.

    from powerstep_repro.optim import PowerStep
    optimizer = PowerStep(model.parameters(), lr=6e-4, weight_decay=0.1)

    from powerstep_repro.optim import create, names
    optimizer = create("powerstep_int8", model.parameters(), lr=6e-4, code="linear")

Needs torch alone.
"""

from powerstep_repro.errors import lacking

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as _error:
    raise ModuleNotFoundError(
        lacking(str(_error.name), __name__, "optim"), name=_error.name
    ) from None

from powerstep_repro.optim.adams import AdamS, AdamSReleased
from powerstep_repro.optim.adamw_int8 import AdamWInt8, AdamWInt8Released
from powerstep_repro.optim.convert import convert_state
from powerstep_repro.optim.kinds import (
    KINDS,
    create_for_model,
    groups_by_kind,
    parameter_kinds,
)
from powerstep_repro.optim.multi import MultiOptimizer
from powerstep_repro.optim.pbsgdm import PbSGDM, PbSGDMReleased
from powerstep_repro.optim.powerstep import PowerStep
from powerstep_repro.optim.powerstep_int8 import (
    PowerStepInt8,
    PowerStepInt8Released,
)
from powerstep_repro.optim.registry import (
    bytes_per_param,
    create,
    discover,
    names,
    register,
    state_bytes,
)
from powerstep_repro.optim.signsgd import SignSGD
from powerstep_repro.optim.stacey import Stacey, StaceyReleased

# Whatever else is registered by a file of this folder.
globals().update(discover(__name__, __path__))

__all__ = [
    "KINDS",
    "AdamS",
    "AdamSReleased",
    "AdamWInt8",
    "AdamWInt8Released",
    "MultiOptimizer",
    "PbSGDM",
    "PbSGDMReleased",
    "PowerStep",
    "PowerStepInt8",
    "PowerStepInt8Released",
    "SignSGD",
    "Stacey",
    "StaceyReleased",
    "bytes_per_param",
    "convert_state",
    "create",
    "create_for_model",
    "groups_by_kind",
    "names",
    "parameter_kinds",
    "register",
    "state_bytes",
]
