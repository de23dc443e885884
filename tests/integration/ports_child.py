"""Processes of `ports_test.py`: one trains, another one of another user tries to get in.

ports_child.py train MODEL_DIR     trains on two servers, evaluates and predicts; prints as JSON
                                   which ports were open in each of these
ports_child.py wait MODEL_DIR      trains until its standard input ends
ports_child.py attack MODEL_DIR UID FILE PORT...
                                   as user UID, tries to read the token, to call the controller,
                                   and to write FILE through TensorFlow; prints what came of it
"""

import json
import os
import pathlib
import sys
import threading

sys.path.insert(0, os.fspath(pathlib.Path(__file__).parents[1]))

import grpc
import numpy as np
import tensorflow as tf
from support import sockets

from monolith import layers
from monolith.embedding import entry
from monolith.model import ranking
from monolith.proto import service_pb2
from monolith.training import estimator
from monolith.training.controller import client, files

NUM_SERVERS = 2
BATCH_SIZE = 8


class Clicks(ranking.MonolithModel):
    """Random ids and labels, without end when it trains."""

    def input_fn(self, mode):
        ids = np.random.default_rng(7).integers(1, 100, size=[40, BATCH_SIZE, 2])
        columns = {"user": ids, "label": (ids[:, :, 0] % 2).astype(np.float32)}
        data = tf.data.Dataset.from_tensor_slices(columns)
        data = data.map(lambda x: {**x, "user": tf.RaggedTensor.from_tensor(x["user"])})
        return data.repeat() if mode == estimator.ModeKeys.TRAIN else data

    def model_fn(self, features, mode):
        self.create_embedding_feature_column("user")
        rows = self.lookup_embedding_slice(
            ["user"],
            slice_name="vector",
            slice_dim=4,
            optimizer=entry.AdagradOptimizer(0.1),
            out_type="concat",
        )
        logits = layers.MLP([4, 1])(rows)
        loss, click = ranking.get_sigmoid_loss_and_pred(
            "click", logits, features["label"], BATCH_SIZE, mode=mode
        )
        optimizer = tf.compat.v1.train.AdagradOptimizer(0.02)
        return estimator.EstimatorSpec(features["label"], click, "click", loss, optimizer)


class PortsHook(tf.compat.v1.train.SessionRunHook):
    """Looks after each step which ports of this process are open."""

    def __init__(self):
        self.found = set()
        self.steps = 0

    def after_run(self, run_context, run_values):
        self.found |= sockets.get_listening()
        self.steps += 1


class StopHook(tf.compat.v1.train.SessionRunHook):
    """Stops the training when the standard input ends."""

    def begin(self):
        self._should_stop = threading.Event()
        threading.Thread(target=self._wait, daemon=True).start()

    def after_run(self, run_context, run_values):
        if self._should_stop.wait(0.01):
            run_context.request_stop()

    def _wait(self):
        sys.stdin.read()
        self._should_stop.set()


def make_estimator(model_dir):
    tf.compat.v1.disable_eager_execution()
    config = estimator.RunConfig(is_local=True, model_dir=model_dir, num_ps=NUM_SERVERS)
    return estimator.Estimator(Clicks(), config)


def train(model_dir):
    made = make_estimator(model_dir)
    hooks = {name: PortsHook() for name in ("train", "evaluate", "predict")}
    made.train(steps=20, hooks=[hooks["train"]])
    made.evaluate(hooks=[hooks["evaluate"]])
    list(made.predict(hooks=[hooks["predict"]]))
    assert all(hook.steps for hook in hooks.values())
    print(json.dumps({name: sorted(hook.found) for name, hook in hooks.items()}))


def wait(model_dir):
    make_estimator(model_dir).train(hooks=[StopHook()])


def attack(model_dir, uid, path, *ports):
    os.setgroups([])
    os.setgid(int(uid))
    os.setuid(int(uid))
    outcome = {
        "token": _try(lambda: files.read_token(model_dir)),
        "client": _try(lambda: client.get_stub_from_model_dir(model_dir)),
    }
    address = files.read_address(model_dir)
    for name in service_pb2.DESCRIPTOR.services_by_name["Controller"].methods_by_name:
        for token in (None, "guess"):
            outcome[f"{name} with {token}"] = _try(lambda n=name, t=token: _call(address, n, t))
    for port in ports:
        outcome[f"TensorFlow on {port}"] = _try(lambda p=port: _write_file(f"grpc://{p}", path))
    print(json.dumps(outcome))


def _try(action):
    try:
        action()
    except grpc.RpcError as error:
        return error.code().name
    except (OSError, ValueError, tf.errors.OpError) as error:
        return type(error).__name__
    return "done"


def _call(address, name, token):
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(f"/Controller/{name}")  # An empty message is no bytes at all.
        metadata = [("authorization", f"Bearer {token}")] if token else []
        call(b"", metadata=metadata, timeout=20)


def _write_file(target, path):
    with tf.Graph().as_default():
        write = tf.io.write_file(path, "written by another user")
        config = tf.compat.v1.ConfigProto(operation_timeout_in_ms=20_000)
        with tf.compat.v1.Session(target, config=config) as session:
            session.run(write)


if __name__ == "__main__":
    {"train": train, "wait": wait, "attack": attack}[sys.argv[1]](*sys.argv[2:])
