"""Whether a model is being exported, and what is collected meanwhile.

Covers monolith/core/export_marker.py.
"""

import pytest
import tensorflow as tf

from monolith.core import export_marker
from monolith.graph import export_mode
from monolith.graph.export_mode import ExportContext, ExportMode, enter_export_mode


def test_historical_paths_give_the_same_module():
    import monolith.model_export.export_context
    from monolith.native_training.model_export import export_context

    assert export_context is export_mode
    assert monolith.model_export.export_context is export_mode


def test_values_of_the_modes():
    assert [(m.name, m.value) for m in ExportMode] == [
        ("NONE", 0),
        ("STANDALONE", 1),
        ("DISTRIBUTED", 2),
    ]


def test_nothing_is_exported_by_default():
    assert not export_mode.is_exporting()
    assert not export_mode.is_exporting_standalone()
    assert not export_mode.is_exporting_distributed()
    assert export_mode.get_current_export_ctx() is None


@pytest.mark.parametrize(
    ("mode", "standalone", "distributed"),
    [(ExportMode.STANDALONE, True, False), (ExportMode.DISTRIBUTED, False, True)],
)
def test_mode_holds_inside_the_block(mode, standalone, distributed):
    ctx = ExportContext(with_remote_gpu=True)
    with enter_export_mode(mode, ctx) as entered:
        assert entered is ctx
        assert export_mode.get_current_export_ctx() is ctx
        assert export_mode.is_exporting()
        assert export_mode.is_exporting_standalone() is standalone
        assert export_mode.is_exporting_distributed() is distributed
        assert export_mode.EXPORT_MODE is mode
    assert not export_mode.is_exporting()
    assert export_mode.get_current_export_ctx() is None


def test_mode_ends_with_an_exception():
    with pytest.raises(KeyError), enter_export_mode(ExportMode.STANDALONE):
        raise KeyError
    assert not export_mode.is_exporting()


def test_nesting_is_refused_and_the_outer_mode_stays():
    with enter_export_mode(ExportMode.STANDALONE) as ctx:
        with (
            pytest.raises(AssertionError, match="export mode can't be nested"),
            enter_export_mode(ExportMode.DISTRIBUTED),
        ):
            pass
        assert export_mode.is_exporting_standalone()
        assert export_mode.get_current_export_ctx() is ctx


def test_dry_run():
    with tf.Graph().as_default() as graph:
        assert not export_mode.is_dry_run_or_exporting()
        graph.dry_run = True
        assert export_mode.is_dry_run_or_exporting()
    with enter_export_mode(ExportMode.STANDALONE):
        assert export_mode.is_dry_run_or_exporting()


class TestExportContext:
    def test_sub_graphs_are_made_on_demand(self):
        ctx = ExportContext()
        assert ctx.sub_graph_num == 0
        graph = ctx.sub_graph("ps_0")
        assert isinstance(graph, tf.Graph)
        assert ctx.sub_graph("ps_0") is graph
        assert ctx.sub_graph("ps_1") is not graph
        assert ctx.sub_graph_num == 2
        assert list(ctx.sub_graphs) == ["ps_0", "ps_1"]

    def test_dense_sub_graphs_are_apart(self):
        ctx = ExportContext()
        graph = ctx.dense_sub_graph("dense_0")
        assert ctx.dense_sub_graph("dense_0") is graph
        assert ctx.dense_sub_graphs == {"dense_0": graph}
        assert ctx.sub_graph_num == 0

    def test_with_remote_gpu(self):
        assert not ExportContext().with_remote_gpu
        assert ExportContext(with_remote_gpu=True).with_remote_gpu

    def test_signatures_belong_to_their_graph(self):
        ctx = ExportContext()
        graph, other = ctx.sub_graph("ps_0"), ctx.sub_graph("ps_1")
        ctx.add_signature(graph, "lookup", {"ids": 1}, {"rows": 2})
        ctx.add_signature(graph, "size", {}, {"size": 3})
        assert ctx.signatures(graph) == [
            export_mode.SavedModelSignature("lookup", {"ids": 1}, {"rows": 2}),
            export_mode.SavedModelSignature("size", {}, {"size": 3}),
        ]
        assert graph.get_collection("signature_name") == ["lookup", "size"]
        assert ctx.signatures(other) == []

    def test_merge_adds_inputs_and_outputs(self):
        ctx = ExportContext()
        graph = ctx.sub_graph("ps_0")
        ctx.merge_signature(graph, "lookup", {"a": 1}, {"x": 2})
        ctx.merge_signature(graph, "lookup", {"b": 3}, {"y": 4})
        (signature,) = ctx.signatures(graph)
        assert signature.inputs == {"a": 1, "b": 3}
        assert signature.outputs == {"x": 2, "y": 4}
        assert graph.get_collection("signature_name") == ["lookup"]


def test_export_marker_returns_what_it_marks():
    class Thing:
        pass

    assert export_marker.monolith_export(Thing) is Thing
    assert vars(Thing)["__monolith_doc"] is None
