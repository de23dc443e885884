"""How a client finds the controller of a run: two small files in the model directory.

`controller_server_addr.txt` holds the address. `controller_server_token.txt` holds the token that
the controller requires, unless it was told not to, and can be read by its owner only. Both are
there while the controller runs, and appear whole.
"""

import contextlib
import os
import tempfile

import tensorflow as tf
from tensorflow.python.lib.io import file_io

from monolith import errors

SERVER_ADDR_FILENAME = "controller_server_addr.txt"
SERVER_TOKEN_FILENAME = "controller_server_token.txt"
# The metadata of a call that carries the token, as `Bearer TOKEN`.
AUTHORIZATION_KEY = "authorization"


class ControllerNotFoundError(errors.MonolithError, FileNotFoundError):
    """No run with a controller belongs to a model directory."""


def write_address(model_dir: str, address: str) -> None:
    """Publishes the address of a controller; creates the directory if it is missing."""
    tf.io.gfile.makedirs(model_dir)
    file_io.atomic_write_string_to_file(_address_path(model_dir), address)


def read_address(model_dir: str) -> str:
    """Returns the address of the controller.

    Raises:
        ControllerNotFoundError: There is none.
    """
    path = _address_path(model_dir)
    try:
        return file_io.read_file_to_string(path).strip()
    except tf.errors.NotFoundError as error:
        raise ControllerNotFoundError(
            f"There is no {path!r}, so no run with a controller is active in that model directory; "
            f"check the directory, or start the run."
        ) from error


def remove_address(model_dir: str, address: str) -> None:
    """Withdraws an address, unless another controller has published its own since."""
    with contextlib.suppress(ControllerNotFoundError, tf.errors.NotFoundError):
        if read_address(model_dir) == address:
            tf.io.gfile.remove(_address_path(model_dir))


def can_hold_token(model_dir: str) -> bool:
    """Returns whether a directory is on a file system with owners and modes."""
    return "://" not in model_dir


def write_token(model_dir: str, token: str) -> None:
    """Writes a token that only the owner of the file can read, mode 0600."""
    os.makedirs(model_dir, exist_ok=True)
    # mkstemp creates with mode 0600, so that the token is never readable by others.
    descriptor, temporary = tempfile.mkstemp(prefix=SERVER_TOKEN_FILENAME, dir=model_dir)
    try:
        with os.fdopen(descriptor, "w") as file:
            os.fchmod(descriptor, 0o600)
            file.write(token)
        os.replace(temporary, _token_path(model_dir))
    except BaseException:
        os.unlink(temporary)
        raise


def read_token(model_dir: str) -> str | None:
    """Returns the token that the controller requires, None if it requires none.

    Raises:
        errors.ConfigError: There is a token, which this process cannot read.
    """
    path = _token_path(model_dir)
    try:
        with open(path) as file:
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise errors.ConfigError(
            f"The controller requires the token in {path!r}, which cannot be read: "
            f"{error.strerror}; act as the user who runs the training."
        ) from error


def remove_token(model_dir: str, token: str | None = None) -> None:
    """Removes this token if it is there; None removes whichever is."""
    with contextlib.suppress(FileNotFoundError):
        if token is None or read_token(model_dir) == token:
            os.unlink(_token_path(model_dir))


def _address_path(model_dir: str) -> str:
    return os.path.join(model_dir, SERVER_ADDR_FILENAME)


def _token_path(model_dir: str) -> str:
    return os.path.join(model_dir, SERVER_TOKEN_FILENAME)
