"""Ranks with different amounts of data end together, and train on all of it."""

from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from support import ranks
from support.jobs import Job

from monolith import errors
from monolith.graph import collectives
from monolith.graph.mode_keys import ModeKeys
from monolith.training.hooks.end_of_input import EofAwareTask, EofHook, make_empty_batch, mark_last
from monolith.training.hooks.nan_loss import NanLossHook
from monolith.training.hooks.rank_flags import RankFlags


class TestMarkLast:
    def take(self, dataset, count):
        return [
            (element, bool(last), bool(idle))
            for element, last, idle in mark_last(dataset).take(count).as_numpy_iterator()
        ]

    @pytest.mark.parametrize("size", [1, 2, 5])
    def test_flags(self, size):
        expected = [(i, i == size - 1, False) for i in range(size)]
        expected += [(size - 1, True, True)] * 3
        assert self.take(tf.data.Dataset.range(size), size + 3) == expected

    def test_empty(self):
        """One that has the form of a batch takes part in steps, and counts for nothing."""
        assert self.take(tf.data.Dataset.range(0), 3) == [(0, True, True)] * 3

    def test_empty_batches_have_one_example(self):
        spec = {
            "text": tf.TensorSpec([None], tf.string),
            "dense": tf.TensorSpec([None, 3], tf.float32),
            "known": tf.TensorSpec([4, 2], tf.int64),
            "ids": tf.RaggedTensorSpec([None, None], tf.int64),
            "deep": tf.RaggedTensorSpec([2, None, None, 5], tf.float32, ragged_rank=2),
            "sparse": tf.SparseTensorSpec([None, 10], tf.int64),
        }
        batch = make_empty_batch(spec)
        assert batch["text"].numpy().tolist() == [b""]
        assert batch["dense"].numpy().tolist() == [[0.0] * 3]
        assert batch["known"].shape == [4, 2]
        assert batch["ids"].to_list() == [[]]
        assert batch["deep"].to_list() == [[], []]
        assert batch["sparse"].dense_shape.numpy().tolist() == [1, 10]
        for name, part in spec.items():
            assert part.is_compatible_with(batch[name]), name

    def test_structures_and_sizes(self):
        def make(i):
            return {
                "text": tf.strings.as_string(i),
                "dense": tf.fill([i, 2], i),
                "nested": (i, tf.RaggedTensor.from_row_splits(tf.range(i), [0, i, i])),
                "sparse": tf.SparseTensor([[i]], [i], [10]),
            }

        dataset = tf.data.Dataset.range(1, 4).map(make)
        marked = list(mark_last(dataset).take(4))
        assert [(bool(last), bool(idle)) for _, last, idle in marked] == [
            (False, False),
            (False, False),
            (True, False),
            (True, True),
        ]
        for (element, _, _), i in zip(marked, [1, 2, 3, 3], strict=True):
            assert element["text"].numpy() == str(i).encode()
            assert element["dense"].numpy().tolist() == [[i, i]] * i
            assert element["nested"][0].numpy() == i
            assert element["nested"][1].to_list() == [list(range(i)), []]
            assert tf.sparse.to_dense(element["sparse"]).numpy()[i] == i

    def test_tuples_and_deep_raggeds(self):
        ragged = tf.ragged.constant([[[1], []], [[2, 3]]])
        dataset = tf.data.Dataset.from_tensors((ragged, tf.constant([1.0]))).repeat(2)
        (((first, second), last, _),) = mark_last(dataset).take(1)
        assert first.to_list() == [[[1], []], [[2, 3]]]
        assert second.numpy() == [1.0]
        assert not last

    def test_source_is_read_once(self):
        reads = []

        def generate():
            reads.append(1)
            yield from range(4)

        dataset = tf.data.Dataset.from_generator(
            generate, output_signature=tf.TensorSpec([], tf.int64)
        )
        assert len(self.take(dataset, 6)) == 6
        assert len(reads) == 1

    def test_parts_that_it_does_not_know(self):
        dataset = tf.data.Dataset.range(4).window(2)
        with pytest.raises(errors.ConfigError, match="cannot be looked ahead at"):
            mark_last(dataset)


def test_the_input_must_be_a_dataset(monkeypatch):
    task = ranks.SumTask.params().set(name="t").instantiate()
    monkeypatch.setattr(task, "create_input_fn", lambda mode: lambda: {"x": 1})
    input_fn = EofAwareTask(task, use_dataservice=True).create_input_fn(ModeKeys.TRAIN)
    with pytest.raises(errors.ConfigError, match=r"must be a tf\.data\.Dataset .*, got dict"):
        input_fn()


def test_inputs_are_wrapped_once():
    task = ranks.SumTask.params().set(name="t").instantiate()
    once = EofAwareTask(task, use_dataservice=True)
    twice = EofAwareTask(once, use_dataservice=True)
    (element,) = twice.create_input_fn(ModeKeys.TRAIN)().take(1)
    assert set(element) == {"1", "2", "__EofAwareTask_idle"}


class TestEmptyInputs:
    def run(self, is_last, is_idle, totals):
        hook = EofHook(tf.constant(True), [], mock.Mock(read=RankFlags.read))
        context = mock.Mock()
        values = tf.compat.v1.train.SessionRunValues([is_last, [is_idle], totals], None, None)
        hook.after_run(context, values)
        return context

    def test_all_are_empty(self):
        with pytest.raises(errors.ConfigError, match="Nothing was trained: the input ended before"):
            self.run(True, True, [2, 0, 0, 0, 0])

    def test_one_that_cannot_be_left_out(self, monkeypatch):
        monkeypatch.setattr(collectives, "rank", lambda: 1)
        with pytest.raises(errors.ConfigError, match="Rank 1 has no data, and the steps of this"):
            self.run(True, True, [1, 1, 0, 0, 0])

    def test_a_loss_of_nothing_may_be_nan(self):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            is_idle = tf.compat.v1.placeholder(tf.bool, [])
            tf.compat.v1.add_to_collection(collectives.IDLE, is_idle)
            check = NanLossHook(tf.constant(float("nan")), tf.no_op())._check
            session.run(check, {is_idle: True})
            with pytest.raises(tf.errors.InvalidArgumentError, match="The loss is NaN"):
                session.run(check, {is_idle: False})


@pytest.mark.distributed
class TestRanks:
    @pytest.fixture
    def job(self, tmp_path):
        with Job(tmp_path / "logs") as job:
            yield job

    @pytest.mark.parametrize("size", [2, 3])
    def test_basic(self, job, tmp_path, size):
        """The original's case: the steps of a rank are 1 + 2 + 3."""
        ranks.start(job, size, "train_sums", str(tmp_path), [[1, 2, 3]] * size, False)
        job.expect_success()
        assert ranks.read_all(tmp_path, "sums", size) == [[6]] * size

    @pytest.mark.parametrize("size", [2, 3])
    def test_dict(self, job, tmp_path, size):
        """Batches whose own key is one that marked batches have."""
        ranks.start(job, size, "train_sums", str(tmp_path), [[1, 2, 3]] * size, False, True)
        job.expect_success()
        assert ranks.read_all(tmp_path, "sums", size) == [[6]] * size

    @pytest.mark.parametrize(
        "data",
        [
            pytest.param([[1, 2, 3], [1, 2, 3, 4, 5]], id="two"),
            pytest.param([[1, 2, 3, 4, 5, 6], [7], [8, 9]], id="three"),
        ],
    )
    def test_steps_of_their_own(self, job, tmp_path, data):
        ranks.start(job, len(data), "train_sums", str(tmp_path), data, False)
        job.expect_success()
        assert ranks.read_all(tmp_path, "sums", len(data)) == [[sum(batch)] for batch in data]

    @pytest.mark.parametrize(
        "data",
        [
            pytest.param([[1, 2, 3], [1, 2, 3, 4, 5]], id="two"),
            pytest.param([[1, 2, 3, 4, 5, 6], [7], [8, 9]], id="three"),
            pytest.param([[1, 2, 3], []], id="none_for_one"),
            pytest.param([[], [], [8, 9]], id="none_for_rank_0"),
        ],
    )
    def test_steps_together(self, job, tmp_path, data):
        ranks.start(job, len(data), "train_sums", str(tmp_path), data, True)
        job.expect_success()
        num_steps = max(map(len, data))
        # In each step the average of those who still have a batch.
        steps = [[batches[i] for batches in data if i < len(batches)] for i in range(num_steps)]
        w = -sum(np.mean(step) for step in steps)
        for step, value in ranks.read_all(tmp_path, "sums", len(data)):
            assert step == num_steps
            np.testing.assert_allclose(value, w, rtol=1e-6)
