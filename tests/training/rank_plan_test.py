"""What ranks compare before they train together, and how a difference is named."""

import dataclasses
import threading
from concurrent import futures

import pytest
from support import ranks, sync_tasks
from support.jobs import Job

from monolith import errors
from monolith.graph import collectives
from monolith.native_training import cpu_training
from monolith.training import rank_plan
from monolith.training.distributed import start
from monolith.training.distributed.plan import JobPlan

pytestmark = pytest.mark.usefixtures("graph_mode")

PLAN = JobPlan(incarnation="", settings={"filter_type": "no_filter"}, tables={"user": "dims [8]"})


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Makes this process the only rank."""
    monkeypatch.setattr(collectives, "_lib", collectives._Lib())
    collectives.init()
    yield
    collectives.shutdown()


def describe(**settings):
    config = cpu_training.DistributedCpuTrainingConfig(
        enable_sync_training=True, reorder_fids_in_data_pipeline=True, **settings
    )
    task = sync_tasks.FeatureTask.params().instantiate()
    return rank_plan.describe(config, cpu_training.CpuTraining(config, task))


def agree_between(monkeypatch, plans):
    """Has ranks agree, each in a thread; returns the numbers that each gets, or its error.

    Each comes with a number of its own, 10 for rank 0.
    """
    place = threading.local()
    told = {}
    together = threading.Barrier(len(plans), timeout=60)

    def gather(numbers):
        together.wait()
        told[place.rank] = list(numbers)
        together.wait()
        return [told[rank] for rank in range(len(plans))]

    def agree(rank):
        place.rank = rank
        try:
            return rank_plan.agree(plans[rank], 10 + rank)
        except errors.ConfigError as error:
            return str(error)

    monkeypatch.setattr(collectives, "gather_numbers", gather)
    with futures.ThreadPoolExecutor(len(plans)) as threads:
        return list(threads.map(agree, range(len(plans))))


class TestDescription:
    def test_equal_ranks_are_equal(self):
        assert describe() == describe()

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("embedding_prefetch_capacity", 1),
            ("enable_async_optimize", True),
            ("enable_pipelined_fwda2a", True),
            ("enable_pipelined_bwda2a", True),
            ("enable_fused_layout", True),
            ("use_native_multi_hash_table", False),
            ("filter_type", "no_filter"),
        ],
    )
    def test_a_setting_is_named(self, name, value):
        difference = rank_plan.find_difference([describe(), describe(**{name: value})])
        assert difference.startswith(f"setting '{name}' is `")
        assert difference.endswith(f" at rank 0 and `{value}` at rank 1")

    @pytest.mark.parametrize(
        ("name", "value", "there", "here"),
        [
            ("MONOLITH_WITH_ALLREDUCE_FP16", "1", "off", "on"),
            ("MONOLITH_WITH_ALLREDUCE_FUSION", "one", "unset", "one"),
            ("MONOLITH_SKIP_ALLREDUCE", "1", "off", "on"),
            ("MONOLITH_SYNC_EMPTY_RANK0_PS_SHARD", "0", "1", "0"),
        ],
    )
    def test_a_variable_of_the_environment_is_named(self, monkeypatch, name, value, there, here):
        monkeypatch.setattr(collectives, "size", lambda: 5)
        monkeypatch.delenv(name, raising=False)
        unset = describe()
        monkeypatch.setenv(name, value)
        assert rank_plan.find_difference([unset, unset, describe()]) == (
            f"environment variable '{name}' is `{there}` at rank 0 and `{here}` at rank 2"
        )

    def test_rank_0_of_a_few_has_rows_in_any_case(self, monkeypatch):
        unset = describe()
        monkeypatch.setenv("MONOLITH_SYNC_EMPTY_RANK0_PS_SHARD", "0")
        assert describe() == unset


class TestAgreement:
    def test_numbers_are_those_of_rank_0(self, monkeypatch):
        assert agree_between(monkeypatch, [PLAN] * 3) == [[10]] * 3

    def test_difference_is_named_in_all_ranks(self, monkeypatch):
        # Of another length, too.
        other = dataclasses.replace(PLAN, tables={"user": "dims [8]", "äöü": "dims [16]"})
        told = agree_between(monkeypatch, [PLAN, PLAN, other])
        expected = (
            "The ranks do not fit together: feature 'äöü' is missing at rank 0 and `dims [16]` at "
            "rank 2; start all of them with the same code, settings and environment."
        )
        assert told == [expected] * 3


class TestDirectory:
    def test_the_same_in_other_words(self, tmp_path):
        mark = rank_plan.mark_directory(str(tmp_path))
        rank_plan.check_directory(f"{tmp_path}/./", mark)
        assert list(tmp_path.iterdir()) == []

    def test_a_file_that_shows_late(self, tmp_path):
        mark = 7

        def write(seconds):
            assert rank_plan.mark_directory(str(tmp_path))
            (path,) = tmp_path.iterdir()
            path.write_text(str(mark))

        rank_plan.check_directory(str(tmp_path), mark, sleep=write)

    def test_another_one(self, tmp_path, monkeypatch):
        monkeypatch.setattr(start, "SHARED_WAIT_SEC", 0.0)
        mark = rank_plan.mark_directory(str(tmp_path))
        monkeypatch.setattr(collectives, "gather_numbers", lambda own: [[1], [1], own])
        monkeypatch.setattr(collectives, "rank", lambda: 2)
        with pytest.raises(
            errors.ConfigError,
            match=r"^Rank 2 has another model directory than rank 0, .+; it is /else in rank 2, ",
        ):
            rank_plan.check_directory("/else", mark)


@pytest.mark.distributed
def test_ranks_that_differ_are_refused(tmp_path):
    """Rank 1 has something of its own in each case."""
    cases = {
        "environment": ("FeatureTask", "FeatureTask", {}, {"MONOLITH_WITH_ALLREDUCE_FP16": "1"}),
        "queue": ("FeatureTask", "FeatureTask", {"enable_pipelined_fwda2a": True}, {}),
        "features": ("FeatureTask", "SequenceFeatureTask", {}, {}),
        "variables": ("NarrowTask", "WideTask", {}, {}),
        # The same directory in other words, which is no difference.
        "spelling": ("NarrowTask", "NarrowTask", {"model_dir": f"{tmp_path}/./spelling"}, {}),
        "directory": ("NarrowTask", "NarrowTask", {"model_dir": f"{tmp_path}/elsewhere"}, {}),
    }
    with Job(tmp_path / "logs") as job:
        ranks.start(job, 2, "train_apart", str(tmp_path), cases, module="support.sync_tasks")
        job.expect_success()
    told, of_rank_1 = ranks.read_all(tmp_path, "told", 2)
    in_rank = "; it is {} in rank {}, and must be one in all ranks, on a disk that they share."
    for rank, where in enumerate(("directory", "elsewhere")):
        text = (told, of_rank_1)[rank].pop("directory")
        assert text.startswith("Rank 1 has another model directory than rank 0, which")
        assert text.endswith(in_rank.format(tmp_path / where, rank))
    assert told == of_rank_1
    for case, what in (
        ("environment", "environment variable 'MONOLITH_WITH_ALLREDUCE_FP16' is `off` at rank 0 "),
        ("queue", "setting 'enable_pipelined_fwda2a' is `False` at rank 0 and `True` at rank 1"),
        ("features", "feature 'feature' is `...dims [5] in 'slot', ReduceSum, "),
        ("variables", "variable 'w' is `float32 (1,)` at rank 0 and `float32 (2,)` at rank 1"),
    ):
        assert told[case].startswith(f"The ranks do not fit together: {what}")
    assert told["spelling"] == "trained"
