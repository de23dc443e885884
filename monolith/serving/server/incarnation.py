"""Lets a client know whether the server it talks to is still the one it was.

Who keeps a server up to date must start over when the process was started anew, even if it is
there again before the next call. The client asks for that, so that others do not pay for it.
"""

import uuid

# In the metadata of a call, and in what comes with the answer.
ASK = "monolith-ask-incarnation"
INCARNATION = "monolith-incarnation"

_ID = uuid.uuid4().hex


def make_metadata(asked: str | None) -> tuple[tuple[str, str], ...]:
    """Returns what comes with an answer: which process it is from, if the caller wants to know.

    Args:
        asked: The header `ASK` of the call, None if there is none.
    """
    return () if asked is None else ((INCARNATION, _ID),)
