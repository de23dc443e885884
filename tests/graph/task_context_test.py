"""The context of the process that builds a graph."""

import threading

import pytest

from monolith.graph import task_context

CONTEXT = task_context.NativeTaskContext(
    num_ps=2,
    ps_index=1,
    num_workers=3,
    worker_index=2,
    model_name="ranking",
    sync_backend="backend",
    server_type="worker",
)


def test_fields_come_in_this_order():
    assert tuple(CONTEXT) == (2, 1, 3, 2, "ranking", "backend", "worker")


def test_default():
    assert task_context.get() == (0, 0, 1, 0, "", None, "")


def test_blocks_nest():
    inner = CONTEXT._replace(worker_index=0)
    with task_context.with_ctx(CONTEXT):
        assert task_context.get() is CONTEXT
        with task_context.with_ctx(inner):
            assert task_context.get() is inner
        assert task_context.get() is CONTEXT
    assert task_context.get().model_name == ""


def test_a_failing_block_does_not_leave_its_context():
    with pytest.raises(RuntimeError, match="broken"), task_context.with_ctx(CONTEXT):
        raise RuntimeError("broken")
    assert task_context.get().num_ps == 0


def test_other_threads_see_it():
    seen = []
    with task_context.with_ctx(CONTEXT):
        thread = threading.Thread(target=lambda: seen.append(task_context.get()))
        thread.start()
        thread.join()
    assert seen == [CONTEXT]


def test_historical_path_is_the_same_module():
    from monolith.native_training import native_task_context

    assert native_task_context is task_context
