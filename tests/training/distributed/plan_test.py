"""What members must agree on, and how a difference is named."""

import dataclasses

import pytest
import tensorflow as tf
from support import counting

from monolith import errors, version
from monolith.cluster import heartbeat
from monolith.cluster.members import Membership, MemberState, read_member
from monolith.training import cpu
from monolith.training.distributed import plan
from monolith.training.distributed.plan import JobPlan, find_difference
from monolith.training.tables.members import NodeAliveCheckerError


@pytest.fixture(autouse=True)
def _stop_heartbeats():
    yield
    heartbeat._stop_all()


def make_training(**changes):
    settings = counting.Settings(model_dir="unused", **changes)
    task = counting.CountingTask.params().set(settings=settings).instantiate()
    return cpu.CpuTraining(cpu.CpuTrainingConfig(num_ps=2), task)


class TestDifference:
    PLAN = JobPlan(
        incarnation="a",
        code={"monolith": "1"},
        settings={"num_ps": 2},
        tables={"user": "dims [8]"},
        variables={"kernel": "float32 [8]"},
    )

    def test_none(self):
        assert find_difference(self.PLAN, dataclasses.replace(self.PLAN, incarnation="b")) is None

    @pytest.mark.parametrize(
        ("changes", "difference"),
        [
            ({"code": {"monolith": "2"}}, "monolith is `1` at the chief and `2` here"),
            (
                {"settings": {"num_ps": 3}},
                "setting 'num_ps' is `2` at the chief and `3` here",
            ),
            ({"tables": {}}, "feature 'user' is `dims [8]` at the chief and missing here"),
            (
                {"tables": {"item": "x", "user": "dims [8]"}},
                "feature 'item' is missing at the chief and `x` here",
            ),
            (
                {"variables": {"kernel": "float32 [9]"}},
                "variable 'kernel' is `float32 [8]` at the chief and `float32 [9]` here",
            ),
        ],
    )
    def test_is_named(self, changes, difference):
        assert find_difference(self.PLAN, dataclasses.replace(self.PLAN, **changes)) == difference

    def test_long_values_are_shown_from_where_they_differ(self):
        there, here = ("x" * 100 + end + "y" * 100 for end in ("1", "2"))
        text = find_difference(
            JobPlan(incarnation="", tables={"f": there}),
            JobPlan(incarnation="", tables={"f": here}),
        )
        shown = "x" * 30 + "{}" + "y" * 29
        assert text == (
            f"feature 'f' is `...{shown.format('1')}...` at the chief and "
            f"`...{shown.format('2')}...` here"
        )


@pytest.mark.usefixtures("graph_mode")
class TestDescriptions:
    def test_code_has_a_digest_of_the_package(self):
        code = plan.describe_code()
        assert code["monolith"].startswith(f"{version.__version__} (")
        assert code["tensorflow"] == tf.__version__

    def test_equal_tasks_are_equal(self):
        assert plan.describe_tables(make_training()) == plan.describe_tables(make_training())

    def test_dims_and_kinds_of_tables_differ(self):
        tables = plan.describe_tables(make_training())
        others = plan.describe_tables(make_training(dims=3))
        assert tables.keys() == others.keys() == {"item", "user", "(all slots)"}
        assert tables["user"] != others["user"]

    def test_variables(self):
        with tf.Graph().as_default() as graph:
            tf.compat.v1.get_variable("kernel", [2, 3])
            tf.compat.v1.get_variable("other", [], trainable=False)
            assert plan.describe_variables(graph) == {"kernel": "float32 (2, 3)"}

    def test_variables_on_servers_must_be_on_the_same(self):
        with tf.Graph().as_default() as graph:
            for job in ("ps", "worker"):
                with tf.device(f"/job:{job}/task:1"):
                    tf.compat.v1.get_variable(f"at_{job}", [2])
            assert plan.describe_variables(graph) == {
                "at_ps": "float32 (2,) on /job:ps/task:1",
                "at_worker": "float32 (2,)",
            }

    def test_settings(self):
        config = cpu.CpuTrainingConfig(num_ps=2, num_workers=3)
        settings = plan.describe_settings(config)
        assert settings["num_ps"] == 2
        assert settings["num_workers"] == 3
        assert settings["partial_recovery"] is False
        recovering = dataclasses.replace(config, partial_recovery=True)
        assert plan.describe_settings(recovering) == {**settings, "partial_recovery": True}

    def test_workers_in_step_average_in_the_same_way(self, monkeypatch):
        config = cpu.CpuTrainingConfig(num_ps=2, enable_sync_training=True)
        monkeypatch.setenv("MONOLITH_WITH_ALLREDUCE_FP16", "1")
        assert plan.describe_environment(config) == {}
        config.enable_partial_sync_training = True
        environment = plan.describe_environment(config)
        assert environment["MONOLITH_WITH_ALLREDUCE_FP16"] == "on"
        monkeypatch.delenv("MONOLITH_WITH_ALLREDUCE_FP16")
        there, here = (
            JobPlan(incarnation="", environment=e)
            for e in (environment, plan.describe_environment(config))
        )
        assert find_difference(there, here) == (
            "environment variable 'MONOLITH_WITH_ALLREDUCE_FP16' is `on` at the chief and `off` "
            "here"
        )


class TestFile:
    def test_round_trip(self, tmp_path):
        assert plan.read_plan(str(tmp_path)) is None
        written = dataclasses.replace(TestDifference.PLAN, run="r", max_steps=7)
        plan.write_plan(str(tmp_path), written)
        assert plan.read_plan(str(tmp_path)) == written

    def test_damaged(self, tmp_path, caplog):
        plan.write_plan(str(tmp_path), TestDifference.PLAN)
        (tmp_path / "members" / "plan.json").write_text('{"incarnation": "a", "weather": 1}')
        assert plan.read_plan(str(tmp_path)) is None
        assert "plan.json" in caplog.text


class TestRun:
    def begin(self, model_dir, state):
        """A chief begins, and ends in `state`."""
        chief = Membership(model_dir, "worker", 0, "a:1")
        run = plan.choose_run(model_dir)
        chief.join()
        plan.write_plan(model_dir, JobPlan(incarnation=chief.record.incarnation, run=run))
        chief.leave(state)
        return run

    @pytest.mark.parametrize(
        "state", [MemberState.RUNNING, MemberState.FAILED, MemberState.STOPPED]
    )
    def test_goes_on_after_a_chief_that_has_not_finished(self, tmp_path, state):
        first = self.begin(str(tmp_path), state)
        assert self.begin(str(tmp_path), MemberState.FINISHED) == first
        assert self.begin(str(tmp_path), MemberState.FINISHED) != first


@pytest.mark.usefixtures("graph_mode")
class TestMaxSteps:
    def choose(self, model_dir, run="r", **train):
        params = counting.CountingTask.params().train
        for name, value in train.items():
            params[name] = value
        return plan.choose_max_steps(str(model_dir), run, params)

    def test_given(self, tmp_path):
        assert self.choose(tmp_path, max_steps=7) == 7
        assert self.choose(tmp_path) is None

    def test_steps_without_a_checkpoint(self, tmp_path):
        assert self.choose(tmp_path, steps=5) == 5

    def test_steps_after_the_checkpoint(self, tmp_path):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            step = tf.compat.v1.train.get_or_create_global_step()
            session.run(step.assign(10))
            tf.compat.v1.train.Saver().save(session, str(tmp_path / "model.ckpt"), global_step=10)
        assert self.choose(tmp_path, steps=5) == 15
        # A chief that is replaced in the middle ends where the first one would have.
        plan.write_plan(str(tmp_path), JobPlan(incarnation="x", run="r", max_steps=12))
        assert self.choose(tmp_path, steps=5) == 12
        assert self.choose(tmp_path, run="other", steps=5) == 15


class TestCheck:
    @pytest.fixture
    def chief(self, tmp_path):
        chief = Membership(str(tmp_path), "worker", 0, "a:1")
        chief.join()
        return chief

    @pytest.fixture
    def worker(self, tmp_path):
        worker = Membership(str(tmp_path), "worker", 1, "b:1")
        worker.join()
        return worker

    def check(self, tmp_path, chief, worker, own, **options):
        return plan.check_plan(str(tmp_path), chief.record, own, worker, 10.0, **options)

    def test_equal(self, tmp_path, chief, worker):
        written = JobPlan(incarnation=chief.record.incarnation, run="r", settings={"num_ps": 2})
        plan.write_plan(str(tmp_path), written)
        own = JobPlan(incarnation="b", settings={"num_ps": 2})
        assert self.check(tmp_path, chief, worker, own) == written

    def test_waits_for_it(self, tmp_path, chief, worker):
        def write(seconds):
            plan.write_plan(str(tmp_path), JobPlan(incarnation=chief.record.incarnation))

        # One of an earlier chief does not count.
        plan.write_plan(str(tmp_path), JobPlan(incarnation="old", settings={"num_ps": 9}))
        self.check(tmp_path, chief, worker, JobPlan(incarnation="b"), sleep=write)

    def test_different(self, tmp_path, chief, worker):
        plan.write_plan(
            str(tmp_path),
            JobPlan(incarnation=chief.record.incarnation, settings={"num_ps": 2}),
        )
        with pytest.raises(errors.ConfigError, match=r"^Worker 1 does not fit .*`3` here"):
            self.check(tmp_path, chief, worker, JobPlan(incarnation="b", settings={"num_ps": 3}))
        assert read_member(str(tmp_path), "worker", 1).state is MemberState.FAILED

    def test_chief_that_fails_meanwhile(self, tmp_path, chief, worker):
        chief.leave(MemberState.FAILED)
        with pytest.raises(NodeAliveCheckerError, match="the chief at a:1 is failed"):
            self.check(tmp_path, chief, worker, JobPlan(incarnation="b"))

    def test_chief_that_is_replaced_meanwhile(self, tmp_path, chief, worker):
        Membership(str(tmp_path), "worker", 0, "c:1").join()
        with pytest.raises(NodeAliveCheckerError, match="the chief at a:1 was replaced"):
            self.check(tmp_path, chief, worker, JobPlan(incarnation="b"))
