"""What a rank does in the tests of inputs that ranks read to their ends, or never get."""

import tensorflow as tf
from support import sync_models
from support.sync_tasks import write

from monolith.graph import collectives


class Data:
    """Some batches for each rank: the first of those that it would have of all.

    Args:
        num_batches: How many each rank has.
    """

    def __init__(self, num_batches):
        self._num_batches = num_batches

    def __call__(self):
        rank, size = collectives.rank(), collectives.size()
        examples = sync_models.make_examples(max(self._num_batches))
        dataset = tf.data.Dataset.from_tensor_slices(examples).shard(size, rank)
        return dataset.batch(sync_models.BATCH // size).take(self._num_batches[rank])


def train_again(directory, cases, num_times):
    """Trains each case several times, and writes the steps after each.

    Args:
        directory: Of the test.
        cases: By name, the number of batches of each rank.
        num_times: How often.
    """
    collectives.init(timeout_sec=20.0)
    steps = {}
    for case, num_batches in cases.items():
        steps[case] = []
        estimator = sync_models.make_estimator(f"{directory}/{case}", "adagrad")
        for _ in range(num_times):
            estimator.train(Data(num_batches))
            steps[case].append(int(estimator.get_variable_value("global_step")))
    write(directory, "steps", steps)
    collectives.shutdown()


def train_on_nothing(directory):
    """No rank has a batch."""
    collectives.init(timeout_sec=20.0)
    estimator = sync_models.make_estimator(f"{directory}/model", "sgd")
    try:
        estimator.train(Data([0] * collectives.size()))
    except ValueError as error:
        write(directory, "problem", str(error))
    collectives.shutdown()
