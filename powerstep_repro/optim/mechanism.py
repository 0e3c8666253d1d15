"""What an optimizer does to each kind of a model's parameters: a look at single steps."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from powerstep_repro.optim.base import BaseOptimizer
from powerstep_repro.optim.kinds import parameter_kinds
from powerstep_repro.optim.sharded import local, local_grad

if TYPE_CHECKING:
    import numpy as np

#: Rows of the token embedding are seen often if they are of the most frequent tokens that make up
#: this part of the corpus; the others, tokens that never occur among them, are seen seldom.
OFTEN = 0.9
#: Of a larger corpus the first so many tokens are counted, in half a second.
COUNTED = 2**27
#: First moments of optimizers that are not this package's.
_FIRST = ("exp_avg", "momentum_buffer")


def seen_often(tokens: "np.ndarray", rows: int) -> "np.ndarray":
    """Say which token ids make up ``OFTEN`` of a corpus; tokens: (n,), returns (rows,) of bool."""
    import numpy as np  # the optimizers themselves need torch alone

    counts: np.ndarray = np.zeros(rows, dtype=np.int64)
    for start in range(0, min(len(tokens), COUNTED), 2**24):
        part = tokens[start : start + 2**24]
        counts += np.bincount(np.asarray(part, dtype=np.int64), minlength=rows)[:rows]
    order = np.argsort(-counts, kind="stable")
    # Those before which less than the part has been seen.
    before = np.cumsum(counts[order]) - counts[order]
    often: np.ndarray = np.zeros(rows, dtype=bool)
    often[order[before < OFTEN * counts.sum()]] = True
    return often


class Mechanism:
    """Looks at every so-manieth step; changes no number of the run.

    A copy of the weights lives for the time of a step that is looked at.

    Args:
        model: The model that is trained.
        optimizer: Any, over its parameters.
        interval: Steps between two looks; the first step is looked at, too.
        often: (rows,) of bool, see :func:`seen_often`: splits the token embedding.
        write: Gets the rows of a step, one a kind. ``update_rms`` is that of the difference of the
            weights over the step, decay included, divided by the learning rate; ``cosine`` that of
            a row's update and the gradient it was made at, the mean over rows that have both (1 is
            straight down); ``momentum_rms`` that of the first moment; ``zero_first`` and
            ``zero_second`` the share of elements of an 8-bit moment that are stored as zero. What
            there is not is None.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        interval: int,
        often: "np.ndarray",
        write: Callable[[list[dict[str, Any]]], None],
    ):
        self.model, self.optimizer, self.interval, self.write = model, optimizer, interval, write
        self.often = torch.from_numpy(often)
        self.kinds = parameter_kinds(model)

    def __call__(self, step: int) -> Callable[[], None] | None:
        """Return what is to be called after the optimizer's step, if this one is looked at."""
        if step != 1 and step % self.interval:
            return None
        before = {
            name: local(p).detach().clone()
            for name, p in self.model.named_parameters()
            if name in self.kinds and p.grad is not None
        }
        return lambda: self._look(step, before)

    @torch.no_grad()
    def _look(self, step: int, before: dict[str, Tensor]) -> None:
        groups = {
            id(p): (member, group)
            for member in getattr(self.optimizer, "optimizers", {"": self.optimizer}).values()
            for group in member.param_groups
            for p in group["params"]
        }
        sums: dict[str, dict[str, list[Tensor]]] = {}  # kind -> number -> (sum, count) a parameter
        for name, p in self.model.named_parameters():
            if name not in before or id(p) not in groups:
                continue
            rows = _by_row(p, before.pop(name), *groups[id(p)])
            for kind, chosen in self._parts(name, p):
                mine = sums.setdefault(kind, {})
                for key, values in rows.items():  # (2, rows): what is summed, and how often
                    part = values if chosen is None else values[:, chosen]
                    mine.setdefault(key, []).append(part.sum(dim=1))
        self.write([{"step": step, "kind": kind, **_means(found)} for kind, found in sums.items()])

    def _parts(self, name: str, p: Tensor) -> Iterator[tuple[str, Tensor | None]]:
        """Yield the kinds that a parameter's rows are of, and which rows; None for all."""
        kind = self.kinds[name]
        if kind == "token_embeddings" and len(self.often) == len(local(p)):
            often = self.often.to(p.device)
            yield from (("token_embeddings_often", often), ("token_embeddings_seldom", ~often))
        else:
            yield kind, None


def _by_row(
    p: Tensor, before: Tensor, member: torch.optim.Optimizer, group: dict[str, Any]
) -> dict[str, Tensor]:
    """Return sums and counts of each row of a parameter, by number: (2, rows), float64."""
    width = before.shape[-1] if before.dim() > 1 else before.numel()
    # In float32: the weights' difference is a small one.
    update = (before.float() - local(p).float()).view(-1, width) / float(group["lr"])
    gradient = local_grad(p).float().view(-1, width)
    norms = update.norm(dim=1) * gradient.norm(dim=1)
    there = norms > 0
    cosines = torch.where(there, (update * gradient).sum(dim=1) / norms, 0.0)
    full = torch.full_like(norms, width)
    found = {
        "update_rms": torch.stack([update.square().sum(dim=1), full]),
        "cosine": torch.stack([cosines, there.float()]),
    }
    for place, (moment, coded) in zip(
        ("first", "second"), _moments(p, member, group), strict=False
    ):
        moment = moment.float().view(-1, width)
        if place == "first":
            found["momentum_rms"] = torch.stack([moment.square().sum(dim=1), full])
        if coded:
            found[f"zero_{place}"] = torch.stack([(moment == 0).float().sum(dim=1), full])
    return {key: values.double() for key, values in found.items()}


def _moments(
    p: Tensor, member: torch.optim.Optimizer, group: dict[str, Any]
) -> list[tuple[Tensor, bool]]:
    """Return a parameter's moments, decoded, the first first; and whether each is stored coded."""
    state = member.state.get(p, {})
    if not isinstance(member, BaseOptimizer):
        return [(local(state[name]), False) for name in _FIRST if state.get(name) is not None]
    return member.read_moments(p, group)


def _means(found: dict[str, list[Tensor]]) -> dict[str, float | None]:
    """Join the sums of a kind's parameters: a mean, and for ``_rms`` its root."""
    names = ("update_rms", "cosine", "momentum_rms", "zero_first", "zero_second")
    out: dict[str, float | None] = dict.fromkeys(names)
    for key, parts in found.items():
        total, count = torch.stack(parts).sum(dim=0).tolist()
        mean = total / count if count else None
        out[key] = mean**0.5 if mean is not None and key.endswith("_rms") else mean
    return out
