"""Flags that all processes of a job see."""

import pytest
import tensorflow as tf

from monolith import errors
from monolith.training.config import flags as shared_flags

pytestmark = pytest.mark.usefixtures("graph_mode")


def test_flags_are_set_one_by_one():
    flags = shared_flags.SharedFlags("flags", 4, is_chief=True)
    with tf.compat.v1.train.MonitoredSession() as session:
        assert flags.find(session, True) == []
        assert flags.find(session, False) == [0, 1, 2, 3]
        flags.set(session, 1, True)
        flags.set(session, 3, True)
        assert flags.find(session, True) == [1, 3]
        assert flags.get(session, 3)
        flags.set(session, 3, False)
        assert not flags.get(session, 3)
        assert not session.run(flags.first)
        flags.set(session, 0, True)
        assert session.run(flags.first)
        assert flags.find(session, True) == [0, 1]


def test_chief_does_not_save_them():
    shared_flags.SharedFlags("flags", 2, is_chief=True)
    assert [v.op.name for v in tf.compat.v1.local_variables()] == ["flags"]
    assert tf.compat.v1.global_variables() == []


def test_worker_sees_what_the_chief_created_and_does_not_reset_it():
    server = tf.distribute.Server.create_local_server()
    with tf.Graph().as_default():
        chief_flags = shared_flags.SharedFlags("flags", 2, is_chief=True)
        chief_creator = tf.compat.v1.train.ChiefSessionCreator(master=server.target)
        chief = tf.compat.v1.train.MonitoredSession(chief_creator)
    chief_flags.set(chief, 0, True)
    with tf.Graph().as_default():
        worker_flags = shared_flags.SharedFlags("flags", 2, is_chief=False)
        worker_creator = tf.compat.v1.train.WorkerSessionCreator(master=server.target)
        with tf.compat.v1.train.MonitoredSession(worker_creator) as worker:
            assert worker_flags.find(worker, True) == [0]
            worker_flags.set(worker, 1, True)
    assert chief_flags.find(chief, True) == [0, 1]
    chief.close()


def test_no_flags_are_refused():
    with pytest.raises(errors.ConfigError, match="'flags' needs at least one flag, got size 0"):
        shared_flags.SharedFlags("flags", 0, is_chief=True)
