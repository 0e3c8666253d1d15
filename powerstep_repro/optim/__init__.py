"""The paper's optimizers for PyTorch, as equations and as released, with a registry by name.

    from powerstep_repro.optim import PowerStep
    optimizer = PowerStep(model.parameters(), lr=6e-4, weight_decay=0.1)

    from powerstep_repro.optim import create, names
    optimizer = create("powerstep_int8", model.parameters(), lr=6e-4, code="linear")

Needs torch alone. Every module of this package is imported, so that an optimizer registers
itself by being there.
"""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    if not _module.ispkg:
        importlib.import_module(f"{__name__}.{_module.name}")

from powerstep_repro.optim.adams import AdamS, AdamSReleased  # noqa: E402
from powerstep_repro.optim.adamw_int8 import AdamWInt8, AdamWInt8Released  # noqa: E402
from powerstep_repro.optim.pbsgdm import PbSGDM, PbSGDMReleased  # noqa: E402
from powerstep_repro.optim.powerstep import PowerStep  # noqa: E402
from powerstep_repro.optim.powerstep_int8 import (  # noqa: E402
    PowerStepInt8,
    PowerStepInt8Released,
)
from powerstep_repro.optim.registry import (  # noqa: E402
    bytes_per_param,
    create,
    names,
    register,
    state_bytes,
)
from powerstep_repro.optim.signsgd import SignSGD  # noqa: E402
from powerstep_repro.optim.stacey import Stacey, StaceyReleased  # noqa: E402

__all__ = [
    "AdamS",
    "AdamSReleased",
    "AdamWInt8",
    "AdamWInt8Released",
    "PbSGDM",
    "PbSGDMReleased",
    "PowerStep",
    "PowerStepInt8",
    "PowerStepInt8Released",
    "SignSGD",
    "Stacey",
    "StaceyReleased",
    "bytes_per_param",
    "create",
    "names",
    "register",
    "state_bytes",
]
