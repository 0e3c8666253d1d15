"""Where the authors' released code departs from the paper's equations, optimizer by optimizer.

Read and run at commit 1fdbb31 of github.com/yaolubrain/PowerStep. Each departure has an optimizer
of its own in the registry, so that its effect can be measured beside the plain one.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Departure:
    """One departure from the equations.

    Attributes:
        plain: the optimizer by the equations.
        released: the registry's entry that does as released.
        what: what differs.
        setting: for a departure of the set-up, the config value that does as released instead.
    """

    plain: str
    released: str
    what: str
    setting: tuple[str, str] | None = None


RELEASED_AT = "1fdbb31"

DEPARTURES = (
    Departure(
        "pbsgdm",
        "pbsgdm_released",
        "Weight decay is added in place to the momentum buffer, so it accumulates: the effective "
        "decay is λ/(1 − γ) = 1.0, not the decoupled 0.1 of the set-up.",
    ),
    Departure(
        "adams",
        "adams_released",
        "The denominator squares the new momentum, not the old one, and both moments are corrected "
        "for bias, which the method is not.",
    ),
    Departure(
        "adamw_int8",
        "adamw_int8_released",
        "Both moments in a linear code where the text says dynamic; the second moment, which is "
        "never negative, in signed codes; and 1e-12 added to the scale, which shrinks the second "
        "moment wherever a block's largest is near that.",
    ),
    Departure(
        "powerstep_int8",
        "powerstep_int8_released",
        "A linear code where the text says dynamic; 1e-12 added to the scale when coding alone; "
        "scales kept in the parameter's dtype.",
    ),
    Departure(
        "stacey",
        "stacey_released",
        "Momentum is updated before it is used, the dual variable starts from zero, and the dual "
        "term enters with the sign that ascends; at τ = 0.001 it hardly acts.",
    ),
    Departure(
        "powerstep",
        "powerstep",
        "The update is the paper's, but every parameter decays, gains of normalisation layers too, "
        "while the AdamW it is compared with decays matrices alone (weight_decay_on=all here).",
        ("weight_decay_on", "all"),
    ),
)
