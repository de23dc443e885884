"""What a training does with an input in splits: counts its steps, and saves what is finished.

The finished splits are a file of the checkpoint, `<prefix>.assets/input_splits`: it appears and
goes with it. Whoever goes back to a checkpoint goes back in the input, too; splits that were under
way are read again from their beginning. A chief that begins anew while the servers keep the whole
model does not go back.

Example:
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     write_finished(directory, ["monday"])
    ...     read_finished(directory)
    ['monday']
"""

import contextlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.lib.io import file_io

from monolith.checkpoint import delta_chain, restore_hook
from monolith.checkpoint.paths import SaveHelper
from monolith.training.config.input import InputSettings
from monolith.training.hooks.checkpoint_barrier import SAVE_ACTION
from monolith.training.hooks.split_desk import SplitDesk, SplitTaker
from monolith.training.hooks.sync import Others

logger = logging.getLogger(__name__)

_NAME = "input_splits"


def uses_splits(config: object) -> bool:
    """Returns whether the workers of a job take input files as they go."""
    return isinstance(config, InputSettings) and config.enable_dynamic_sharding


class InputSplits:
    """An input in splits, as one worker of a job has it; a context around its session.

    Args:
        model_dir: The directory that all members share.
        index: Which worker this is; 0 is the chief.
        num_workers: How many there are.
        others: What this process knows of the other members.
        servers: The servers that keep the model when the chief begins anew, each with what tells
            its process from others; None if the model is restored then.
    """

    def __init__(
        self,
        model_dir: str,
        index: int,
        num_workers: int,
        others: Others,
        servers: Mapping[str, str] | None = None,
    ) -> None:
        self._model_dir = model_dir
        self._servers = servers
        self.taker = SplitTaker(
            model_dir, index, check=others.check, is_stopping=others.is_stopping
        )
        self.desk = SplitDesk(model_dir, num_workers, others.is_gone) if index == 0 else None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> "InputSplits":
        return self

    def __exit__(self, *unused: object) -> None:
        self.taker.close()
        self._stack.close()

    def create_hook(self) -> tf.compat.v1.train.SessionRunHook:
        """Returns the hook that counts steps; before those that wait at a barrier or save."""
        return _CountHook(self.taker)

    def create_end_hook(self) -> tf.compat.v1.train.SessionRunHook:
        """Returns the hook that says that everything is pushed; behind those that push."""
        return _EndHook(self.taker)

    def create_desk_hook(self) -> tf.compat.v1.train.SessionRunHook:
        """Returns the hook that has the chief give splits; behind those that restore."""
        return _DeskHook(self)

    def create_saver_listener(self, basename: str) -> tf.compat.v1.train.CheckpointSaverListener:
        """Returns what puts the finished splits into a checkpoint, in the chief."""
        assert self.desk is not None
        return _SaverListener(self.desk, basename)

    def note_pushed(self, action: str, session: tf.compat.v1.Session) -> None:
        """Callback of the barrier: all that this worker has trained is pushed before a save."""
        if action == SAVE_ACTION:
            self.taker.note_pushed()

    def _begin(self, session: tf.compat.v1.Session) -> None:
        """Gives out what is not finished in the model that the servers have, or get."""
        assert self.desk is not None
        if self._servers is None or not self.desk.resume(self.taker.files, self._servers):
            self._begin_at_checkpoint(self.desk, session)
        self._stack.enter_context(self.desk.serving())

    def _begin_at_checkpoint(self, desk: SplitDesk, session: tf.compat.v1.Session) -> None:
        checkpoint = restore_hook.get_restored(session)
        checkpoint = checkpoint or tf.train.latest_checkpoint(self._model_dir)
        finished = []
        if checkpoint is not None:
            prefix = delta_chain.get_newest_prefix(checkpoint)
            finished = read_finished(SaveHelper.get_ckpt_asset_dir(prefix))
        desk.begin(self.taker.files, finished, self._servers)


def write_finished(asset_dir: str, finished: Sequence[str]) -> None:
    """Writes which splits are finished into the directory of a checkpoint."""
    tf.io.gfile.makedirs(asset_dir)
    path = os.path.join(asset_dir, _NAME)
    file_io.atomic_write_string_to_file(path, json.dumps({"finished": list(finished)}))


def read_finished(asset_dir: str) -> list[str]:
    """Returns which splits are finished as a checkpoint has it; none if it does not say."""
    path = os.path.join(asset_dir, _NAME)
    try:
        content: dict[str, Any] = json.loads(file_io.read_file_to_string(path))
        return [str(name) for name in content["finished"]]
    except tf.errors.NotFoundError:
        return []
    except (KeyError, TypeError, ValueError) as error:
        logger.warning("%s is damaged (%s); the whole input is read again", path, error)
        return []


class _CountHook(tf.compat.v1.train.SessionRunHook):
    def __init__(self, taker: SplitTaker) -> None:
        self._taker = taker

    def after_run(
        self,
        run_context: tf.compat.v1.train.SessionRunContext,
        run_values: tf.compat.v1.train.SessionRunValues,
    ) -> None:
        self._taker.note_step()


class _EndHook(tf.compat.v1.train.SessionRunHook):
    def __init__(self, taker: SplitTaker) -> None:
        self._taker = taker

    def end(self, session: tf.compat.v1.Session) -> None:
        self._taker.note_pushed()


class _DeskHook(tf.compat.v1.train.SessionRunHook):
    def __init__(self, splits: InputSplits) -> None:
        self._splits = splits

    def after_create_session(
        self, session: tf.compat.v1.Session, coord: tf.train.Coordinator
    ) -> None:
        self._splits._begin(session)


class _SaverListener(tf.compat.v1.train.CheckpointSaverListener):
    def __init__(self, desk: SplitDesk, basename: str) -> None:
        self._desk = desk
        self._paths = SaveHelper(basename)

    def before_save(self, session: tf.compat.v1.Session, global_step_value: int) -> None:
        self._save(self._paths.get_ckpt_prefix(global_step_value))

    def before_delta(
        self, session: tf.compat.v1.Session, global_step_value: int, prefix: str
    ) -> None:
        self._save(prefix)

    def _save(self, prefix: str) -> None:
        # Before the tables: what is finished now is in them.
        self._desk.serve()
        write_finished(SaveHelper.get_ckpt_asset_dir(prefix), self._desk.finished)
