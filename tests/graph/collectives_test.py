"""Which library does the collectives, and what a process that is alone gets from them."""

import sys
import types
from unittest import mock

import pytest
import tensorflow as tf

from monolith import errors
from monolith.graph import collectives
from monolith.graph.rank_place import Place
from monolith.native_training import hvd_lib


@pytest.fixture(autouse=True)
def own_state(monkeypatch):
    monkeypatch.setattr(collectives, "_lib", collectives._Lib())
    for variable in ("MONOLITH_WITH_BYTEPS", "MONOLITH_WITH_HOROVOD", "TF_CONFIG"):
        monkeypatch.delenv(variable, raising=False)


# What both libraries offer, and what each has alone; BytePS with what the original system added.
_OF_BOTH = [
    "init",
    "shutdown",
    "rank",
    "size",
    "local_rank",
    "local_size",
    "allgather",
    "alltoall",
    "broadcast",
    "Average",
    "Sum",
    "BroadcastGlobalVariablesHook",
    "DistributedOptimizer",
    "Compression",
]
_OF_ONE = {
    "horovod": ["allreduce", "grouped_allreduce", "mpi_threads_supported"],
    "byteps": ["push_pull"],
}


def pretend(monkeypatch, name):
    """Stands in for Horovod or BytePS, neither of which builds against this TensorFlow."""
    library = mock.Mock(spec=[*_OF_BOTH, *_OF_ONE[name]])
    library.__name__ = f"{name}.tensorflow"
    library.rank.return_value, library.size.return_value = 0, 2
    monkeypatch.setitem(sys.modules, name, types.SimpleNamespace(tensorflow=library))
    monkeypatch.setitem(sys.modules, f"{name}.tensorflow", library)
    return library


@pytest.fixture
def horovod(monkeypatch):
    return pretend(monkeypatch, "horovod")


@pytest.fixture
def byteps(monkeypatch):
    monkeypatch.setenv("MONOLITH_WITH_BYTEPS", "1")
    return pretend(monkeypatch, "byteps")


def reduce_with_an_idle_rank(library, sum_op):
    """Has a stand-in reduce as if there were another rank, which has no data left."""

    def reduce(tensor, op, **options):
        return tensor if op is sum_op else tensor / 2

    if hasattr(library, "push_pull"):
        library.push_pull.side_effect = reduce
    else:
        library.allreduce.side_effect = reduce
        library.grouped_allreduce.side_effect = lambda tensors, op: [
            reduce(tensor, op) for tensor in tensors
        ]


class TestChoice:
    def test_old_path(self):
        assert hvd_lib is collectives

    def test_tensorflow_by_default(self):
        assert type(collectives._lib.lib).__name__ == "RankLibrary"
        assert collectives._lib.is_own

    def test_horovod_where_it_is_installed(self, horovod):
        assert collectives._lib.lib is horovod

    @pytest.mark.parametrize("value", ["0", "false", "False", ""])
    def test_horovod_can_be_declined(self, horovod, monkeypatch, value):
        monkeypatch.setenv("MONOLITH_WITH_HOROVOD", value)
        assert collectives._lib.is_own

    def test_asking_for_horovod_does_not_make_it_necessary(self, monkeypatch):
        monkeypatch.setenv("MONOLITH_WITH_HOROVOD", "1")
        assert collectives._lib.is_own

    def test_byteps_by_its_variable(self, horovod, byteps):
        assert collectives._lib.enable_bps
        assert collectives._lib.lib is byteps

    @pytest.mark.parametrize("value", ["0", "false", "FALSE", ""])
    def test_byteps_is_not_asked_for(self, horovod, byteps, monkeypatch, value):
        monkeypatch.setenv("MONOLITH_WITH_BYTEPS", value)
        assert not collectives._lib.enable_bps
        assert collectives._lib.lib is horovod

    def test_byteps_must_be_installed(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "byteps", None)
        monkeypatch.setenv("MONOLITH_WITH_BYTEPS", "1")
        with pytest.raises(errors.ConfigError, match="MONOLITH_WITH_BYTEPS asks for byteps"):
            collectives.init()

    def test_horovod_that_is_broken(self, horovod, monkeypatch):
        monkeypatch.setattr(
            collectives.importlib, "import_module", mock.Mock(side_effect=ImportError)
        )
        with pytest.raises(errors.ConfigError, match="set MONOLITH_WITH_HOROVOD=0"):
            collectives.rank()


class TestOtherLibraries:
    def test_calls_are_handed_on(self, horovod):
        collectives.init()
        horovod.rank.return_value = 3
        assert collectives.rank() == 3
        collectives.allgather("rows", name="n")
        horovod.allgather.assert_called_once_with("rows", name="n")
        collectives.broadcast("t", 1)
        horovod.broadcast.assert_called_once_with("t", 1)
        collectives.alltoall("t", "splits")
        horovod.alltoall.assert_called_once_with("t", splits="splits")
        collectives.BroadcastGlobalVariablesHook(0, device="d")
        horovod.BroadcastGlobalVariablesHook.assert_called_once_with(0, device="d")
        assert collectives.mpi_threads_supported is horovod.mpi_threads_supported

    def test_names_of_operations_are_translated(self, horovod):
        collectives.allreduce("t", collectives.Sum, compress=True)
        horovod.allreduce.assert_called_once_with(
            "t", op=horovod.Sum, compression=horovod.Compression.fp16
        )

    def test_byteps_pushes_and_pulls(self, byteps):
        collectives.allreduce("t")
        byteps.push_pull.assert_called_once_with("t", op=byteps.Average)
        assert not collectives.reduces_groups()
        with pytest.raises(RuntimeError, match=r"byteps\.tensorflow cannot reduce groups"):
            collectives.grouped_allreduce(["t"])

    @pytest.mark.parametrize("op", [collectives.Average, collectives.Sum])
    @pytest.mark.parametrize("name", ["horovod", "byteps"])
    def test_an_optimizer_leaves_out_ranks_without_data(self, request, graph_mode, name, op):
        library = request.getfixturevalue(name)
        reduce_with_an_idle_rank(library, library.Sum)
        idle = tf.compat.v1.placeholder_with_default(False, [])
        tf.compat.v1.add_to_collection(collectives.IDLE, idle)
        w = tf.compat.v1.get_variable("w", initializer=0.0)
        inner = tf.compat.v1.train.GradientDescentOptimizer(1.0)
        train_op = collectives.DistributedOptimizer(inner, op).minimize(w * 6.0)
        with tf.compat.v1.Session() as session:
            session.run(w.initializer)
            session.run(train_op, {idle: True})
            assert session.run(w) == 0
            session.run(train_op)
            # Of both ranks it would be half of that.
            assert session.run(w) == -6
        library.DistributedOptimizer.assert_not_called()

    def test_the_library_by_its_wrapper(self, horovod):
        wrapper = hvd_lib._Lib()
        for name in ("init", "rank", "size", "allgather", "broadcast"):
            assert getattr(wrapper, name) is getattr(horovod, name)
        wrapper.BroadcastGlobalVariablesHook(0)
        horovod.BroadcastGlobalVariablesHook.assert_called_once_with(0)
        assert hvd_lib.lib is horovod
        assert not hvd_lib.enable_bps

    def test_sessions_stay_as_they_are(self, horovod):
        config = tf.compat.v1.ConfigProto()
        collectives.update_session_config(config)
        assert config == tf.compat.v1.ConfigProto()
        assert collectives.get_session_target() == ""
        assert collectives.make_watch_hooks() == []
        with pytest.raises(tf.errors.AbortedError), collectives.named_losses():
            raise tf.errors.AbortedError(None, None, "?")

    def test_a_place_is_not_theirs(self, horovod):
        with pytest.raises(errors.ConfigError, match="finds its ranks"):
            collectives.init(Place())

    def test_names_that_no_library_has(self):
        with pytest.raises(AttributeError, match="no 'ring' in TensorFlow's collectives"):
            collectives.ring  # noqa: B018
        assert not hasattr(collectives, "_own")
        assert not hasattr(collectives._lib, "_library")


class TestAlone:
    @pytest.fixture(autouse=True)
    def initialized(self):
        collectives.init()
        yield
        collectives.shutdown()

    def test_place(self):
        place = (collectives.rank(), collectives.size())
        assert (*place, collectives.local_rank(), collectives.local_size()) == (0, 1, 0, 1)
        assert collectives.is_initialized()

    def test_everything_comes_back(self):
        rows = tf.constant([[1, 2], [3, 4]])
        for result in (
            collectives.allreduce(rows),
            collectives.allgather(rows),
            collectives.alltoall(rows),
            collectives.alltoall(rows, [2])[0],
            collectives.broadcast(rows, 0),
            collectives.grouped_allreduce([rows])[0],
        ):
            assert result.numpy().tolist() == [[1, 2], [3, 4]]
        assert collectives.alltoall(rows, [2])[1].numpy().tolist() == [2]
        slices = tf.IndexedSlices(rows, tf.constant([0, 1]))
        assert collectives.allreduce(slices) is slices

    def test_hook_and_optimizer_in_a_session(self):
        with tf.Graph().as_default():
            w = tf.compat.v1.get_variable("w", initializer=1.0)
            unused = tf.compat.v1.get_variable("unused", initializer=1.0)
            optimizer = collectives.DistributedOptimizer(
                tf.compat.v1.train.MomentumOptimizer(0.5, 0.0)
            )
            train_op = optimizer.minimize(w * 3, var_list=[w, unused])
            assert optimizer.get_slot_names() == ["momentum"]
            assert optimizer.get_slot(w, "momentum") is not None
            assert len(optimizer.variables()) == 1
            hook = collectives.BroadcastGlobalVariablesHook(0)
            with tf.compat.v1.train.MonitoredSession(hooks=[hook]) as session:
                session.run(train_op)
                assert session.run(w) == -0.5  # 1 - 0.5 * 3

    def test_the_library_by_its_wrapper(self):
        wrapper = collectives._lib
        wrapper.init()  # Does nothing, a second time.
        assert (wrapper.rank(), wrapper.size()) == (0, 1)
        rows = tf.constant([[1, 2], [3, 4]])
        for result in (wrapper.allgather(rows), wrapper.broadcast(rows, 0)):
            assert result.numpy().tolist() == [[1, 2], [3, 4]]
        assert isinstance(
            wrapper.BroadcastGlobalVariablesHook(0), tf.compat.v1.train.SessionRunHook
        )

    def test_there_is_no_other_rank(self):
        with pytest.raises(errors.ConfigError, match="no rank 1 to broadcast from, of 1"):
            collectives.broadcast(tf.constant(1), 1)


@pytest.mark.parametrize("call", [collectives.rank, collectives.size, collectives.local_rank])
def test_before_init(call):
    with pytest.raises(errors.ConfigError, match="The ranks have not met yet; call"):
        call()
    assert not collectives.is_initialized()
