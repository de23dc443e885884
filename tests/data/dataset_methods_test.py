"""Methods of datasets, and what tells them what the rows are."""

import pytest
import tensorflow as tf

from monolith import errors
from monolith.data import dataset_methods, record_datasets, transforms
from monolith.data.framing import Framing
from monolith.data.record_datasets import CacheOneDataset, PBDataset, PbType, TransformDataset
from monolith.proto import example_pb2


def make_rows(count=4):
    rows = [example_pb2.Example(label=[i]).SerializeToString() for i in range(count)]
    return tf.data.Dataset.from_tensor_slices(rows)


def read_labels(rows):
    return [example_pb2.Example.FromString(row).label[0] for row in rows.as_numpy_iterator()]


class TestTransform:
    def test_the_dataset(self):
        dataset = TransformDataset(make_rows(), transforms.FilterByLabel([2.0]), "example")
        assert read_labels(dataset) == [2, 3]
        assert dataset.element_spec == tf.TensorSpec([], tf.string)

    def test_the_method(self):
        kept = make_rows().transform(transforms.FilterByLabel([3.0]), "example")
        assert isinstance(kept, TransformDataset)
        assert read_labels(kept) == [3]

    def test_the_collection_tells_what_rows_are(self, tmp_path):
        rows = list(make_rows().as_numpy_iterator())
        (tmp_path / "part-0").write_bytes(b"".join(map(Framing().make_record, rows)))
        with tf.Graph().as_default() as graph:
            dataset = PBDataset(str(tmp_path / "part-0"), input_pb_type=PbType.EXAMPLE)
            assert graph.get_collection(record_datasets.OUTPUT_PB_TYPE_GRAPH_KEY) == ["example"]
            iterator = tf.compat.v1.data.make_one_shot_iterator(
                dataset.transform(transforms.FilterByLabel([3.0])).batch(9)
            )
            batch = iterator.get_next()
            with tf.compat.v1.Session() as session:
                assert session.run(batch).tolist() == [rows[3]]

    @pytest.mark.parametrize(
        "types", [[], ["example", "instance"], ["plaintext"]], ids=["none", "two", "other"]
    )
    def test_a_collection_that_does_not_tell_is_refused(self, types):
        with tf.Graph().as_default():
            tf.compat.v1.get_collection_ref(dataset_methods.OUTPUT_PB_TYPE_GRAPH_KEY).extend(types)
            with pytest.raises(errors.ConfigError, match="must say whether rows are"):
                make_rows().transform(transforms.FilterByLabel([3.0]))

    def test_in_eager_mode_it_is_an_argument(self):
        with pytest.raises(errors.ConfigError, match="give `variant_type`"):
            make_rows().transform(transforms.FilterByLabel([3.0]))


def test_distribute_leaves_a_dataset_as_it_is():
    rows = make_rows()
    assert rows.distribute("any", cluster="thing") is rows


class TestCacheOne:
    @pytest.mark.parametrize("count", [0, 1, 2, 5])
    def test_the_last_element_is_marked(self, count):
        found = list(CacheOneDataset(tf.data.Dataset.range(count)).as_numpy_iterator())
        assert found == [(i, i == count - 1) for i in range(count)]

    def test_elements_with_parts(self):
        data = tf.data.Dataset.range(2).map(lambda x: (x, {"twice": 2 * x}))
        found = [(element[0], element[1]["twice"], last) for element, last in CacheOneDataset(data)]
        assert [tuple(map(int, item)) for item in found] == [(0, 0, 0), (1, 2, 1)]

    def test_the_input_is_read_once(self):
        data = tf.data.Dataset.range(20).shuffle(20)
        assert sorted(int(x) for x, _ in CacheOneDataset(data)) == list(range(20))


def test_the_names_of_the_historical_path():
    assert record_datasets.POOL_KEY == "TF_ITEMPOOL"
    assert record_datasets.OUTPUT_PB_TYPE_GRAPH_KEY == "monolith_dataset_output_pb_type"
