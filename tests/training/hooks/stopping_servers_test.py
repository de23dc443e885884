"""The save before a server ends; the tests with processes have real ones."""

import pytest
import tensorflow as tf

from monolith.training.hooks.stopping_servers import StoppingServers
from monolith.training.hooks.sync import Others

pytestmark = pytest.mark.usefixtures("graph_mode")


class Chief:
    """A chief that is told of servers while it trains."""

    def __init__(self):
        self.stopping = set()
        self.is_stopping = False
        self.said = []
        others = Others(
            check=lambda: None,
            has_left=lambda worker: False,
            is_absent=lambda worker: False,
            is_stopping=lambda: self.is_stopping,
            list_stopping=lambda: self.stopping,
            say_saved=self.said.append,
        )
        servers = StoppingServers(others)
        timer = tf.compat.v1.train.SecondOrStepTimer(every_steps=1000)
        timer.update_last_triggered_step(0)
        self.timer = servers.create_timer(timer)
        self.listener = servers.create_saver_listener()

    def step(self, number):
        """Returns whether it saves after a step."""
        if not self.timer.should_trigger_for_step(number):
            return False
        self.timer.update_last_triggered_step(number)
        self.save(number)
        return True

    def save(self, number, during=lambda: None):
        self.listener.before_save(None, number)
        during()
        self.listener.after_save(None, number)


@pytest.fixture
def chief():
    return Chief()


def test_one_save_for_each_server(chief):
    assert not chief.step(1)
    chief.stopping = {"a"}
    assert [chief.step(2), chief.step(3)] == [True, False]
    chief.stopping = {"a", "b"}
    assert [chief.step(4), chief.step(5)] == [True, False]
    assert chief.said == [{"a"}, {"a", "b"}]
    assert not chief.step(1003)
    assert chief.step(1004)  # As the timer says, counted from the last save.
    assert len(chief.said) == 2


def test_server_that_is_told_during_a_save_has_one_of_its_own(chief):
    chief.save(1, during=lambda: chief.stopping.add("a"))
    assert chief.said == []
    assert chief.step(2)
    assert chief.said == [{"a"}]


def test_any_save_will_do(chief):
    chief.stopping = {"a"}
    chief.save(1)
    assert chief.said == [{"a"}]
    assert not chief.step(2)


def test_failed_save_is_none(chief):
    chief.stopping = {"a"}
    chief.listener.before_save(None, 1)
    assert chief.said == []
    assert chief.step(2)


def test_chief_that_is_told_to_end_saves_at_its_end(chief):
    chief.stopping, chief.is_stopping = {"a"}, True
    assert not chief.step(1)
    chief.save(2)
    # The server stays until it is dismissed.
    assert chief.said == []


def test_chief_that_is_told_to_end_during_a_save_needs_the_servers_once_more(chief):
    chief.stopping = {"a"}
    chief.save(1, during=lambda: setattr(chief, "is_stopping", True))
    assert chief.said == []
