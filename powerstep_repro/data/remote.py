"""Asking the Hugging Face hub once, before its client libraries retry for half a minute."""

from powerstep_repro.errors import UserError

TIMEOUT = 10  # seconds without an answer


def commit(kind: str, name: str, revision: str | None) -> str | None:
    """Return the commit that a branch of a hub repository stands at.

    Args:
        kind: ``dataset`` or ``model``.
        name: The repository's id.
        revision: Branch, tag or commit; None means the main branch.

    Returns:
        The commit, or ``revision`` as it is where ``HF_HUB_OFFLINE`` forbids asking.

    Raises:
        UserError: The hub or the repository cannot be reached.
    """
    from huggingface_hub import HfApi, constants

    if constants.HF_HUB_OFFLINE:
        return revision
    ask = getattr(HfApi(), f"{kind}_info")
    try:
        return ask(name, revision=revision, timeout=TIMEOUT).sha
    except Exception as error:  # the client's HTTP library is not the same in all its versions
        raise UserError(
            f"{kind} {name!r} cannot be reached on the Hugging Face hub ({first_line(error)}); "
            "give a local folder instead, or set HF_HUB_OFFLINE=1 if the hub's cache holds it"
        ) from None


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or its type's name if it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
