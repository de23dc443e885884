"""Lets a client know whether the rows that it has sent to a model are still there.

Who keeps a model up to date must start over when the process was started anew, even if it is there
again before the next call, and when the model was loaded again, be it the same version. The client
asks for that, so that others do not pay for it.
"""

import uuid

# In the metadata of a call, and in what comes with the answer.
ASK = "monolith-ask-incarnation"
INCARNATION = "monolith-incarnation"


def make_incarnation() -> str:
    """Returns what tells a model from how it was before."""
    return uuid.uuid4().hex


def make_metadata(of_model: str) -> tuple[tuple[str, str], ...]:
    """Returns what comes with an answer: which incarnation of the model it is from.

    Args:
        of_model: Empty: the caller has not asked, or there is no such model.
    """
    return ((INCARNATION, of_model),) if of_model else ()
