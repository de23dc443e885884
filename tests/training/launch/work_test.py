"""What a job trains, as other processes get it."""

import math
import threading

import pytest
import tensorflow as tf
from support import launch_jobs

import monolith as ml
from monolith import errors
from monolith.training.launch import work

# A class that no other process can import.
LOCAL_MODULE = """
import monolith as ml

class Local(ml.Model):
    rate = 0.5
"""


def make_work(**settings):
    values = {"model": launch_jobs.Clicks(), "data": launch_jobs.read, "optimizer": ml.SGD(0.1)}
    return work.ModelWork(**{"config": ml.RunConfig(num_ps=2), **values, **settings})


def test_a_copy_is_the_same():
    copy = work.unpickle(work.pickle_work(make_work(epochs=3, steps=5)))
    assert (copy.name, copy.epochs, copy.steps, copy.optimizer) == ("clicks", 3, 5, ml.SGD(0.1))
    assert copy.data is launch_jobs.read
    assert copy.make_config().num_ps == 2


def test_the_chief_writes_summaries_as_often_as_the_settings_say():
    (writer,) = make_work().make_reporters("model")
    assert writer.plan(100, 0.0) == (110, 30.0)
    config = ml.RunConfig(num_ps=2, save_summary_steps=7)
    (writer,) = make_work(config=config).make_reporters("model")
    assert writer.plan(100, 0.0) == (107, math.inf)


def test_classes_and_functions_of_a_program_travel_with_it():
    space = {"__name__": "__main__"}
    exec(LOCAL_MODULE, space)
    number = 7
    copy = work.unpickle(work.pickle_work(make_work(model=space["Local"](), data=lambda: number)))
    assert (copy.model.rate, copy.data()) == (0.5, 7)


def test_what_cannot_be_pickled_is_named():
    lock = threading.Lock()
    with pytest.raises(errors.ConfigError, match=r"^`data` of the job cannot be handed to other"):
        work.pickle_work(make_work(data=lambda: lock))


def test_what_cannot_be_found_is_named():
    pickled = work.pickle_work(make_work()).replace(b"launch_jobs", b"launch_jabs")
    with pytest.raises(errors.ConfigError, match=r"cannot be made in another process \(No module"):
        work.unpickle(pickled)


def test_a_server_does_not_touch_the_data():
    def read():
        raise AssertionError("a server has no data")

    with tf.Graph().as_default():
        assert make_work(data=read).make_model("ps").p.name == "clicks"


def test_the_model_of_a_worker():
    with tf.Graph().as_default():
        task = make_work(epochs=2, restore_what_fits=True).make_model("worker")
        assert task.p.train.changed_model.name == "KEEP_WHAT_FITS"
        size = tf.data.experimental.cardinality(task.input_fn("train"))
    with tf.compat.v1.Session(graph=size.graph) as session:
        assert session.run(size) == 2 * launch_jobs.NUM_EXAMPLES / launch_jobs.BATCH_SIZE


def test_a_worker_builds_the_model_as_it_trains():
    with tf.Graph().as_default():
        assert make_work().make_model("worker")._found.training
