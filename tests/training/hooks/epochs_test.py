"""Which epoch a training goes on with, and that a position tells it."""

import pytest
import tensorflow as tf

from monolith.training.hooks import epochs, input_position
from monolith.training.hooks.epochs import Epoch
from monolith.training.hooks.input_position import InputPosition

v1 = tf.compat.v1


@pytest.mark.parametrize(
    ("saved", "is_over", "total", "number"),
    [
        pytest.param(Epoch(2, 3), False, 3, 2, id="goes_on"),
        pytest.param(Epoch(2, 3), True, 3, 3, id="the_next"),
        pytest.param(Epoch(3, 3), False, 3, 3, id="the_last_goes_on"),
        pytest.param(Epoch(3, 3), True, 3, 1, id="all_were_done"),
        pytest.param(Epoch(2, 2), True, 5, 1, id="all_were_done_and_more_are_asked_for"),
        pytest.param(Epoch(2, 3), True, 5, 3, id="more_than_before"),
        pytest.param(Epoch(2, 3), False, 1, 2, id="fewer_than_before_goes_on"),
        pytest.param(Epoch(2, 3), True, 2, 1, id="fewer_than_before_and_these_were_done"),
    ],
)
def test_goes_on(saved, is_over, total, number):
    assert epochs.go_on(saved, is_over=is_over, total=total) == number


def read(path, steps, epoch, stop=4):
    """Reads some elements, and returns which epoch the position says then."""
    with tf.Graph().as_default():
        if epoch is not None:
            epochs.note(epoch)
        iterator = v1.data.make_initializable_iterator(tf.data.Dataset.range(stop))
        element, position = iterator.get_next(), InputPosition()
        with v1.Session() as session:
            session.run(iterator.initializer)
            position.restore(session, path)
            for _ in range(steps):
                session.run(element)
            position.save(session, path)
    return input_position.read_epoch(path)


def test_a_position_tells_it(tmp_path):
    path = str(tmp_path / "position")
    assert input_position.read_epoch(path) is None
    assert read(path, 3, Epoch(1, 3)) == (1, 3)
    # Whoever starts again says that it is the first.
    assert read(path, 1, Epoch(1, 3)) == (1, 3)
    assert read(path, 2, Epoch(1, 3)) == (2, 3)
    assert read(path, 0, Epoch(1, 5)) == (2, 5)
    assert read(path, 1, Epoch(1, 5), stop=9) == (1, 5)
    assert read(path, 1, None) is None
    assert read(path, 1, Epoch(1, 5)) == (1, 5)
