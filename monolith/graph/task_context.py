"""Which process of which job is building the graph, for code that is not handed a config.

Tables and exports deep below a model function need to know how many parameter servers there are
or what the model is called. The context is one for the process, not for a thread: hooks and
servers that start threads of their own see it there.

Example:
    >>> get().num_ps
    0
    >>> with with_ctx(get()._replace(num_ps=2, model_name="ranking")):
    ...     get().num_ps, get().model_name
    (2, 'ranking')
    >>> get().model_name
    ''
"""

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple


class NativeTaskContext(NamedTuple):
    """A process and its job.

    Attributes:
        num_ps: Number of parameter servers.
        ps_index: Which of them this process is, if it is one.
        num_workers: Number of workers, the chief included.
        worker_index: Which of them this process is, if it is one; 0 is the chief.
        model_name: Name of the model, also towards the serving side.
        sync_backend: Tells which servers get parameter updates; None if there are none.
        server_type: "ps", "worker", or empty.
    """

    num_ps: int
    ps_index: int
    num_workers: int
    worker_index: int
    model_name: str
    sync_backend: Any
    server_type: str


_DEFAULT = NativeTaskContext(
    num_ps=0,
    ps_index=0,
    num_workers=1,
    worker_index=0,
    model_name="",
    sync_backend=None,
    server_type="",
)

_current: NativeTaskContext | None = None


@contextlib.contextmanager
def with_ctx(ctx: NativeTaskContext) -> Iterator[None]:
    """Makes `ctx` the context while the block runs; the one before comes back after it.

    That includes the default: no context outlives the outermost block.
    """
    global _current
    previous = _current
    _current = ctx
    try:
        yield
    finally:
        _current = previous


def get() -> NativeTaskContext:
    """Returns the current context; outside of any, that of a process without servers."""
    return _DEFAULT if _current is None else _current
