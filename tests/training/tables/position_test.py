"""The position of the input goes with the checkpoint: nothing is skipped, whatever is restored.

Covers monolith/training/hooks/input_position.py.
"""

import logging
import os

import pytest
import tensorflow as tf
from support import reading

from monolith.checkpoint import delta_chain, failpoints, manifest
from monolith.checkpoint import state as checkpoint_state

pytestmark = pytest.mark.usefixtures("graph_mode")

NUMBERS = range(50)
TIMEOUT_SEC = 120


@pytest.fixture
def model_dir(tmp_path):
    return tmp_path / "model"


@pytest.fixture
def file(tmp_path):
    return reading.write_numbers(tmp_path / "numbers.txt", NUMBERS)


def let_checkpoint_name(model_dir, step):
    state = checkpoint_state.read_list(os.fspath(model_dir))
    state.model_checkpoint_path = f"model.ckpt-{step}"
    checkpoint_state.save_list(os.fspath(model_dir), state)


def get_step(model_dir):
    checkpoint = tf.train.latest_checkpoint(os.fspath(model_dir))
    newest = delta_chain.get_newest_prefix(checkpoint)
    return int(tf.train.load_variable(newest, "global_step"))


class TestWithTheCheckpoint:
    def test_training_goes_on_where_it_was(self, model_dir, file):
        assert reading.train(model_dir, [file], 12) == list(range(12))
        assert reading.train(model_dir, [file], 5) == list(range(12, 17))

    def test_an_older_checkpoint_has_an_older_position(self, model_dir, file):
        reading.train(model_dir, [file], 30)
        let_checkpoint_name(model_dir, 20)
        assert reading.train(model_dir, [file], 20) == list(range(20, 40))
        assert get_step(model_dir) == 40

    @pytest.mark.parametrize(
        "point", [failpoints.TABLES_WRITTEN, failpoints.MANIFEST_WRITTEN, failpoints.LISTED]
    )
    def test_a_kill_during_a_save_skips_nothing(self, model_dir, file, point):
        child = reading.start_child(
            model_dir=model_dir, files=[file], steps=40, die_at=point, die_from=15
        )
        output = child.communicate(timeout=TIMEOUT_SEC)
        assert child.returncode == -9, output
        saved = 20 if point == failpoints.LISTED else 10
        assert reading.train(model_dir, [file], 5) == list(range(saved, saved + 5))

    def test_a_delta_has_its_own(self, model_dir, file):
        child = reading.start_child(
            model_dir=model_dir,
            files=[file],
            steps=40,
            params={"incremental_save_steps": 3},
            die_at=failpoints.VARIABLES_WRITTEN,
            die_from=17,
        )
        output = child.communicate(timeout=TIMEOUT_SEC)
        assert child.returncode == -9, output
        done = get_step(model_dir)
        base = tf.train.latest_checkpoint(os.fspath(model_dir))
        assert delta_chain.read(base)  # So it was a delta that counted.
        assert reading.train(model_dir, [file], 5) == list(range(done, done + 5))

    @pytest.mark.parametrize("capacity", [1, 3])
    @pytest.mark.parametrize("num_ps", [0, 2])
    def test_batches_that_were_read_ahead_are_not_lost(self, model_dir, file, capacity, num_ps):
        settings = {
            "embedding_prefetch_capacity": capacity,
            "enable_embedding_postpush": True,
            "num_ps": num_ps,
        }
        seen = []
        for steps in (12, 1, 20, 16, None):
            seen += reading.train(model_dir, [file], steps, **settings)
        assert seen == list(NUMBERS)
        assert reading.read_rows(model_dir) == [1] * 50 + [0] * 50
        assert reading.train(model_dir, [file], **settings) == list(NUMBERS)
        let_checkpoint_name(model_dir, 60)
        assert reading.train(model_dir, [file], 3, **settings) == [10, 11, 12]

    def test_batches_with_other_features_are_read_again(self, model_dir, file, monkeypatch):
        reading.train(model_dir, [file], 12, embedding_prefetch_capacity=1)
        monkeypatch.setattr(reading, "EXTRA", {"more": [1.0]})
        settings = {"embedding_prefetch_capacity": 1}
        assert reading.train(model_dir, [file], 3, **settings) == [0, 1, 2]

    def test_it_is_a_file_of_the_checkpoint(self, model_dir, file):
        reading.train(model_dir, [file], 30, checkpoints_max_to_keep=2)
        kept = {path.parent.name for path in model_dir.glob("*/input_worker_0")}
        assert kept == {"model.ckpt-20.assets", "model.ckpt-30.assets"}
        assert not list(model_dir.glob("*input_worker_*"))
        position = model_dir / "model.ckpt-30.assets" / "input_worker_0"
        position.write_bytes(position.read_bytes() + b"x")
        with pytest.raises(tf.errors.DataLossError, match="input_worker_0 is damaged"):
            manifest.verify(str(model_dir / "model.ckpt-30"))


class TestWhichInput:
    def test_one_that_was_read_to_its_end_is_read_again(self, model_dir, file, caplog):
        for i in range(1, 4):
            with caplog.at_level(logging.INFO):
                assert reading.train(model_dir, [file]) == list(NUMBERS)
            assert get_step(model_dir) == i * len(NUMBERS)
        assert "reads its input from the beginning: " in caplog.text
        assert "model.ckpt-100 was saved after its last batch" in caplog.text

    def test_also_if_the_last_step_was_its_last_batch(self, model_dir, file):
        assert reading.train(model_dir, [file], len(NUMBERS)) == list(NUMBERS)
        assert reading.train(model_dir, [file], 3) == [0, 1, 2]

    def test_the_next_day_starts_at_its_beginning(self, model_dir, tmp_path, caplog):
        days = [
            reading.write_numbers(tmp_path / f"day{day}.txt", range(day * 20, day * 20 + 20))
            for day in range(3)
        ]
        assert reading.train(model_dir, [days[0]]) == list(range(20))
        assert reading.train(model_dir, [days[1]], 7) == list(range(20, 27))
        with caplog.at_level(logging.INFO):
            assert reading.train(model_dir, [days[2]]) == list(range(40, 60))
        assert "model.ckpt-27 was saved with another input" in caplog.text

    def test_days_in_processes_of_their_own(self, model_dir, tmp_path):
        """A process that goes on knows its input; one with another day does not skip any of it."""
        days = [reading.write_numbers(tmp_path / f"day{day}.txt", range(20)) for day in range(2)]
        seen = []
        for files, steps in ((days[:1], 8), (days[:1], None), (days[1:], 5)):
            path = tmp_path / f"seen{len(seen)}"
            child = reading.start_child(model_dir=model_dir, files=files, steps=steps, path=path)
            output = child.communicate(timeout=TIMEOUT_SEC)
            assert child.returncode == 0, output
            seen.append([int(line) for line in path.read_text().split()])
        assert seen == [list(range(8)), list(range(8, 20)), list(range(5))]

    def test_a_file_that_was_written_anew_is_another_input(self, model_dir, tmp_path):
        path = tmp_path / "today.txt"
        reading.write_numbers(path, range(10, 30))
        assert reading.train(model_dir, [str(path)], 5) == list(range(10, 15))
        before = path.stat()
        reading.write_numbers(path, range(50, 70))  # Of the same size.
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 10**9))
        assert reading.train(model_dir, [str(path)], 5) == list(range(50, 55))

    def test_one_that_nobody_can_tell_from_others(self, model_dir, file, caplog):
        reading.train(model_dir, [file], 5, task={"python": True})
        assert not list(model_dir.glob("*/input_worker_0"))
        with caplog.at_level(logging.INFO):
            assert reading.train(model_dir, [file], 5, task={"python": True}) == list(range(5))
        assert "its pipeline calls a Python function" in caplog.text

    def test_positions_of_earlier_versions_are_not_trusted(self, model_dir, file, caplog):
        reading.train(model_dir, [file], 10)
        (model_dir / "model.ckpt-10.assets" / "input_worker_0").unlink()
        (model_dir / "manifest-model.ckpt-10").unlink()
        for name in ("input_worker_0.ckpt-10.index", "input_worker_0.ckpt-10.data-00000-of-00001"):
            (model_dir / name).write_text("state of some input")
        (model_dir / "checkpoint_input_worker_0").write_text(
            'model_checkpoint_path: "input_worker_0.ckpt-10"\n'
        )
        with caplog.at_level(logging.WARNING):
            assert reading.train(model_dir, [file], 10) == list(range(10))
        assert "checkpoint_input_worker_0 is of an earlier version" in caplog.text
        assert not list(model_dir.glob("*input_worker_0*"))
        assert reading.train(model_dir, [file], 3) == [10, 11, 12]
