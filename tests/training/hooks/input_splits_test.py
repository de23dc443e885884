"""What a chief that begins anew gives out; the tests with processes have whole jobs."""

import pytest

from monolith.training.hooks import split_desk
from monolith.training.hooks.input_splits import InputSplits
from monolith.training.hooks.split_desk import SplitTaker
from monolith.training.hooks.sync import Others

SERVERS = {"ps 0": "x", "ps 1": "y"}


class Session:
    """A session of which nobody knows from what it was restored."""


@pytest.fixture(autouse=True)
def _short_poll(monkeypatch):
    monkeypatch.setattr(split_desk, "POLL_SEC", 0.005)


@pytest.fixture
def files(tmp_path):
    paths = [tmp_path / name for name in "abcd"]
    for path in paths:
        path.write_text("1\n")
    return [str(path) for path in paths]


def begin(model_dir, files, servers, gone=()):
    """Returns the input of a chief that has begun, a context."""
    others = Others(
        check=lambda: None,
        has_left=lambda index: False,
        is_absent=lambda index: False,
        is_stopping=lambda: False,
        is_gone=lambda index: index in gone,
    )
    splits = InputSplits(model_dir, 0, 2, others, servers)
    splits.taker.announce(files)
    splits._begin(Session())
    return splits


@pytest.mark.parametrize(
    ("servers", "finished"),
    [
        pytest.param(SERVERS, "a", id="servers_that_keep_the_model"),
        pytest.param({**SERVERS, "ps 1": "z"}, "", id="servers_of_which_one_is_new"),
        pytest.param(None, "", id="servers_that_are_restored"),
    ],
)
def test_chief_that_begins_anew_before_the_first_checkpoint(tmp_path, files, servers, finished):
    with begin(str(tmp_path), files, SERVERS if servers else None) as splits:
        worker = SplitTaker(str(tmp_path), 1)
        worker.announce(files)
        assert worker.take() == 0
        worker.count()
        worker.note_step()
        assert worker.take() == 1
        worker.note_pushed()
        assert splits.taker.take() == 2
    with begin(str(tmp_path), files, servers, gone={1}) as splits:
        splits.desk.serve()
        assert [path[-1] for path in splits.desk.finished] == list(finished)
        taken = []
        while (number := splits.taker.take()) is not None:
            taken.append("abcd"[number])
    # What was under way is read again, from its beginning.
    assert sorted(taken) == sorted(set("abcd") - set(finished))
