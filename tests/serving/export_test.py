"""Exported models: real checkpoints of real tables go in, and loaded models give the same rows.

Covers monolith/serving/export_base.py and monolith/serving/export_tables.py.
"""

import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from support import packed_rows

from monolith import errors
from monolith.embedding.tables import multi, single
from monolith.graph import export_mode
from monolith.graph.export_mode import ExportMode
from monolith.graph.mode_keys import ModeKeys
from monolith.graph.signatures import PredictOutput, ServingInputReceiver
from monolith.graph.spec import GraphSpec
from monolith.native_training.model_export import saved_model_exporters
from monolith.serving import export, export_tables
from monolith.serving.export import StandaloneExporter
from monolith.serving.loading import import_saved_model
from monolith.testing import generate_test_hash_table_config

pytestmark = pytest.mark.usefixtures("graph_mode")

v1 = tf.compat.v1

STEP = 7


def make_tables():
    table = single.test_hash_table(2, name_suffix="test")
    mtable = multi.MultiHashTable.from_configs(
        {"slot0": generate_test_hash_table_config(dim=1)}, name_suffix="mtest"
    )
    return table, mtable


def save_checkpoint(model_dir: pathlib.Path, variables=None) -> str:
    """Saves rows [1, 2] and [1] of id 0, and some variables; returns the checkpoint's prefix."""
    with tf.Graph().as_default():
        v1.train.create_global_step()
        table, mtable = make_tables()
        for name, value in (variables or {}).items():
            v1.get_variable(name, initializer=value)
        fill = [
            table.assign_add([0], [[1.0, 2.0]]).as_op(),
            mtable.assign_add({"slot0": ([0], [[1.0]])}).as_op(),
            v1.train.get_global_step().assign(STEP),
        ]
        basename = str(model_dir / "model.ckpt")
        listeners = [
            single.HashTableCheckpointSaverListener(basename),
            multi.MultiHashTableCheckpointSaverListener(basename),
        ]
        saver = v1.train.Saver(sharded=True)
        with v1.Session() as session:
            session.run([v1.global_variables_initializer(), mtable.initializer])
            session.run(fill)
            for listener in listeners:
                listener.before_save(session, STEP)
            return saver.save(session, basename, global_step=STEP)


def model_fn(features, mode, config):
    assert mode == ModeKeys.PREDICT
    assert export_mode.is_exporting_standalone()
    table, mtable = make_tables()
    rows = table.lookup(features["ids"])
    mrows = mtable.lookup({"slot0": features["ids"]})["slot0"]
    return GraphSpec(
        mode,
        predictions=rows,
        export_outputs={
            "serving_default": PredictOutput({"rows": rows, "mrows": mrows}),
            "table/lookup": PredictOutput(rows),
            "mtable/lookup": PredictOutput(mrows),
        },
    )


def receive_ids() -> ServingInputReceiver:
    ids = v1.placeholder(tf.int64, [None])
    return ServingInputReceiver({"ids": ids}, {"ids": ids})


def make_exporter(tmp_path: pathlib.Path, fn=model_fn, **settings) -> StandaloneExporter:
    settings = {"model_dir": str(tmp_path / "model"), **settings}
    return StandaloneExporter(fn, export_dir_base=str(tmp_path / "exported"), **settings)


def infer(path, signature: str, features=(0,)) -> list:
    with import_saved_model(path, signature=signature) as call:
        return call(np.array(features, np.int64))["output"].tolist()


def make_scale_fn(name="scale", initializer=0.0):
    """A model without tables: a number times a variable."""

    def scale_fn(features, mode, config):
        scale = v1.get_variable(name, initializer=initializer)
        # The step of the checkpoint is there for models that use it.
        step = tf.cast(v1.train.get_global_step(), tf.float32)
        outputs = {"scaled": features["x"] * scale, "step": tf.identity(step)}
        return GraphSpec(mode, predictions=outputs)

    return scale_fn


def receive_x() -> ServingInputReceiver:
    x = v1.placeholder(tf.float32, [None])
    return ServingInputReceiver({"x": x}, {"x": x})


class TestStandalone:
    @pytest.mark.parametrize("shared_embedding", [False, True])
    def test_tables(self, tmp_path, shared_embedding):
        save_checkpoint(tmp_path / "model")
        exporter = make_exporter(tmp_path, shared_embedding=shared_embedding)
        export_dir = exporter.export_saved_model(receive_ids)
        assert isinstance(export_dir, bytes)
        base, version = os.path.split(os.fsdecode(export_dir))
        assert base == str(tmp_path / "exported")
        assert version.isdigit()
        assert infer(export_dir, "table/lookup") == [[1, 2]]
        assert infer(export_dir, "mtable/lookup") == [[1]]
        # Ids that nobody has trained have no row, also in another version of the model.
        assert infer(base, "table/lookup", [3, 0, 0]) == [[0, 0], [1, 2], [1, 2]]
        with import_saved_model(base, output_name=None) as call:
            outputs = call(np.array([0], np.int64))
        assert {name: rows.tolist() for name, rows in outputs.items()} == {
            "rows": [[1, 2]],
            "mrows": [[1]],
        }
        assert not export_mode.is_exporting()

    def test_model_with_its_own_rows_can_be_moved(self, tmp_path):
        save_checkpoint(tmp_path / "model")
        export_dir = make_exporter(tmp_path).export_saved_model(receive_ids)
        shutil.rmtree(tmp_path / "model")
        moved = tmp_path / "elsewhere" / "1"
        shutil.move(os.fsdecode(export_dir), moved)
        names = os.listdir(moved / "assets")
        assert {name[:-15] for name in names} == {
            f"{table}{kind}"
            for table in ("MonolithHashTable_test", "MonolithMultiHashTable_mtest")
            for kind in ("", ".meta")
        }
        assert infer(str(moved), "table/lookup") == [[1, 2]]
        assert infer(str(moved), "mtable/lookup") == [[1]]

    def test_model_that_shares_rows_has_none(self, tmp_path):
        save_checkpoint(tmp_path / "model")
        exporter = make_exporter(tmp_path, shared_embedding=True)
        export_dir = os.fsdecode(exporter.export_saved_model(receive_ids))
        assert not os.path.exists(os.path.join(export_dir, "assets"))
        shutil.rmtree(tmp_path / "model")
        with pytest.raises(errors.ConfigError, match=r"model\.ckpt-7\.assets.*shared_embedding"):
            infer(export_dir, "table/lookup")

    def test_table_decides_for_itself(self, tmp_path):
        def share_one(features, mode, config):
            spec = model_fn(features, mode, config)
            (table,) = v1.get_collection(single._HASH_TABLE_GRAPH_KEY)
            table.export_share_embedding = True
            return spec

        save_checkpoint(tmp_path / "model")
        export_dir = make_exporter(tmp_path, share_one).export_saved_model(receive_ids)
        names = os.listdir(os.path.join(os.fsdecode(export_dir), "assets"))
        assert {name.split("_")[0] for name in names} == {"MonolithMultiHashTable"}
        assert infer(export_dir, "table/lookup") == [[1, 2]]
        assert infer(export_dir, "mtable/lookup") == [[1]]

    def test_relative_paths_and_another_process(self, tmp_path):
        save_checkpoint(tmp_path / "model")
        for base, shared_embedding in (("shared", True), ("copied", False)):
            exporter = StandaloneExporter(model_fn, "model", base, shared_embedding)
            assert not os.path.isabs(exporter.export_saved_model(receive_ids))
        code = (
            "import sys, numpy as np\n"
            "from monolith.serving.loading import import_saved_model\n"
            "for path in sys.argv[1:]:\n"
            "    with import_saved_model(path, signature='mtable/lookup') as infer:\n"
            "        print(infer(np.array([0, 5]))['output'].tolist())\n"
        )
        (tmp_path / "elsewhere").mkdir()
        process = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "shared"), str(tmp_path / "copied")],
            cwd=tmp_path / "elsewhere",
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert process.returncode == 0, process.stderr
        assert process.stdout == "[[1.0], [0.0]]\n" * 2

    def test_variables_come_from_the_checkpoint(self, tmp_path):
        save_checkpoint(tmp_path / "model", {"scale": 3.0})
        exporter = make_exporter(tmp_path, make_scale_fn())
        with import_saved_model(exporter.export_saved_model(receive_x), output_name=None) as call:
            outputs = call([1.0, 2.0])
        assert outputs["scaled"].tolist() == [3, 6]
        assert outputs["step"] == STEP

    def test_given_checkpoint(self, tmp_path):
        first = save_checkpoint(tmp_path / "model", {"scale": 3.0})
        save_checkpoint(tmp_path / "other", {"scale": 5.0})
        exporter = make_exporter(tmp_path, make_scale_fn(), model_dir=str(tmp_path / "other"))
        export_dir = exporter.export_saved_model(receive_x, first, STEP)
        with import_saved_model(export_dir, output_name="scaled") as call:
            assert call([1.0])["scaled"].tolist() == [3]

    def test_tables_of_tensorflow_are_initialized(self, tmp_path):
        def words_fn(features, mode, config):
            init = tf.lookup.KeyValueTensorInitializer(["a", "b"], [10.0, 20.0])
            table = tf.lookup.StaticHashTable(init, -1.0)
            return GraphSpec(mode, predictions=table.lookup(features["feature"]))

        def receive_words():
            words = v1.placeholder(tf.string, [None])
            return ServingInputReceiver(words, words)

        save_checkpoint(tmp_path / "model")
        export_dir = make_exporter(tmp_path, words_fn).export_saved_model(receive_words)
        with import_saved_model(export_dir) as call:
            assert call(["b", "c"])["output"].tolist() == [20, -1]

    def test_every_export_gets_its_own_directory(self, tmp_path):
        save_checkpoint(tmp_path / "model")
        exporter = make_exporter(tmp_path)
        directories = {exporter.export_saved_model(receive_ids) for _ in range(2)}
        assert len(directories) == 2
        assert len(os.listdir(tmp_path / "exported")) == 2

    def test_exports_outside_of_the_cluster(self, tmp_path, monkeypatch):
        def check_fn(features, mode, config):
            assert "TF_CONFIG" not in os.environ
            assert config.model_dir == str(tmp_path / "model")
            assert config.num_ps_replicas == 0
            return model_fn(features, mode, config)

        tf_config = '{"cluster": {"chief": ["a:1"], "ps": ["b:1"]}, "task": {"type": "chief"}}'
        monkeypatch.setenv("TF_CONFIG", tf_config)
        save_checkpoint(tmp_path / "model")
        make_exporter(tmp_path, check_fn).export_saved_model(receive_ids)
        assert os.environ["TF_CONFIG"] == tf_config
        with pytest.raises(errors.ConfigError):
            make_exporter(tmp_path, check_fn).export_saved_model(None)
        assert os.environ["TF_CONFIG"] == tf_config
        assert not export_mode.is_exporting()

    def test_contexts(self, tmp_path):
        events = []

        class Context:
            def __enter__(self):
                events.append("enter")

            def __exit__(self, *args):
                events.append("exit")

        def check_fn(features, mode, config):
            events.append("build")
            return model_fn(features, mode, config)

        save_checkpoint(tmp_path / "model")
        exporter = make_exporter(tmp_path, check_fn, export_context_list=[Context])
        exporter.export_saved_model(receive_ids)
        assert events == ["enter", "build", "exit"]

    @pytest.mark.parametrize("exists", [True, False])
    def test_warmup_requests(self, tmp_path, exists):
        save_checkpoint(tmp_path / "model")
        path = tmp_path / "warmup_file"
        if exists:
            path.write_bytes(b"requests")
        exporter = make_exporter(tmp_path, warmup_file=str(path))
        assert exporter.gen_warmup_assets() == (
            {"tf_serving_warmup_requests": str(path)} if exists else None
        )
        export_dir = pathlib.Path(os.fsdecode(exporter.export_saved_model(receive_ids)))
        copied = export_dir / "assets.extra" / "tf_serving_warmup_requests"
        assert copied.exists() is exists
        assert not exists or copied.read_bytes() == b"requests"

    def test_historical_path(self):
        assert saved_model_exporters is export


class TestAssign:
    """What keeps the rows of a running model up to date."""

    def test_signatures(self, tmp_path):
        save_checkpoint(tmp_path / "model")
        export_dir = make_exporter(tmp_path).export_saved_model(receive_ids)
        with tf.Graph().as_default(), v1.Session() as session:
            meta_graph = v1.saved_model.load(session, ["serve"], os.fsdecode(export_dir))
            signatures = meta_graph.signature_def

            def call(name, **inputs):
                signature = signatures[name]
                feed = {signature.inputs[key].name: value for key, value in inputs.items()}
                fetches = {key: info.name for key, info in signature.outputs.items()}
                return session.run(fetches, feed)

            table = "MonolithHashTable_test"
            result = call(
                "hashtable_assign", **{f"{table}_id": [0, 4], f"{table}_value": [[5, 6], [7, 8]]}
            )
            assert result == {f"{table}_result": 2}
            assert call("table/lookup", ids=[0, 4])["output"].tolist() == [[5, 6], [7, 8]]
            result = call(
                "MonolithMultiHashTable_mtest/raw_assign",
                id=[0, 9],
                id_split=[0, 2],
                flat_value=[3.0, 4.0],
            )
            assert result == {"result": 0}
            assert call("mtable/lookup", ids=[9, 0])["output"].tolist() == [[4], [3]]
            # The same by the bytes of the rows as they are served, which are floats.
            result = call(
                "hashtable_assign_packed",
                **{
                    f"{table}_id": [4],
                    f"{table}_packed": np.array([9, 1], "<f4").view(np.uint8),
                    f"{table}_form": [packed_rows.make_form(packed_rows.FP32, 2)],
                },
            )
            assert result == {f"{table}_result": 1}
            assert call("table/lookup", ids=[0, 4])["output"].tolist() == [[5, 6], [9, 1]]
            result = call(
                "MonolithMultiHashTable_mtest/raw_assign_packed",
                id=[9, 0],
                id_split=[0, 2],
                packed=np.array([7, 8], "<f4").view(np.uint8),
                form=[packed_rows.make_form(packed_rows.FP32, 1)],
            )
            assert result == {"result": 2}
            assert call("mtable/lookup", ids=[9, 0])["output"].tolist() == [[7], [8]]

    def test_model_without_tables_has_none(self, tmp_path):
        save_checkpoint(tmp_path / "model", {"scale": 3.0})
        exporter = make_exporter(tmp_path, make_scale_fn())
        path = os.fsdecode(exporter.export_saved_model(receive_x))
        with tf.Graph().as_default(), v1.Session() as session:
            meta_graph = v1.saved_model.load(session, ["serve"], path)
        assert "serving_default" in meta_graph.signature_def
        # Only that of its variable.
        assert [name for name in meta_graph.signature_def if "assign" in name] == [
            "variables_assign"
        ]


class TestFromGraph:
    """The parts that an export of several graphs is made of."""

    def build(self, export_ctx, fn, receiver):
        exporter = StandaloneExporter(fn, model_dir="model", export_dir_base="exported")
        graph = tf.Graph()
        with graph.as_default():
            v1.train.create_global_step()
            exporter._model_fn_with_input_reveiver(receiver)
        assert "serving_default" in {s.name for s in export_ctx.signatures(graph)}
        return exporter, graph

    def test_without_restoring_anything(self, tmp_path):
        with export_mode.enter_export_mode(ExportMode.STANDALONE) as ctx:
            exporter, graph = self.build(ctx, make_scale_fn(initializer=11.0), receive_x)
            export_dir = exporter._export_saved_model_from_graph(
                graph, "", export_dir=str(tmp_path / "5"), restore_vars=False
            )
        assert export_dir == os.fsencode(tmp_path / "5")
        with import_saved_model(export_dir, output_name="scaled") as call:
            assert call([2.0])["scaled"].tolist() == [22]

    def test_without_rows_and_assignment(self, tmp_path):
        checkpoint = save_checkpoint(tmp_path / "model")
        with export_mode.enter_export_mode(ExportMode.STANDALONE) as ctx:
            exporter, graph = self.build(ctx, model_fn, receive_ids)
            exporter._export_saved_model_from_graph(
                graph,
                checkpoint,
                export_dir=str(tmp_path / "5"),
                restore_hashtable=False,
                assign_hashtable=False,
                export_ctx=ctx,
                export_tags=["mine"],
            )
        with tf.Graph().as_default(), v1.Session() as session:
            meta_graph = v1.saved_model.load(session, ["mine"], str(tmp_path / "5"))
            signature = meta_graph.signature_def["table/lookup"]
            rows = session.run(
                signature.outputs["output"].name, {signature.inputs["ids"].name: [0]}
            )
        assert rows.tolist() == [[0, 0]]
        assert not [name for name in meta_graph.signature_def if "assign" in name]

    def test_frozen_variables(self, tmp_path):
        checkpoint = save_checkpoint(tmp_path / "model", {"scale": 3.0})
        with export_mode.enter_export_mode(ExportMode.STANDALONE) as ctx:
            exporter, graph = self.build(ctx, make_scale_fn(), receive_x)
            export_dir = exporter._export_frozen_saved_model_from_graph(
                graph, checkpoint, export_dir_base=str(tmp_path / "frozen"), export_ctx=ctx
            )
        with import_saved_model(export_dir, output_name=None) as call:
            outputs = call([1.0, 2.0])
        assert outputs["scaled"].tolist() == [3, 6]
        assert outputs["step"] == STEP
        with tf.Graph().as_default() as graph, v1.Session() as session:
            v1.saved_model.load(session, ["serve"], os.fsdecode(export_dir))
            assert not [op.name for op in graph.get_operations() if op.type == "VarHandleOp"]

    def test_needs_an_export(self, tmp_path):
        exporter = make_exporter(tmp_path)
        with pytest.raises(RuntimeError, match="only inside of `enter_export_mode`"):
            exporter._export_saved_model_from_graph(tf.Graph(), "", export_dir=str(tmp_path / "5"))
        with pytest.raises(errors.ConfigError, match="needs `export_dir_base` or `export_dir`"):
            exporter._export_saved_model_from_graph(tf.Graph(), "")

    def test_asset_base_is_the_directory_of_assets(self, tmp_path):
        (tmp_path / "model.ckpt-1.assets").mkdir()
        (tmp_path / "model.ckpt-1.assets" / "a-file").write_text("text")
        with (
            tf.Graph().as_default() as graph,
            export_mode.enter_export_mode(ExportMode.STANDALONE) as ctx,
        ):
            base = export.BaseExporter.create_asset_base()
            assert base.name == "ASSET_BASE:0"
            export.BaseExporter.add_ckpt_to_assets(str(tmp_path / "model.ckpt-1"), "a-*")
            # Assets are known to the op that runs when the model is loaded.
            path = v1.get_variable("path", initializer="", dtype=tf.string)
            assign = path.assign(tf.strings.join([base, "a-file"]))
            v1.add_to_collection(v1.GraphKeys.TABLE_INITIALIZERS, assign.op)
            content = tf.io.read_file(path)
            ctx.add_signature(graph, "serving_default", {}, {"output": content})
            make_exporter(tmp_path)._export_saved_model_from_graph(
                graph, "", export_dir=str(tmp_path / "5"), restore_vars=False
            )
        os.remove(tmp_path / "model.ckpt-1.assets" / "a-file")
        os.rename(tmp_path / "5", tmp_path / "6")
        with import_saved_model(str(tmp_path / "6")) as call:
            assert call({})["output"] == b"text"

    def test_signature_of_infos(self):
        x = v1.placeholder(tf.float32, [None], name="x")
        info = v1.saved_model.build_tensor_info(x)
        signature = export.BaseExporter.build_signature({"x": info}, {"y": x})
        assert signature.inputs["x"].name == signature.outputs["y"].name == "x:0"
        assert signature.method_name == "tensorflow/serving/predict"


class TestErrors:
    def test_no_checkpoint(self, tmp_path):
        with pytest.raises(errors.ConfigError, match=r"model holds no checkpoint; train the model"):
            make_exporter(tmp_path).export_saved_model(receive_ids)

    def test_checkpoint_that_is_gone(self, tmp_path):
        save_checkpoint(tmp_path / "model")
        with pytest.raises(
            errors.ConfigError, match=r"ckpt-3 does not exist; the last one in .*-7"
        ):
            make_exporter(tmp_path).export_saved_model(receive_ids, "model.ckpt-3")

    def test_no_receiver_fn(self, tmp_path):
        save_checkpoint(tmp_path / "model")
        with pytest.raises(errors.ConfigError, match="needs a serving_input_receiver_fn, got None"):
            make_exporter(tmp_path).export_saved_model(None)

    def test_receiver_of_another_kind(self, tmp_path):
        save_checkpoint(tmp_path / "model")
        with pytest.raises(errors.ConfigError, match=r"must return a ServingInputReceiver.*got 3"):
            make_exporter(tmp_path).export_saved_model(lambda: 3)

    def test_feature_that_the_receiver_does_not_give(self, tmp_path):
        save_checkpoint(tmp_path / "model")
        with pytest.raises(
            errors.ConfigError, match=r"uses feature 'ids' .* it gives 'x'\. Add it"
        ):
            make_exporter(tmp_path).export_saved_model(receive_x)

    def test_nothing_to_export(self, tmp_path):
        save_checkpoint(tmp_path / "model")
        exporter = make_exporter(tmp_path, lambda features, mode, config: None)
        with pytest.raises(errors.ConfigError, match="nothing to export in mode PREDICT"):
            exporter.export_saved_model(receive_x)

    def test_missing_variable(self, tmp_path):
        save_checkpoint(tmp_path / "model", {"scale": 3.0})
        exporter = make_exporter(tmp_path, make_scale_fn("factor"))
        with pytest.raises(
            ValueError,
            match=r"^Could not load all requested variables from checkpoint\. .*: it has no factor",
        ):
            exporter.export_saved_model(receive_x)
        assert not os.path.exists(tmp_path / "exported")

    def test_variable_of_another_shape(self, tmp_path):
        save_checkpoint(tmp_path / "model", {"scale": 3.0})
        exporter = make_exporter(tmp_path, make_scale_fn(initializer=[1.0, 2.0]))
        with pytest.raises(ValueError, match=r"^Could not load all .* shape \[\], not \(2,\)\."):
            exporter.export_saved_model(receive_x)

    @pytest.mark.parametrize("removed", ["MonolithHashTable_test", "MonolithMultiHashTable_mtest"])
    def test_missing_table(self, tmp_path, removed):
        checkpoint = save_checkpoint(tmp_path / "model")
        for path in pathlib.Path(checkpoint + ".assets").glob(f"{removed}-*"):
            path.unlink()
        with pytest.raises(
            errors.ConfigError, match=rf"has no files of table {removed}; it has Monolith.*`num_ps`"
        ):
            make_exporter(tmp_path).export_saved_model(receive_ids)

    def test_no_tables_at_all(self, tmp_path):
        checkpoint = save_checkpoint(tmp_path / "model")
        shutil.rmtree(checkpoint + ".assets")
        with pytest.raises(errors.ConfigError, match="it has no tables at all"):
            make_exporter(tmp_path).export_saved_model(receive_ids)

    def test_directory_that_cannot_be_written(self, tmp_path):
        save_checkpoint(tmp_path / "model")
        (tmp_path / "exported").write_text("a file in the place of the directory")
        with pytest.raises(errors.ConfigError, match=r"cannot be exported to .* may write to\."):
            make_exporter(tmp_path).export_saved_model(receive_ids)

    def test_directory_where_none_can_be_made(self, tmp_path):
        save_checkpoint(tmp_path / "model")
        exporter = StandaloneExporter(
            model_fn, model_dir=str(tmp_path / "model"), export_dir_base="/proc/here"
        )
        with pytest.raises(errors.ConfigError, match=r"cannot be exported to .* may write to\."):
            exporter.export_saved_model(receive_ids)

    def test_export_inside_of_an_export(self, tmp_path):
        save_checkpoint(tmp_path / "model")
        with (
            export_mode.enter_export_mode(ExportMode.STANDALONE),
            pytest.raises(AssertionError, match="export mode can't be nested"),
        ):
            make_exporter(tmp_path).export_saved_model(receive_ids)


def test_restore_ops_of_a_graph_without_tables():
    assert export_tables.create_restore_ops("model.ckpt-1", shared_embedding=True) == ([], [])
