"""Exports a trained model as a SavedModel, with hash tables that fill themselves when it is loaded.

An exporter builds the model once more, for prediction, over the placeholders of a receiver
function, takes the variables from a checkpoint, and writes both. Rows of tables are not loaded for
that: the exported model restores them itself, from its own assets or, with `shared_embedding`, from
the checkpoint.

Example:
    With a model function that builds an `EstimatorSpec` in mode PREDICT,

        exporter = StandaloneExporter(model_fn, "model_dir", "model_dir/exported_models")
        export_dir = exporter.export_saved_model(serving_input_receiver_fn)
        with import_saved_model(export_dir) as infer:
            print(infer(examples))
"""

import tensorflow as tf

from monolith.graph.export_mode import ExportMode
from monolith.serving.export_base import BaseExporter, ReceiverFn
from monolith.serving.export_distributed import DistributedExporter

__all__ = ["BaseExporter", "DistributedExporter", "StandaloneExporter"]


class StandaloneExporter(BaseExporter):
    """Exports one SavedModel with the whole model and all its tables."""

    def export_saved_model(
        self,
        serving_input_receiver_fn: ReceiverFn,
        checkpoint_path: str | None = None,
        global_step: int | None = None,
    ) -> bytes:
        """Exports the model to `<export_dir_base>/<seconds since 1970>`.

        Args:
            serving_input_receiver_fn: Builds the input of the exported model.
            checkpoint_path: What to export; None takes the last checkpoint of the model directory.
            global_step: The step of the checkpoint; has no effect, since the directory is named
                after the time.

        Returns:
            The directory.

        Raises:
            errors.ConfigError: There is no checkpoint, it does not fit the model, the receiver
                does not give what the model needs, or the directory cannot be written.
        """
        del global_step
        checkpoint = self._find_checkpoint(checkpoint_path)
        with self._exporting(ExportMode.STANDALONE), tf.Graph().as_default() as graph:
            tf.compat.v1.train.create_global_step()
            self._model_fn_with_input_reveiver(serving_input_receiver_fn)
            return self._export_saved_model_from_graph(
                graph,
                checkpoint,
                export_dir_base=self._export_dir_base,
                assets_extra=self.gen_warmup_assets(),
            )
