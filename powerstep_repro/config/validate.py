"""What each config key may hold: one table, read by every command.

``RULES`` is the whole of it. A rule turns a value into its canonical type (``"6e-4"`` into
0.0006, ``1e3`` steps into 1000) or refuses it; the sentence shown to the user comes from the
rule's own description. Keys without a rule keep the type that their file in ``conf/`` gives them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from powerstep_repro.errors import UserError
from powerstep_repro.intervals import contains

_SINGLE = bool | type(None)
_SPELLING = {None: "null", True: "true", False: "false"}


@dataclass(frozen=True)
class Rule:
    """What a key may hold."""

    what: str  # in words: "<key> must be <what>"
    read: Callable[[Any], Any]  # gives the canonical type, or raises ValueError to refuse
    nullable: bool = False  # whether null is allowed besides

    def apply(self, key: str, value: Any) -> Any:
        """Return ``value`` in its canonical type; raise ``UserError`` if it is not allowed."""
        if value is None and self.nullable:
            return None
        try:
            return self.read(value)
        except (ValueError, TypeError, OverflowError):
            alternative = " or null" if self.nullable else ""
            got = _SPELLING.get(value, repr(value)) if isinstance(value, _SINGLE) else repr(value)
            raise UserError(f"{key} must be {self.what}{alternative}, got {got}") from None


def number(interval: str, nullable: bool = False) -> Rule:
    """A real number in an interval written as in mathematics, e.g. ``[0, 1)``."""

    def read(value: Any) -> float:
        if isinstance(value, bool) or not contains(interval, value := float(value)):
            raise ValueError
        return value

    what = f"a number in {interval}"
    if interval.endswith("inf)"):
        low = interval[1:].partition(",")[0]
        what = f"a number {'of at least' if interval[0] == '[' else 'above'} {low}"
    return Rule(what, read, nullable)


def whole(low: int, high: float = 1e9, nullable: bool = False) -> Rule:
    """A whole number from ``low`` to ``high``, both included; 1e3 counts as one."""

    def read(value: Any) -> int:
        if isinstance(value, bool):
            raise ValueError
        exact = int(value) if isinstance(value, str) and value.lstrip("+-").isdigit() else value
        if not isinstance(exact, int):
            if not float(exact).is_integer():
                raise ValueError
            exact = int(float(exact))
        if not low <= exact <= high:
            raise ValueError
        return exact

    return Rule(f"a whole number from {low} to {high:g}", read, nullable)


def choice(*allowed: str, nullable: bool = False) -> Rule:
    """One of the given words."""

    def read(value: Any) -> str:
        if value not in allowed:
            raise ValueError
        return value

    return Rule("one of " + ", ".join(allowed), read, nullable)


def pair(interval: str) -> Rule:
    """A list of two numbers, each in the interval."""
    each = number(interval)

    def read(value: Any) -> list[float]:
        if not isinstance(value, list | tuple) or len(value) != 2:
            raise ValueError
        return [each.read(item) for item in value]

    return Rule(f"a list of two numbers in {interval}", read)


def _read_flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _read_text(value: Any) -> str:
    # A folder or a tag may be all digits, which YAML takes for a number.
    if isinstance(value, bool | list | dict) or value is None or str(value) == "":
        raise ValueError
    return str(value)


FLAG = Rule("true or false", _read_flag)
TEXT = Rule("a non-empty string", _read_text)
TEXT_OR_NULL = Rule("a non-empty string", _read_text, nullable=True)
# Read as it stands on a command line: no number, no list (see ``paths.read_path``).
PATH = Rule("a path", _read_text)
PATH_OR_NULL = Rule("a path", _read_text, nullable=True)
# A path, a list of them or one per split: the datasets library knows.
PATHS = Rule("paths", lambda value: value, nullable=True)
CODE = ("dynamic", "linear")

RULES: dict[str, Rule] = {
    "profile": choice("tiny", "h100", "paper"),
    "lr": number("(0, inf)"),
    "steps": whole(1),
    "batch": whole(1),
    "context": whole(1),
    "micro_batch": whole(1, nullable=True),
    "seed": whole(0, 1e18),
    "repeat": whole(0),
    "weight_decay": number("[0, inf)"),
    "weight_decay_on": choice("matrices", "all"),
    "grad_clip": number("[0, inf)"),
    "warmup_steps": whole(0, nullable=True),
    "min_lr_ratio": number("[0, 1]"),
    "precision": choice("fp32", "amp_bf16", "bf16"),
    "compile": FLAG,
    "deterministic": FLAG,
    "implementation": choice("auto", "reference", "foreach", "fused"),
    "device": choice("auto", "cpu", "cuda", "mps"),
    "eval_interval": whole(1),
    "eval_windows": whole(1, nullable=True),
    "log_interval": whole(1),
    "checkpoint_interval": whole(0),
    "keep_checkpoints": whole(1),
    "mechanism_interval": whole(0),
    "results_dir": PATH,
    "data_dir": PATH,
    "optimizer.beta": number("[0, 1]"),
    "optimizer.gamma": number("[0, 1)"),
    "optimizer.betas": pair("[0, 1)"),
    "optimizer.eps": number("[0, inf)"),
    "optimizer.power": number("[2, inf)"),
    "optimizer.alpha": number("[0, inf)"),
    "optimizer.tau": number("[0, 1]"),
    "optimizer.block_size": whole(1),
    "optimizer.code": choice(*CODE),
    "optimizer.code_m": choice(*CODE, nullable=True),
    "optimizer.code_v": choice(*CODE, nullable=True),
    "model.lr": number("(0, inf)"),
    "model.steps": whole(1),
    "model.batch": whole(1),
    "model.context": whole(1),
    "model.micro_batch": whole(1, nullable=True),
    "model.dropout": number("[0, 1)"),
    "model.layers": whole(1),
    "model.hidden": whole(1),
    "model.heads": whole(1),
    "model.vocab_size": whole(1),
    "model.aux_loss_coef": number("[0, inf)"),
    "data.order": choice("windows", "permuted"),
    "data.path": PATH_OR_NULL,
    "data.tokenizer": PATH,
    "data.dtype": choice("uint16", "uint32"),
    "data.val_fraction": number("(0, 1)"),
    "data.val_seed": whole(0),
    "data.val_split": TEXT_OR_NULL,
    "data.val_documents": whole(1, nullable=True),
    "data.max_tokens": whole(1, 1e15, nullable=True),
    "data.tokenizer_revision": TEXT_OR_NULL,
    "data.tokenizer_files": PATH_OR_NULL,
    "data.end_token": TEXT_OR_NULL,
    "data.workers": whole(1, nullable=True),
    "data.id": PATH,
    "data.config": TEXT_OR_NULL,
    "data.data_files": PATHS,
    "data.revision": TEXT_OR_NULL,
    "data.split": TEXT,
    "data.text_column": TEXT,
    "data.hash": TEXT_OR_NULL,
    "logger.project": TEXT,
    "logger.entity": TEXT_OR_NULL,
    "logger.mode": choice("online", "offline", "disabled", nullable=True),
    "logger.group": TEXT_OR_NULL,
}


def is_path(key: str, text: str) -> bool:
    """Whether the text of ``key=text`` is a path, and not a list or a dictionary of them."""
    rule = RULES.get(key)
    return rule in (PATH, PATH_OR_NULL) or (rule is PATHS and text[:1] not in ("[", "{"))


def flatten(config: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield ``(dotted key, value)`` for every leaf of a nested config."""
    for name, value in config.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _rule_of_type(example: Any) -> Rule | None:
    """The rule for a key that ``RULES`` does not name: stay what its file says it is."""
    if isinstance(example, bool):
        return FLAG
    if isinstance(example, int):
        return whole(0)
    if isinstance(example, float):
        return number("(-inf, inf)")
    if isinstance(example, str):
        return TEXT
    return None


def rule_for(key: str, example: Any) -> Rule | None:
    """Return the rule of a dotted key; without one of its own, that of its default's type."""
    return RULES.get(key) or _rule_of_type(example)


def validate(config: dict[str, Any], defaults: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return ``config`` with every value in its canonical type and the derived values filled in.

    Args:
        config: A resolved config of plain types.
        defaults: The same config before overrides; gives keys without a rule their type.

    Raises:
        UserError: A value is out of range or of the wrong type; the sentence names the key, the
            value and what is allowed.
    """
    types = dict(flatten(defaults or {}))

    def visit(node: dict[str, Any], prefix: str) -> dict[str, Any]:
        out = {}
        for name, value in node.items():
            key = f"{prefix}{name}"
            if rule := rule_for(key, types.get(key)):
                out[name] = rule.apply(key, value)
            else:
                out[name] = visit(value, f"{key}.") if isinstance(value, dict) else value
        return out

    config = visit(config, "")
    if "warmup_steps" in config and config["warmup_steps"] is None:
        config["warmup_steps"] = min(2000, config["steps"] // 10)
    return config
