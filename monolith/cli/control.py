"""`monolith control MODEL_DIR status|stop|resume|save`: steering a run by its model directory.

The controller in the chief of the run publishes its address there, and its token if it requires
one; see `monolith.training.controller`.
"""

import contextlib
import enum
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import rich.console
import rich.table
import typer

from monolith.core import silence

if TYPE_CHECKING:
    import grpc

# A controller answers at once, or it is busy with the session: a step may take a while.
_ANSWER_TIMEOUT_SEC = 60.0


class Action(str, enum.Enum):
    """What to do with the run."""

    STATUS = "status"
    STOP = "stop"
    RESUME = "resume"
    SAVE = "save"


class _ControlError(Exception):
    """What went wrong, in a sentence for the operator."""


def control(
    model_dir: Annotated[
        str, typer.Argument(metavar="MODEL_DIR", help="The model directory of the run.")
    ],
    action: Annotated[
        Action,
        typer.Argument(
            metavar="ACTION",
            help="status: the global step and who waits. stop: let the workers wait at the "
            "barrier. resume: let them go on. save: write a checkpoint.",
        ),
    ],
    timeout: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            metavar="SECONDS",
            help="How long to wait for the answer; by default 60, for a save without a limit.",
        ),
    ] = None,
) -> None:
    """Ask a running training how it is, pause it, let it go on, or have it save.

    The chief never waits at the barrier: `stop` pauses the other workers.
    """
    errors = rich.console.Console(stderr=True, soft_wrap=True, highlight=False)
    if timeout is None and action is not Action.SAVE:
        timeout = _ANSWER_TIMEOUT_SEC
    try:
        with _connect(model_dir, timeout) as run:
            _DO[action](run)
    except _ControlError as error:
        errors.print(f"error: {error}", style="red", markup=False)
        raise typer.Exit(1) from error


class _Run:
    """The run of a model directory, and how to talk to it."""

    def __init__(self, model_dir: str, address: str, stub: Any, timeout_sec: float | None) -> None:
        from monolith.proto import service_pb2

        self.model_dir = model_dir
        self.address = address
        # Wide enough for any path: a terminal wraps by itself, and a file must not be wrapped.
        self.console = rich.console.Console(soft_wrap=True, highlight=False)
        self._stub = stub
        self._timeout_sec = timeout_sec
        self._messages = service_pb2

    def call(self, name: str) -> Any:
        """Calls the controller; raises `grpc.RpcError`."""
        request = getattr(self._messages, f"{name}Request")()
        return getattr(self._stub, name)(request, timeout=self._timeout_sec)

    def say(self, text: str) -> None:
        self.console.print(text, markup=False)

    def suggest(self, action: Action) -> str:
        return f"`monolith control {self.model_dir} {action.value}`"


@contextlib.contextmanager
def _connect(model_dir: str, timeout_sec: float | None) -> Iterator[_Run]:
    """Finds the controller, and turns whatever goes wrong into a sentence."""
    if "://" not in model_dir and not os.path.isdir(model_dir):
        raise _ControlError(f"There is no directory {model_dir!r}; give the model directory.")

    with silence.silenced_stderr():
        import tensorflow as tf
    import grpc

    from monolith import errors
    from monolith.training.controller import client, files

    try:
        address = files.read_address(model_dir)
        has_token = files.read_token(model_dir) is not None
        with client.connect(model_dir) as stub:
            yield _Run(model_dir, address, stub, timeout_sec)
    except errors.MonolithError as error:
        raise _ControlError(str(error)) from error
    except tf.errors.OpError as error:
        raise _ControlError(
            f"The address of the controller in {model_dir!r} cannot be read: {error.message}"
        ) from error
    except grpc.RpcError as error:
        raise _ControlError(
            _explain(error, model_dir, address, timeout_sec, has_token=has_token)
        ) from error


def _explain(
    error: "grpc.RpcError",
    model_dir: str,
    address: str,
    timeout_sec: float | None,
    *,
    has_token: bool,
) -> str:
    import grpc

    from monolith.training.controller import files

    code, details = error.code(), error.details()
    if code is grpc.StatusCode.UNAVAILABLE:
        return (
            f"The controller at {address}, which {files.SERVER_ADDR_FILENAME} names, does not "
            f"answer: the run was killed, or is on another machine and listens there only. Ask on "
            f"the machine of the chief, or start the run again."
        )
    if code is grpc.StatusCode.UNAUTHENTICATED:
        path = os.path.join(model_dir, files.SERVER_TOKEN_FILENAME)
        found = (
            f"refuses the one in {path}, which belongs to another run"
            if has_token
            else f"there is no {path}"
        )
        return (
            f"The controller at {address} requires a token and {found}. Ask as the user who "
            f"started the run, with its own model directory."
        )
    if code is grpc.StatusCode.ALREADY_EXISTS:
        return (
            f"{details} Somebody has stopped the training, or it is being saved; look with "
            f"`monolith control {model_dir} status`, and let it go on with "
            f"`monolith control {model_dir} resume`."
        )
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return (
            f"The controller at {address} did not answer within {timeout_sec:g} seconds, and may "
            f"still be at it; wait longer with --timeout, or look into the log of the chief."
        )
    return str(details)


def _show_status(run: _Run) -> None:
    import grpc

    try:
        step = str(run.call("GetTrainingStatus").global_step)
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.FAILED_PRECONDITION:
            raise
        step = "none, the graph of this run does not count its steps"
    is_placed, waiting, training = _get_workers(run)
    table = rich.table.Table.grid(padding=(0, 2))
    table.add_row("controller", run.address)
    table.add_row("global step", step)
    table.add_row("barrier", "placed" if is_placed else "not placed")
    table.add_row("waiting workers", _join(waiting))
    table.add_row("other workers", _join(training))
    run.console.print(table)


def _stop(run: _Run) -> None:
    run.call("StopTraining")
    _, waiting, training = _get_workers(run)
    run.say(
        f"The barrier is placed: each worker waits there after its current step; "
        f"{len(waiting)} of {len(waiting) + len(training)} workers besides the chief wait already."
    )
    run.say(f"{run.suggest(Action.RESUME)} lets them go on.")


def _resume(run: _Run) -> None:
    is_placed, _, _ = _get_workers(run)
    run.call("ResumeTraining")
    if is_placed:
        run.say("The barrier is removed: the workers go on.")
    else:
        run.say("The barrier was not placed: the workers train already.")


def _save(run: _Run) -> None:
    if not run.console.is_terminal:  # Where nothing would turn, a line says what takes so long.
        run.say("Saving a checkpoint ...")
    with run.console.status("Saving a checkpoint ..."):
        run.call("SaveCheckpoint")
    run.say(f"A checkpoint is saved in {run.model_dir}.")


def _get_workers(run: _Run) -> tuple[bool, list[int], list[int]]:
    """Returns whether the barrier is placed, and the workers that wait and that do not."""
    status = run.call("GetBlockStatus")
    # Index 0 is the chief, which never waits; its place tells whether the barrier is placed.
    is_placed = 0 in status.blocked_indices
    waiting = [index for index in status.blocked_indices if index > 0]
    return is_placed, waiting, [index for index in status.unblocked_indices if index > 0]


def _join(indices: list[int]) -> str:
    return ", ".join(map(str, indices)) if indices else "none"


_DO = {
    Action.STATUS: _show_status,
    Action.STOP: _stop,
    Action.RESUME: _resume,
    Action.SAVE: _save,
}
