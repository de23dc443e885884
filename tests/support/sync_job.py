"""A job whose rows say how many steps have changed them, and servers that follow it."""

import os
import time

import grpc
import numpy as np
import tensorflow as tf
from support import parts

from monolith.cluster import manager
from monolith.embedding import entry
from monolith.graph.export_mode import ExportMode
from monolith.graph.signatures import ServingInputReceiver
from monolith.model.ranking import EstimatorSpec, MonolithModel
from monolith.training.estimator import Estimator, RunConfig

HOT = list(range(10))  # In every batch.
NUM_COLD = 500  # Each batch has one of them.
DIM = 4
STEPS_FILE = "steps.txt"
STOP_FILE = "stop"


class Counting(MonolithModel):
    """Each step adds 1 to the rows of the batch, and to a variable, so all numbers are exact."""

    def input_fn(self, mode):
        def read():
            for number in range(1 << 30):
                ids = np.array([*HOT, 1000 + number % NUM_COLD], np.int64)
                yield {"item": ids[:, None]}

        spec = {"item": tf.TensorSpec([len(HOT) + 1, 1], tf.int64)}
        dataset = tf.data.Dataset.from_generator(read, output_signature=spec)
        return dataset.map(lambda batch: {"item": tf.RaggedTensor.from_tensor(batch["item"])})

    def model_fn(self, features, mode):
        self.create_embedding_feature_column("item")
        (vectors,) = self.lookup_embedding_slice(
            ["item"],
            "vec",
            DIM,
            initializer=entry.ZerosInitializer(),
            optimizer=entry.SgdOptimizer(1.0),
            learning_rate_fn=1.0,
            compressor=entry.Fp32Compressor(),
        )
        bias = tf.compat.v1.get_variable("bias", [], initializer=tf.zeros_initializer())
        rank = tf.reduce_sum(vectors, axis=1) + bias
        # The gradient of each number of a row is -1, and that of the bias.
        loss = -tf.reduce_sum(vectors) - bias
        optimizer = tf.compat.v1.train.GradientDescentOptimizer(1.0)
        return EstimatorSpec(None, rank, "rank", loss, optimizer, classification=False)

    def serving_input_receiver_fn(self):
        ids = tf.compat.v1.placeholder(tf.int64, [None, 1])
        return ServingInputReceiver({"item": tf.RaggedTensor.from_tensor(ids)}, {"item": ids})


class StepLog(tf.compat.v1.train.SessionRunHook):
    """Writes down when each step was over; ends the training when it is told to."""

    def __init__(self, directory, step_sec):
        self._directory = directory
        self._step_sec = step_sec
        self._file = open(os.path.join(directory, STEPS_FILE), "a", buffering=1)  # noqa: SIM115

    def after_run(self, run_context, run_values):
        self._file.write(f"{time.time()}\n")
        if os.path.exists(os.path.join(self._directory, STOP_FILE)):
            run_context.request_stop()
        time.sleep(self._step_sec)


def make_estimator(model_dir, config=None, **serving):
    model = Counting()
    model.serving.set(export_mode=ExportMode.DISTRIBUTED, **serving)
    return Estimator(model, config or RunConfig(is_local=True, num_ps=2, model_dir=model_dir))


def train_and_export(model_dir):
    """Makes the first checkpoint, and of it the model that servers start with."""
    make_estimator(model_dir, export_when_saving=True).train(steps=1)


def run_member(model_dir, role, index, directory, place, interval_sec, step_sec):
    """A member of the job: 2 servers, 1 worker."""
    from monolith.cluster.discovery_base import ServiceDiscoveryType
    from monolith.training.runner import RunnerConfig

    tf.compat.v1.disable_eager_execution()
    manager._cluster_query_failure_handler = lambda: time.sleep(0.1)
    config = RunnerConfig(
        server_type=role,
        index=index,
        num_ps=2,
        num_workers=1,
        model_dir=model_dir,
        discovery_type=ServiceDiscoveryType.FILE,
        intra_op_parallelism_threads=1,
        inter_op_parallelism_threads=2,
        sync_to=place,
        sync_interval_secs=interval_sec,
        sync_dense_interval_secs=2 * interval_sec,
        save_checkpoints_secs=3600,
    )
    hooks = [StepLog(directory, step_sec)] if role == "worker" else []
    make_estimator(model_dir, config).train(hooks=hooks)


def read_step_times(directory):
    """Returns when each step of the job was over."""
    try:
        with open(os.path.join(directory, STEPS_FILE)) as file:
            return [float(line) for line in file if line.endswith("\n")]
    except FileNotFoundError:
        return []


class Rows:
    """Reads rows from a server of a part.

    Args:
        port: The server's port.
        part: 0 or 1.
    """

    def __init__(self, port, part):
        self._asker = parts.Asker(port, f"ps_{part}")
        self._part = part

    def read(self, ids):
        """Returns the rows of `ids`; None if it does not answer."""
        request = parts.predict_pb2.PredictRequest()
        request.model_spec.name = f"ps_{self._part}"
        request.model_spec.signature_name = "raw_lookup"
        request.inputs["id"].CopyFrom(tf.make_tensor_proto(np.array(ids, np.int64)))
        request.inputs["id_split"].CopyFrom(tf.make_tensor_proto(np.array([0, len(ids)])))
        try:
            response = self._asker._stub.Predict(request, timeout=60)
        except grpc.RpcError:
            return None
        return tf.make_ndarray(response.outputs["flat_emb"]).reshape(len(ids), -1)

    def count_steps(self):
        """Returns how many steps the server knows of; -1 if it does not answer."""
        rows = self.read([self._part])  # Id 0 is in part 0, id 1 in part 1.
        return -1 if rows is None else int(rows[0, 0])

    def close(self):
        self._asker._channel.close()
