"""Ranks with different amounts of data end together, and train on all of it."""

import numpy as np
import pytest
import tensorflow as tf
from support import ranks
from support.jobs import Job

from monolith import errors
from monolith.graph.mode_keys import ModeKeys
from monolith.training.hooks.end_of_input import EofAwareTask, mark_last


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
        assert self.take(tf.data.Dataset.range(0), 3) == []

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
