"""Names of the files and directories that make up one checkpoint.

A checkpoint of step 10 is `model.ckpt-10.*` for TensorFlow's variables and the directory
`model.ckpt-10.assets/` for everything else: tables, admission filters.

Example:
    >>> helper = SaveHelper("/models/ads/model.ckpt")
    >>> helper.get_ckpt_prefix(10)
    '/models/ads/model.ckpt-10'
    >>> SaveHelper.get_ckpt_asset_dir("/models/ads/model.ckpt-10")
    '/models/ads/model.ckpt-10.assets/'
"""

import os
import re

import tensorflow as tf

_ASSETS = ".assets"
_STEP_SUFFIX = re.compile(r"-(\d+)$", re.ASCII)


class SaveHelper:
    """Translates between steps and the paths of their checkpoints.

    Args:
        basename: What checkpoint prefixes begin with, such as `<model_dir>/model.ckpt`.
    """

    def __init__(self, basename: str) -> None:
        self._basename = basename

    def get_ckpt_prefix(self, step: int) -> str:
        """Returns what the names of the files of checkpoint `step` begin with."""
        return f"{self._basename}-{step}"

    @classmethod
    def get_ckpt_asset_dir(cls, ckpt_prefix: str) -> str:
        """Returns the directory of tables and filters of a checkpoint, with a slash at the end."""
        return f"{ckpt_prefix}{_ASSETS}/"

    @classmethod
    def strip_asset_dir(cls, path_prefix: str) -> str:
        """Returns the prefix of a checkpoint, of which the asset directory may be given instead.

        Example:
            >>> SaveHelper.strip_asset_dir("/models/ads/model.ckpt-10.assets/")
            '/models/ads/model.ckpt-10'
        """
        return path_prefix.rstrip("/").removesuffix(_ASSETS)

    @classmethod
    def get_global_step_value(cls, ckpt_prefix: str) -> int:
        """Returns the step at the end of a checkpoint prefix, 0 if there is none."""
        match = _STEP_SUFFIX.search(ckpt_prefix)
        return int(match.group(1)) if match else 0

    def get_existing_checkpoint_steps(self) -> set[int]:
        """Returns the steps that the file `checkpoint` beside `basename` lists."""
        state = tf.train.get_checkpoint_state(os.path.dirname(self._basename))
        if state is None:
            return set()
        return {self.get_global_step_value(path) for path in state.all_model_checkpoint_paths}
