"""Keeps what TensorFlow tells about its own start away from who has not asked for it."""

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def silenced_stderr() -> Iterator[None]:
    """Drops what is written to standard error, also by C++.

    While it is imported, TensorFlow tells at every log level that there is no GPU. Errors of the
    import are exceptions and come through.
    """
    kept = os.dup(2)
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
