"""Starts the input of a session.

An estimator makes an initializable iterator of the dataset that an input function returns, because
a dataset may use tables and variables that only exist once the session does.
"""

from typing import Any

import tensorflow as tf

from monolith.cluster import mlp


class DatasetInitializerHook(tf.compat.v1.train.SessionRunHook):
    """Initializes an iterator whenever a session is created.

    Args:
        iterator: The iterator, of `tf.compat.v1.data.make_initializable_iterator`.
    """

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator
        self._initializer: Any = None

    def begin(self) -> None:
        self._initializer = self._iterator.initializer

    def after_create_session(
        self, session: tf.compat.v1.Session, coord: tf.train.Coordinator
    ) -> None:
        session.run(self._initializer)


# With a data service, all ranks of synchronous training must read the same dataset; `mlp_pass`
# then replaces the methods above.
mlp.DATASET_INITIALIZER_HOOKS.append(DatasetInitializerHook)
