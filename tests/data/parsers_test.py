"""Parsing against protobuf's own reading of the same bytes."""

import os
import random
import subprocess
import sys

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from monolith import errors
from monolith.data import fids, parsers
from monolith.proto import example_pb2, line_id_pb2, proto_parser_pb2


def make_example(user: list[int], item: list[int], label: float, uid: int) -> example_pb2.Example:
    """Makes one with ids of version 2 as `user`, and of version 1 as `item`."""
    example = example_pb2.Example(label=[label])
    example.named_feature.add(name="user", id=1).feature.fid_v2_list.value.extend(user)
    example.named_feature.add(name="nobody").feature.bytes_list.value.append(b"x")
    example.named_feature.add(name="item").feature.fid_v1_list.value.extend(item)
    example.named_feature.add(name="price").feature.float_list.value.extend([uid, 0.5])
    example.line_id.uid = uid
    example.line_id.actions.extend([7, -1, 9][: uid % 4])
    example.line_id.user_id = f"user {uid}"
    return example


def make_batch(examples: list[example_pb2.Example]) -> example_pb2.ExampleBatch:
    """Makes the same by column, with the reserved names."""
    batch = example_pb2.ExampleBatch(batch_size=len(examples))
    names = ["user", "nobody", "item", "price"]
    for i, name in enumerate(names):
        column = batch.named_feature_list.add(name=name)
        column.feature.extend(example.named_feature[i].feature for example in examples)
    labels = batch.named_feature_list.add(name="__LABEL__")
    line_ids = batch.named_feature_list.add(name="__LINE_ID__")
    for example in examples:
        labels.feature.add().float_list.value.extend(example.label)
        line_id = example.line_id.SerializeToString()
        line_ids.feature.add().bytes_list.value.append(line_id)
    return batch


SETTINGS = {
    "sparse_features": ["user", "item"],
    "dense_features": ["label", "price", "instance_weight"],
    "dense_feature_shapes": [1, [2], [1]],
    "extra_features": ["uid", "actions", "user_id", "sample_rate"],
    "extra_feature_shapes": [1, 2, 1, 1],
}


@given(
    rows=st.lists(
        st.tuples(
            st.lists(st.integers(0, 2**63 - 1), max_size=4),
            st.lists(st.integers(0, 2**64 - 1), max_size=4),
            st.sampled_from([0.0, 1.0]),
            st.integers(0, 2**20),
        ),
        max_size=40,
    )
)
@settings(max_examples=30, deadline=None)
def test_examples_and_batches_hold_what_protobuf_reads(rows):
    examples = [make_example(*row) for row in rows]
    serialized = tf.constant([e.SerializeToString() for e in examples], tf.string, [len(rows)])
    batch = tf.constant(make_batch(examples).SerializeToString())
    for features in (
        parsers.parse_examples(serialized, **SETTINGS),
        parsers.parse_example_batch(batch, **SETTINGS),
    ):
        assert features["user"].to_list() == [user for user, _, _, _ in rows]
        items = [[fids.convert_v1_to_v2(fid) for fid in item] for _, item, _, _ in rows]
        assert features["item"].to_list() == items
        assert features["label"].numpy().tolist() == [[label] for _, _, label, _ in rows]
        assert features["price"].numpy().tolist() == [[uid, 0.5] for *_, uid in rows]
        assert features["instance_weight"].numpy().tolist() == [[1.0]] * len(rows)
        assert features["uid"].numpy().tolist() == [[uid] for *_, uid in rows]
        # Cut after two, or filled with zeros.
        actions = [([7, -1, 9][: uid % 4] + [0, 0])[:2] for *_, uid in rows]
        assert features["actions"].numpy().tolist() == actions
        assert features["user_id"].numpy().tolist() == [[b"user %d" % uid] for *_, uid in rows]
        # The default of the proto, where the record has none.
        assert features["sample_rate"].numpy().tolist() == [[1.0]] * len(rows)


def test_many_examples_are_parsed_in_their_order_by_several_threads():
    examples = [make_example([i] * (i % 3), [], i % 2, i) for i in range(1000)]
    serialized = tf.constant([e.SerializeToString() for e in examples])
    features = parsers.parse_examples(serialized, ["user"], ["label"])
    assert features["user"].to_list() == [[i] * (i % 3) for i in range(1000)]
    assert features["label"].numpy()[:, 0].tolist() == [i % 2 for i in range(1000)]


@pytest.mark.parametrize("num_batches", [1, 3])
def test_the_columns_of_few_batches_are_divided_among_threads(num_batches):
    examples = [make_example([i] * (i % 3), [], i % 2, i) for i in range(500)]
    batch = make_batch(examples).SerializeToString()
    features = parsers.parse_example_batch(tf.constant([batch] * num_batches), **SETTINGS)
    assert features["user"].to_list() == [[i] * (i % 3) for i in range(500)] * num_batches
    assert features["item"].to_list() == [[]] * 500 * num_batches
    assert features["label"].numpy()[:, 0].tolist() == [i % 2 for i in range(500)] * num_batches
    assert features["uid"].numpy()[:, 0].tolist() == list(range(500)) * num_batches
    assert features["price"].numpy()[:, 0].tolist() == list(range(500)) * num_batches


def test_shared_columns_are_the_same_in_all_rows():
    batch = example_pb2.ExampleBatch(batch_size=3)
    shared = batch.named_feature_list.add(name="user", type=example_pb2.SHARED)
    shared.feature.add().fid_v2_list.value.extend([4, 5])
    price = batch.named_feature_list.add(name="price", type=example_pb2.SHARED)
    price.feature.add().double_list.value.extend([0.25, 2])
    features = parsers.parse_example_batch(
        tf.constant([batch.SerializeToString()] * 2), ["user", "item"], ["price"], [2]
    )
    assert features["user"].to_list() == [[4, 5]] * 6
    assert features["item"].to_list() == [[]] * 6
    assert features["price"].numpy().tolist() == [[0.25, 2.0]] * 6


def test_instances_are_divided_by_slot_and_by_name():
    instance = proto_parser_pb2.Instance(label=[1, 0], instance_weight=2)
    first, second = fids.make_v1(1, 5), fids.make_v1(1023, (1 << 50) + 6)
    instance.fid.extend([first, second, fids.make_v1(7, 7), first + 1])
    instance.feature.add(name="page").fid.append(fids.make_v2(305, 9))
    instance.feature.add(name="age").int64_value.append(33)
    instance.line_id.req_time = -4
    serialized = tf.constant([instance.SerializeToString()])
    plain = parsers.parse_instances(
        serialized,
        [1, 1023],
        dense_features=["label", "age", "instance_weight"],
        dense_feature_shapes=[2, 1, 1],
        dense_feature_types=[tf.float32, tf.int64, tf.float32],
        extra_features=["req_time"],
    )
    assert plain["slot_1"].to_list() == [[first, first + 1]]
    assert plain["slot_1023"].to_list() == [[second - 2**64]]
    assert plain["label"].numpy().tolist() == [[1, 0]]
    assert plain["age"].numpy().tolist() == [[33]]
    assert plain["instance_weight"].numpy().tolist() == [[2]]
    assert plain["req_time"].numpy().tolist() == [[-4]]
    both = parsers.parse_instances(serialized, [1023], ["page"])
    assert both["slot_1023"].to_list() == [[fids.make_v2(1023, 6)]]
    assert both["page"].to_list() == [[fids.make_v2(305, 9)]]


class TestSlotsThatNobodyAskedFor:
    @staticmethod
    def make_records(*slots):
        instance = proto_parser_pb2.Instance(fid=[fids.make_v1(slot, 5) for slot in slots])
        return tf.constant([instance.SerializeToString()] * 200)

    def test_their_fids_are_counted(self):
        before = parsers.count_unasked_fids()
        features = parsers.parse_instances(self.make_records(1, 12, 1023, 12), [1])
        assert features["slot_1"].row_lengths().numpy().tolist() == [1] * 200
        # 3 fids in each of 200 records.
        assert parsers.count_unasked_fids() - before == 600
        with tf.Graph().as_default():
            assert parsers.count_unasked_fids() - before == 600
        parsers.parse_instances(self.make_records(1, 12), [1, 12])
        assert parsers.count_unasked_fids() - before == 600

    def test_those_of_damaged_records_are_not(self):
        good = self.make_records(1, 12)[:1]
        records = tf.concat([good, good + b"\x0a\x01\x00", good], axis=0)
        before = parsers.count_unasked_fids()
        features = parsers.parse_instances(records, [1], skip_damaged=True)
        assert features[parsers.NUM_SKIPPED] == 1
        assert parsers.count_unasked_fids() - before == 2

    def test_there_is_one_warning(self):
        code = """
import tensorflow as tf
from monolith.data import fids, parsers
from monolith.proto import proto_parser_pb2
instance = proto_parser_pb2.Instance(fid=[fids.make_v1(1, 5), fids.make_v1(12, 5)])
for _ in range(3):
    parsers.parse_instances([instance.SerializeToString()] * 200, [1])
"""
        # The tests themselves do not see warnings of ops.
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "0"}
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        told = "nobody has asked for, such as slot 12; they are left out, 200 of the first"
        assert done.stderr.count(told) == 1, done.stderr


@pytest.mark.parametrize(
    "parse",
    [
        pytest.param(lambda slot: parsers.parse_examples([b""], [slot]), id="examples"),
        pytest.param(lambda slot: parsers.parse_example_batch([b""], [slot]), id="batch"),
        pytest.param(lambda slot: parsers.parse_instances([b""], None, [slot]), id="instances"),
    ],
)
@pytest.mark.parametrize("slot", [-1, 1 << 15, 99999])
def test_slots_that_do_not_exist_are_refused(parse, slot):
    with pytest.raises(errors.ConfigError, match=f"less than 32768, while got {slot}"):
        parse(slot)


def test_shapes_are_known_in_a_graph():
    with tf.Graph().as_default():
        serialized = tf.compat.v1.placeholder(tf.string, [8])
        features = parsers.parse_examples(serialized, ["user"], ["price"], [[2, 3]])
        assert features["user"].row_splits.shape == [9]
        assert features["price"].shape[1:] == [2, 3]
        batch = parsers.parse_example_batch(serialized, ["user"], ["price"])
        assert batch["price"].shape.as_list() == [None, 1]


WRONG = make_example([1], [2], 1, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"sparse_features": ["price"]},
            "Record 1 is no Example that could be read: sparse feature 'price': it holds "
            "float_list, but sparse features are a fid_v1_list or a fid_v2_list",
        ),
        (
            {"sparse_features": [], "dense_features": ["price"]},
            "dense feature 'price': 'price' has 2 values, but its shape asks for 1",
        ),
        (
            {
                "sparse_features": [],
                "dense_features": ["price"],
                "dense_feature_types": [tf.int64],
            },
            "dense feature 'price': it holds floats",
        ),
        (
            {"sparse_features": [], "dense_features": ["nobody"]},
            "dense feature 'nobody': it holds strings",
        ),
        (
            {"sparse_features": [], "dense_features": ["label"], "dense_feature_shapes": [2]},
            "'label' has 1 values, but its shape asks for 2",
        ),
    ],
)
def test_a_record_that_does_not_fit_is_one_sentence(arguments, message):
    serialized = tf.constant([b"", WRONG.SerializeToString()])
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        parsers.parse_examples(serialized, **arguments)


def test_a_column_of_another_length_is_named():
    batch = make_batch([WRONG, WRONG])
    batch.batch_size = 3
    with pytest.raises(
        tf.errors.OutOfRangeError,
        match="ExampleBatch batch_size should be equal to named_feature size, while got 3 vs 2 for "
        "feature_name user",
    ):
        parsers.parse_example_batch(tf.constant(batch.SerializeToString()), ["user"])


def test_bad_arguments_are_refused():
    serialized = tf.constant([b""])
    with pytest.raises(errors.ConfigError, match="nothing is not in line id, pls check!"):
        parsers.parse_examples(serialized, [], extra_features=["nothing"])
    with pytest.raises(AssertionError, match="deplicate names, pls check!"):
        parsers.parse_examples(serialized, ["user"], ["user"])
    with pytest.raises(errors.ConfigError, match="float32, int64 or string"):
        parsers.parse_examples(serialized, [], ["x"], dense_feature_types=[tf.float16])
    with pytest.raises(errors.ConfigError, match="dense_feature_shapes must have one element"):
        parsers.parse_examples(serialized, [], ["x"], [1, 2])
    with pytest.raises(errors.ConfigError, match="The slot of 'user' is not known"):
        parsers.parse_instances(serialized, ["user"])
    with pytest.raises(errors.ConfigError, match="slot should be less than 1024, while got 1024"):
        parsers.parse_instances(serialized, [1024])


@pytest.mark.parametrize("kind", ["example", "example_batch", "instance"])
def test_damaged_bytes_are_skipped_and_counted_or_read_but_never_crash(kind):
    rng = random.Random(3)
    good = make_batch([WRONG, WRONG]) if kind == "example_batch" else WRONG
    if kind == "instance":
        line_id = line_id_pb2.LineId(uid=3)
        good = proto_parser_pb2.Instance(fid=[fids.make_v1(1, 2)], label=[1], line_id=line_id)
    records = []
    for _ in range(400):
        damaged = bytearray(good.SerializeToString())
        for _ in range(rng.randrange(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        records.append(bytes(damaged[: rng.choice([len(damaged), rng.randrange(len(damaged))])]))
    # What nobody could read at all.
    records += [b"\xff" * 9] * 5 + [good.SerializeToString()]
    parse = {
        "example": lambda x: parsers.parse_examples(x, ["user"], ["label"], skip_damaged=True),
        "example_batch": lambda x: parsers.parse_example_batch(
            x, ["user"], ["label"], skip_damaged=True
        ),
        "instance": lambda x: parsers.parse_instances(x, [1], None, ["label"], skip_damaged=True),
    }[kind]
    features = parse(tf.constant(records))
    num_skipped = int(features[parsers.NUM_SKIPPED])
    assert num_skipped >= 5
    rows = features["label"].shape[0]
    assert rows >= 1
    if kind != "example_batch":
        assert rows == len(records) - num_skipped
    sparse = features["slot_1" if kind == "instance" else "user"]
    assert sparse.nrows() == rows
    assert sparse[-1].numpy().tolist() == [fids.make_v1(1, 2) if kind == "instance" else 1]


class TestFusedLayouts:
    """Ids stay in the records, and are found there."""

    def make_configs(self, *names):
        configs = example_pb2.FeatureConfigs()
        for name in names:
            configs.feature_configs[name].table = name
            configs.feature_configs[name].slice_dims.append(2)
        return configs

    def divide(self, configs, features, input_type):
        sharded = parsers.sharding_sparse_fids(features, 2, configs, input_type=input_type)
        return tf.nest.map_structure(lambda tensor: tensor.numpy().tolist(), sharded._asdict())

    @pytest.mark.parametrize("kind", ["example", "examplebatch", "instance"])
    def test_the_records_are_among_the_features(self, kind):
        examples = [make_example([3, 4], [fids.make_v1(7, 1)], 1, 5), make_example([], [], 0, 6)]
        if kind == "example":
            parse, records = parsers.parse_examples, [e.SerializeToString() for e in examples]
        elif kind == "examplebatch":
            parse, records = parsers.parse_example_batch, make_batch(examples).SerializeToString()
        else:
            parse, records = parsers.parse_instances, []
            for v1, v2 in (([fids.make_v1(7, 1)], [3, 4]), ([], [])):
                instance = proto_parser_pb2.Instance(fid=v1)
                instance.feature.add(name="user").fid.extend(v2)
                instance.line_id.uid = 5
                records.append(instance.SerializeToString())
        # An Instance has fids of one kind.
        names = ["user"] if kind == "instance" else ["user", "item"]
        arguments = {"extra_features": ["uid"]}
        arguments["fidv2_features" if kind == "instance" else "sparse_features"] = names
        parsed = parse(tf.constant(records), **arguments)
        with parsers.ParserCtx(enable_fused_layout=True) as ctx:
            features = parse(tf.constant(records), **arguments)
        assert features.keys() == {"__sharding_sparse_fids__sparse_features", "uid"}
        assert features["uid"].numpy().tolist() == parsed["uid"].numpy().tolist()
        assert ctx.parser_type == kind
        configs = self.make_configs(*names)
        assert self.divide(
            configs, features[parsers.SPARSE_FEATURES], ctx.parser_type
        ) == self.divide(configs, parsed, "ragged")

    def test_slots_of_instances(self):
        instance = proto_parser_pb2.Instance(fid=[fids.make_v1(7, 1), fids.make_v1(8, 1)])
        records = [instance.SerializeToString()]
        before = parsers.count_unasked_fids()
        parsed = parsers.parse_instances(records, fidv1_features=[7])
        with parsers.ParserCtx(enable_fused_layout=True):
            features = parsers.parse_instances(records, fidv1_features=[7])
        # In both, that of slot 8.
        assert parsers.count_unasked_fids() - before == 2
        assert features.keys() == {parsers.SPARSE_FEATURES}
        configs = self.make_configs("slot_7")
        assert self.divide(configs, features[parsers.SPARSE_FEATURES], "instance") == self.divide(
            configs, parsed, "ragged"
        )

    def test_nothing_else_may_be_done_to_ids(self):
        with parsers.ParserCtx(enable_fused_layout=True):
            with pytest.raises(errors.ConfigError, match="so that damaged ones cannot be left out"):
                parsers.parse_examples([b""], ["user"], skip_damaged=True)
            with pytest.raises(errors.ConfigError, match="they are to be version 2 and 'slot_7'"):
                parsers.parse_instances([b""], [7], ["user"])
            with pytest.raises(errors.ConfigError, match="call `parse_example_batch`, or leave"):
                parsers.parse_example_batch_list([b""], names=["user"])


class TestListsOfBatches:
    EXAMPLES = tuple(make_example([i], [], i / 2, i) for i in range(4))

    @property
    def batches(self):
        parts = (self.EXAMPLES[:1], self.EXAMPLES[1:])
        return [tf.constant(make_batch(list(part)).SerializeToString()) for part in parts]

    def test_as_if_they_were_one(self):
        features = parsers.parse_example_batch_list(
            self.batches,
            names=["user", "label", "price", "nobody", "actions"],
            shapes=[None, 1, [2], 1, 2],
            dtypes=[tf.int64, None, tf.float32, tf.string, None],
            extra_features=["actions", "uid"],
        )
        assert features["user"].to_list() == [[0], [1], [2], [3]]
        assert features["label"].numpy().tolist() == [[0], [0.5], [1], [1.5]]
        assert features["price"].numpy().tolist() == [[i, 0.5] for i in range(4)]
        assert features["nobody"].numpy().tolist() == [[b"x"]] * 4
        assert features["actions"].numpy().tolist() == [[0, 0], [7, 0], [7, -1], [7, -1]]
        assert features["uid"].numpy().tolist() == [[0], [1], [2], [3]]
        assert len(features) == 6

    def test_labels_of_actions(self):
        # The actions of the rows: none; 7; 7 and -1; 7, -1 and 9.
        features = parsers.parse_example_batch_list(
            self.batches, "9:-1;7:;9:", 2.0, -1.0, names=["user", "label"], extra_features=["uid"]
        )
        invalid = float(tf.float32.min)
        expected = [[invalid, -1, -1], [invalid, 2, -1], [-1, 2, -1], [2, 2, 2]]
        assert features["label"].numpy().tolist() == expected
        assert features["uid"].numpy().tolist() == [[0], [1], [2], [3]]
        assert sorted(features) == ["label", "uid", "user"]

    def test_without_config_labels_are_those_of_the_data(self):
        for config in (None, ""):
            features = parsers.parse_example_batch_list(self.batches, config, names=["label"])
            assert features["label"].numpy().tolist() == [[0], [0.5], [1], [1.5]]

    def test_batches_without_line_ids_have_no_actions(self):
        batch = example_pb2.ExampleBatch(batch_size=2).SerializeToString()
        features = parsers.parse_example_batch_list([batch], "1:2;1:")
        assert features["label"].numpy().tolist() == [[float(tf.float32.min), 0]] * 2

    def test_in_a_graph(self):
        serialized = [batch.numpy() for batch in self.batches]
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            tensors = [tf.compat.v1.placeholder(tf.string, []) for _ in serialized]
            features = parsers.parse_example_batch_list(tensors, "7:", names=["user"])
            label = session.run(features["label"], dict(zip(tensors, serialized, strict=True)))
        assert label.tolist() == [[0], [1], [1], [1]]

    def test_what_is_refused(self):
        for arguments, message in (
            ({"names": ["user"], "dtypes": [tf.string]}, "'user' has no shape and so is sparse"),
            ({"names": ["user"], "shapes": []}, "shapes must have one element"),
            ({"names": ["label"], "shapes": [3], "label_config": "1:"}, "has 1 tasks, but"),
            ({"label_config": "1"}, "A task is positive:negative"),
            ({"extra_features": ["nobody"]}, "is not in line id"),
        ):
            with pytest.raises(errors.ConfigError, match=message):
                parsers.parse_example_batch_list(self.batches, **arguments)
        with pytest.raises(errors.ConfigError, match="`tensors` is empty"):
            parsers.parse_example_batch_list([])
