"""Tasks: their settings, and the context that their model functions use."""

import pytest
import tensorflow as tf

from monolith.graph.export_mode import ExportMode
from monolith.graph.mode_keys import ModeKeys
from monolith.model.task import NativeContext, NativeTask
from monolith.tensor.prefetch import AsyncFunctionMgr


class Factory:
    """Remembers the calls, as a feature factory or a layout factory gets them."""

    def __init__(self):
        self.calls = []

    def create_feature_slot(self, config):
        self.calls.append(("create_feature_slot", config))
        return "slot"

    def apply_gradients(self, grads_and_vars, **kwargs):
        self.calls.append(("apply_gradients", grads_and_vars, kwargs))
        return "op"


class Task(NativeTask):
    def create_input_fn(self, mode):
        return lambda: tf.data.Dataset.from_tensors({"x": [1.0]})

    def create_model_fn(self):
        raise NotImplementedError


class TestNativeContext:
    def test_both_factories_are_refused(self):
        message = "^Cannot set feature_factory and layout_factory in the same time$"
        with pytest.raises(ValueError, match=message):
            NativeContext(feature_factory=Factory(), layout_factory=Factory())

    def test_feature_factory(self):
        factory = Factory()
        ctx = NativeContext(feature_factory=factory)
        assert ctx.create_feature_slot("config") == "slot"
        assert ctx.apply_embedding_gradients(["gv"]) == "op"
        assert ctx.apply_embedding_gradients(["gv"], scale=0.5) == "op"
        assert factory.calls == [
            ("create_feature_slot", "config"),
            ("apply_gradients", ["gv"], {"scale": 1}),
            ("apply_gradients", ["gv"], {"scale": 0.5}),
        ]

    def test_layout_factory_comes_first_and_takes_no_scale(self):
        feature_factory, layout_factory = Factory(), Factory()
        ctx = NativeContext(feature_factory=feature_factory)
        ctx.layout_factory = layout_factory
        assert ctx.create_feature_slot("config") == "slot"
        assert ctx.apply_embedding_gradients(["gv"], scale=2) == "op"
        assert feature_factory.calls == []
        assert layout_factory.calls == [
            ("create_feature_slot", "config"),
            ("apply_gradients", ["gv"], {}),
        ]

    @pytest.mark.parametrize("name", ["create_feature_slot", "apply_embedding_gradients"])
    def test_without_a_factory_the_error_says_so(self, name):
        with pytest.raises(RuntimeError, match=f"^{name} needs a feature_factory"):
            getattr(NativeContext(), name)([])

    def test_without_a_manager_the_error_says_so(self):
        with pytest.raises(RuntimeError, match="no async_function_mgr"):
            NativeContext().add_async_function(lambda: 1)

    @pytest.mark.parametrize(
        ("manager_is_async", "is_async", "after_two_steps"),
        [
            pytest.param(False, None, 6, id="synchronous"),
            pytest.param(True, None, 3, id="one_step_late"),
            pytest.param(True, False, 6, id="synchronous_after_all"),
            pytest.param(False, True, 3, id="one_step_late_after_all"),
        ],
    )
    def test_async_function(self, graph_mode, manager_is_async, is_async, after_two_steps):
        total = tf.compat.v1.get_variable("total", initializer=0)
        manager = AsyncFunctionMgr(is_async=manager_is_async)
        ctx = NativeContext(async_function_mgr=manager)
        op = ctx.add_async_function(
            lambda x, y: total.assign_add(x + y),
            (tf.constant(1),),
            {"y": tf.constant(2)},
            is_async=is_async,
            queue_name="q",
        )
        with tf.compat.v1.train.SingularMonitoredSession(hooks=manager.hooks) as session:
            session.run(op)
            session.run(op)
            assert session.raw_session().run(total) == after_two_steps

    def test_name_of_the_queue(self, graph_mode):
        ctx = NativeContext(async_function_mgr=AsyncFunctionMgr())
        op = ctx.add_async_function(lambda x: x + 1, (tf.constant(1),), queue_name="my_queue")
        assert "my_queue" in op.name


class TestParams:
    def test_metrics(self):
        assert dict(Task.params().metrics.iter_params()) == {
            "enable_deep_insight": False,
            "deep_insight_target": "ctr_head",
            "deep_insight_name": None,
            "deep_insight_sample_ratio": 0.01,
            "extra_fields_keys": [],
            "enable_throughput_hook": True,
            "enable_kafka_metrics": False,
            "enable_tf2_profiler_hook": True,
            "enable_file_metrics": False,
            "file_base_name": "/vepfs/jaguar_deepinsight_results",
            "file_ext": "txt",
            "parse_fn": None,
            "key_fn": None,
            "layout_fn": None,
            "dump_filename": "",
            "use_data_service": False,
        }

    def test_train(self):
        train = Task.params().train
        assert {
            name: train[name]
            for name in (
                "max_pending_seconds_for_barrier",
                "slow_start_steps",
                "sample_bias",
                "use_gpu_emb_table",
                "use_fountain",
                "fountain_zk_host",
                "fountain_model_name",
                "fountain_parse_on_server",
                "fountain_precompute_value_rowids",
            )
        } == {
            "max_pending_seconds_for_barrier": 30,
            "slow_start_steps": 0,
            "sample_bias": 0.0,
            "use_gpu_emb_table": False,
            "use_fountain": False,
            "fountain_zk_host": "",
            "fountain_model_name": "",
            "fountain_parse_on_server": False,
            "fountain_precompute_value_rowids": False,
        }
        assert train.label_key == "label"  # those of every task are there, too

    def test_serving(self):
        assert dict(Task.params().serving.iter_params()) == {
            "export_with_gpu_allowed": False,
            "export_with_cleared_entry_devices": False,
            "export_when_saving": False,
            "export_dir_base": "exported_models",
            "export_mode": ExportMode.DISTRIBUTED,
            "shared_embedding": True,
            "with_remote_gpu": False,
        }

    def test_mode(self):
        assert Task.params().mode == ModeKeys.TRAIN == "train"
        assert (ModeKeys.EVAL, ModeKeys.PREDICT) == ("eval", "infer")

    def test_two_tasks_do_not_share_lists(self):
        Task.params().metrics.extra_fields_keys.append("uid")
        assert Task.params().metrics.extra_fields_keys == []


class TestNativeTask:
    def test_instantiate(self):
        params = Task.params().set(**{"train.max_steps": 7})
        task = params.instantiate()
        assert isinstance(task, Task)
        assert task.p is params
        assert isinstance(task.ctx, NativeContext)
        assert task.ctx.feature_factory is None
        assert task.ctx is task._ctx

    def test_each_task_has_its_own_context(self):
        assert Task(Task.params()).ctx is not Task(Task.params()).ctx

    def test_no_export_by_default(self):
        assert Task(Task.params()).create_serving_input_receiver_fn() is None

    @pytest.mark.parametrize("missing", ["create_input_fn", "create_model_fn"])
    def test_both_functions_are_required(self, missing):
        methods = {"create_input_fn": len, "create_model_fn": len}
        del methods[missing]
        incomplete = type("Incomplete", (NativeTask,), methods)
        with pytest.raises(TypeError, match=missing):
            incomplete(Task.params())


def test_historical_path_is_the_same_module():
    from monolith.native_training import native_task

    assert native_task.NativeTask is NativeTask
