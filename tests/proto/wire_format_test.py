"""The messages are a format on disk and on the wire: names, numbers and bytes are pinned here."""

import importlib

import pytest
from google.protobuf import descriptor, text_format

from monolith import native_training
from monolith.proto import (
    agent_service_pb2,
    alert_pb2,
    ckpt_hooks_pb2,
    ckpt_info_pb2,
    controller_hooks_pb2,
    data_op_config_pb2,
    debugging_info_pb2,
    embedding_hash_table_pb2,
    example_pb2,
    export_pb2,
    feature_pb2,
    hash_table_ops_pb2,
    line_id_pb2,
    logging_ops_pb2,
    monolith_checkpoint_state_pb2,
    monolith_model_pb2,
    multi_hash_table_ops_pb2,
    optimizer_pb2,
    parameter_sync_pb2,
    primus_am_service_pb2,
    primus_am_service_pb2_grpc,
    proto_parser_pb2,
    service_pb2,
    service_pb2_grpc,
    transform_config_pb2,
)


def make_entry_dump(row_id, values, ts_sec):
    return embedding_hash_table_pb2.EntryDump(id=row_id, num=values, last_update_ts_sec=ts_sec)


def assert_wire(message, hex_bytes):
    expected = bytes.fromhex(hex_bytes)
    assert message.SerializeToString(deterministic=True) == expected
    assert type(message).FromString(expected) == message


class TestEntryDumpBytes:
    def test_sgd_row(self):
        dump = make_entry_dump(1, [1.0], ts_sec=100)
        dump.opt.dump.add().sgd.SetInParent()
        assert_wire(dump, "09 0100000000000000 15 0000803f 1a04 0a02 1200 2064")

    def test_adagrad_row_with_negative_id(self):
        dump = make_entry_dump(-1, [0.5, -0.5], ts_sec=1234)
        dump.opt.dump.add().adagrad.norm.extend([1, 2])
        assert_wire(
            dump,
            "09ffffffffffffffff 150000003f 15000000bf 1a0e 0a0c 0a0a 0d0000803f 0d00000040 20d209",
        )

    def test_zero_timestamp_is_written(self):
        assert_wire(make_entry_dump(0, [], ts_sec=0), "09 0000000000000000 2000")

    def test_packed_floats_are_read_too(self):
        packed = bytes.fromhex("09 0100000000000000 1208 0000803f 00000040 2064")
        assert embedding_hash_table_pb2.EntryDump.FromString(packed) == make_entry_dump(
            1, [1.0, 2.0], ts_sec=100
        )

    def test_ftrl_writes_all_zeros_before_all_norms(self):
        dump = optimizer_pb2.SingleOptimizerDump()
        dump.ftrl.norm.extend([1, 2])
        dump.ftrl.zero.extend([0.5, -0.5])
        assert_wire(dump, "1a14 0d0000003f 0d000000bf 150000803f 1500000040")

    @pytest.mark.parametrize(
        ("member", "fields", "hex_bytes"),
        [
            ("adagrad", {"norm": [1]}, "0a05 0d0000803f"),
            ("sgd", {}, "1200"),
            ("ftrl", {"zero": [1], "norm": [1]}, "1a0a 0d0000803f 150000803f"),
            ("dynamic_wd_adagrad", {"norm": [1], "last_update_step": 7}, "2207 0d0000803f 1007"),
            ("adadelta", {"accum": [1], "accum_update": [1]}, "320a 0d0000803f 150000803f"),
            (
                "adam",
                {"m": [1], "v": [1], "beta1_power": 1, "beta2_power": 1},
                "3a14 0d0000803f 150000803f 1d0000803f 250000803f",
            ),
            (
                "amsgrad",
                {"m": [1], "v": [1], "vhat": [1], "beta1_power": 1, "beta2_power": 1},
                "4219 0d0000803f 150000803f 1d0000803f 250000803f 2d0000803f",
            ),
            ("momentum", {"n": [1]}, "4a05 0d0000803f"),
            ("rmsprop", {"n": [1]}, "5a05 0d0000803f"),
            ("rmspropv2", {"n": [1]}, "6205 0d0000803f"),
            ("group_ftrl", {"zero": [1], "norm": [1]}, "6a0a 0d0000803f 150000803f"),
            ("batch_softmax", {"global_step": 7}, "7202 0807"),
            ("group_adagrad", {"grad_square_sum": 1}, "7a05 0d0000803f"),
        ],
    )
    def test_optimizer_state(self, member, fields, hex_bytes):
        dump = optimizer_pb2.SingleOptimizerDump(**{member: fields})
        assert_wire(dump, hex_bytes)

    def test_threshold_of_a_table(self):
        config = embedding_hash_table_pb2.EmbeddingHashTableConfig(occurrence_threshold=2)
        assert_wire(config, "a00602")
        assert not embedding_hash_table_pb2.EmbeddingHashTableConfig().HasField(
            "occurrence_threshold"
        )

    def test_table_metadata(self):
        metadata = embedding_hash_table_pb2.MultiHashTableMetadata(
            table_name="slot0", num_entries=2
        )
        assert_wire(metadata, "0a05736c6f7430 1002")

    def test_filter_cells_are_not_packed(self):
        data = embedding_hash_table_pb2.HashFilterSplitDataDump(offset=3, data=[1, 300])
        assert_wire(data, "0803 1001 10ac02")


class TestOtherBytes:
    def test_healthy_machine_is_empty(self):
        assert_wire(logging_ops_pb2.MachineHealthResult(), "")

    def test_push_request_embeddings_are_not_packed(self):
        table = parameter_sync_pb2.PushRequest.DeltaEmbeddingHashTable(
            fids=[1, 2], embeddings=[1.0, 0.5]
        )
        assert_wire(table, "1801 1802 250000803f 250000003f")

    def test_line_id_packs_actions_but_not_special_strategies(self):
        line_id = line_id_pb2.LineId(actions=[1, 2], special_strategies=[3, 4])
        # 39 << 3 is 312, the varint b802.
        assert_wire(line_id, "32020102 b80203 b80204")

    def test_instance_packs_fids(self):
        instance = proto_parser_pb2.Instance(fid=[1, 2])
        assert_wire(instance, "0a10 0100000000000000 0200000000000000")

    def test_proto3_lists_are_packed(self):
        assert_wire(example_pb2.FidList(value=[1]), "0a08 0100000000000000")


@pytest.mark.parametrize(
    ("message", "field", "default"),
    [
        (optimizer_pb2.AdagradOptimizerConfig, "learning_rate", 0.001),
        (optimizer_pb2.AdagradOptimizerConfig, "initial_accumulator_value", 0.1),
        (optimizer_pb2.AdagradOptimizerConfig, "hessian_compression_times", 1),
        (optimizer_pb2.DynamicWdAdagradOptimizerConfig, "dynamic_wd_temperature", 1),
        (optimizer_pb2.SgdOptimizerConfig, "learning_rate", 0.01),
        (optimizer_pb2.FtrlOptimizerConfig, "beta", 0),
        (optimizer_pb2.FtrlOptimizerConfig, "initial_accumulator_value", 0.1),
        (optimizer_pb2.GroupFtrlOptimizerConfig, "beta", 1),
        (optimizer_pb2.GroupFtrlOptimizerConfig, "initial_accumulator_value", 0),
        (optimizer_pb2.GroupAdaGradOptimizerConfig, "initial_accumulator_value", 0.1),
        (optimizer_pb2.AdadeltaOptimizerConfig, "averaging_ratio", 0.9),
        (optimizer_pb2.AdadeltaOptimizerConfig, "epsilon", 0.01),
        (optimizer_pb2.AdamOptimizerConfig, "beta1", 0.9),
        (optimizer_pb2.AdamOptimizerConfig, "beta2", 0.99),
        (optimizer_pb2.AmsgradOptimizerConfig, "epsilon", 0.01),
        (optimizer_pb2.MomentumOptimizerConfig, "momentum", 0.9),
        (optimizer_pb2.MovingAverageOptimizerConfig, "momentum", 0.9),
        (optimizer_pb2.BatchSoftmaxOptimizerConfig, "learning_rate", 0.1),
        (optimizer_pb2.RmspropOptimizerConfig, "momentum", 0.9),
        (optimizer_pb2.RmspropV2OptimizerConfig, "learning_rate", 0.01),
        (optimizer_pb2.DcOptimizerConfig, "lambda_", 0),
        (embedding_hash_table_pb2.RandomUniformInitializerConfig, "minval", -0.05),
        (embedding_hash_table_pb2.RandomUniformInitializerConfig, "maxval", 0.05),
        (embedding_hash_table_pb2.FloatCompressorConfig.FixedR8, "r", 1),
        (embedding_hash_table_pb2.FloatCompressorConfig.OneBit, "step_size", 200),
        (embedding_hash_table_pb2.FloatCompressorConfig.OneBit, "max_scale", 10000),
        (embedding_hash_table_pb2.FloatCompressorConfig.OneBit, "amplitude", 0.1),
        (embedding_hash_table_pb2.EntryConfig, "entry_type", 1),
        (embedding_hash_table_pb2.EntryConfig, "storage", 0),
        (embedding_hash_table_pb2.EmbeddingHashTableConfig, "entry_type", 1),
        (embedding_hash_table_pb2.EmbeddingHashTableConfig, "initial_capacity", 1),
        (embedding_hash_table_pb2.EmbeddingHashTableConfig, "feature_evict_every_n_hours", 240),
        (embedding_hash_table_pb2.SlotExpireTimeConfig, "default_expire_time", 36500),
        (embedding_hash_table_pb2.SlotOccurrenceThresholdConfig, "default_occurrence_threshold", 0),
        # The first value of the enum in file order is the default of an optional enum.
        (hash_table_ops_pb2.HashTableProto, "export_share_embedding", -1),
        (alert_pb2.AlertProto, "check_interval_sec", 1800),
        (parameter_sync_pb2.PushRequest, "timeout_in_ms", 1000),
        (parameter_sync_pb2.ClientConfig, "timeout_in_ms", 1000),
        (parameter_sync_pb2.ClientConfig.TargetExtraInfo, "replica_id", -1),
        (data_op_config_pb2.TaskLabelConf, "sample_rate", 1.0),
        (transform_config_pb2.AddLabelConfig, "negative_value", 0.0),
        (transform_config_pb2.AddLabelConfig, "new_sample_rate", 1.0),
        (line_id_pb2.LineId, "sample_rate", 1.0),
    ],
    ids=lambda value: value.DESCRIPTOR.name if hasattr(value, "DESCRIPTOR") else None,
)
def test_default(message, field, default):
    # Floats are stored in 32 bits.
    assert getattr(message(), field) == pytest.approx(default, rel=1e-7)


def make_numbers(message):
    return {field.name: field.number for field in message.DESCRIPTOR.fields}


@pytest.mark.parametrize(
    ("message", "numbers"),
    [
        (
            optimizer_pb2.OptimizerConfig,
            {
                "adagrad": 1,
                "sgd": 2,
                "ftrl": 3,
                "stochastic_rounding_float16": 4,
                "dynamic_wd_adagrad": 5,
                "adadelta": 6,
                "adam": 7,
                "amsgrad": 8,
                "momentum": 9,
                "moving_average": 10,
                "rmsprop": 11,
                "rmspropv2": 12,
                "dc": 13,
                "group_ftrl": 14,
                "batch_softmax": 15,
                "group_adagrad": 16,
            },
        ),
        (
            optimizer_pb2.AdamOptimizerConfig,
            {
                "dim_size": 1,
                "learning_rate": 2,
                "beta1": 3,
                "beta2": 4,
                "use_beta1_warmup": 5,
                "weight_decay_factor": 6,
                "use_nesterov": 7,
                "epsilon": 8,
                "warmup_steps": 9,
            },
        ),
        (embedding_hash_table_pb2.EntryConfig, {"segments": 1, "entry_type": 2, "storage": 100}),
        (
            embedding_hash_table_pb2.EntryConfig.Segment,
            {"init_config": 1, "opt_config": 2, "comp_config": 3, "dim_size": 7},
        ),
        (
            embedding_hash_table_pb2.EmbeddingHashTableConfig,
            {
                "entry_config": 1,
                "initial_capacity": 2,
                "slot_expire_time_config": 3,
                "cuckoo": 5,
                "entry_type": 6,
                "enable_feature_eviction": 7,
                "feature_evict_every_n_hours": 8,
                "skip_zero_embedding": 10,
                "occurrence_threshold": 100,
            },
        ),
        (
            embedding_hash_table_pb2.InitializerConfig,
            {"zeros": 1, "random_uniform": 2, "ones": 3, "constants": 15},
        ),
        (
            monolith_checkpoint_state_pb2.MonolithCheckpointState,
            {
                "exempt_model_checkpoint_paths": 1,
                "last_checkpoint_save_timestamp": 2,
                "builtin_hash_table_type": 3,
            },
        ),
        (
            alert_pb2.AlertProto,
            {
                "alert_message": 1,
                "kafka_alert": 2,
                "training_alert": 3,
                "start_delay_sec": 1000,
                "check_interval_sec": 10001,
            },
        ),
        (
            line_id_pb2.LineId,
            {
                "uid": 2,
                "req_time": 3,
                "item_id": 4,
                "actions": 6,
                "chnid": 19,
                "pre_actions": 23,
                "sample_rate": 27,
                "special_strategies": 39,
                "device_type": 41,
                "cid": 48,
                "user_id": 49,
                "is_draw": 87,
                "rank": 145,
                "data_source_name": 235,
            },
        ),
        (
            example_pb2.Example,
            {
                "named_feature": 1,
                "named_raw_feature": 2,
                "line_id": 100,
                "label": 101,
                "instance_weight": 102,
                "data_source_key": 103,
            },
        ),
        (example_pb2.NamedFeature, {"name": 1, "feature": 2, "id": 3, "sorted_id": 6}),
        (
            example_pb2.Feature,
            {
                "fid_v1_list": 1,
                "fid_v2_list": 2,
                "float_list": 3,
                "double_list": 4,
                "int64_list": 5,
                "bytes_list": 6,
                "fid_v2_lists": 7,
                "float_lists": 8,
                "double_lists": 9,
                "int64_lists": 10,
                "bytes_lists": 11,
                "int64_value": 12,
                "float_value": 13,
                "double_value": 14,
                "bytes_value": 15,
                "fid_v1_lists": 16,
            },
        ),
        (
            primus_am_service_pb2.KillRequest,
            {"exit_code": 1, "diagnose": 2, "graceful_shutdown_timeout_ms": 3},
        ),
    ],
    ids=lambda value: value.DESCRIPTOR.name if hasattr(value, "DESCRIPTOR") else "",
)
def test_field_numbers(message, numbers):
    assert make_numbers(message) == numbers


@pytest.mark.parametrize(
    ("enum", "values"),
    [
        (example_pb2.PoolingType, {"SUM": 0, "MEAN": 1, "FIRSTN": 3}),
        (example_pb2.OutType, {"CONCAT": 0, "STACK": 1, "ADDN": 2, "NONE": 3}),
        (example_pb2.FeatureListType, {"INDIVIDUAL": 0, "SHARED": 1}),
        (
            embedding_hash_table_pb2.EntryConfig.EntryType,
            {"UNKNOWN": 0, "TRAINING": 1, "SERVING": 2},
        ),
        (
            embedding_hash_table_pb2.EntryConfig.Storage,
            {"FLOAT32": 0, "FLOAT16": 1, "INT8": 2},
        ),
        (embedding_hash_table_pb2.EmbeddingHashTableConfig.EntryType, {"PACKED": 1, "RAW": 2}),
        (
            hash_table_ops_pb2.HashTableProto.OptionalBool,
            {"kBoolNone": -1, "kFalse": 0, "kTrue": 1},
        ),
        (
            controller_hooks_pb2.ControllerHooksProto.Action,
            {"UNKNOWN": 0, "TRIGGER_SAVE": 1, "STOP": 2},
        ),
        (agent_service_pb2.ServerType, {"PS": 0, "ENTRY": 1, "DENSE": 2}),
        (monolith_model_pb2.Combiner, {"ReduceSum": 0, "ReduceMean": 1, "FirstN": 2}),
        (
            primus_am_service_pb2.CreateSavepointStatusResponse.CreateSavepointState,
            {"PENDING": 0, "RUNNING": 1, "SUCCEEDED": 2, "FAILED": 3},
        ),
    ],
    ids=lambda value: value.DESCRIPTOR.name if hasattr(value, "DESCRIPTOR") else "",
)
def test_enum_values(enum, values):
    assert dict(enum.items()) == values


@pytest.mark.parametrize(
    ("message", "full_name"),
    [
        (embedding_hash_table_pb2.EntryDump, "monolith.hash_table.EntryDump"),
        (optimizer_pb2.RmspropV2OptimizerDump, "monolith.hash_table.RmspropV2OptimizerDump"),
        (optimizer_pb2.GroupAdaGradOptimizerDump, "monolith.hash_table.GroupAdaGradOptimizerDump"),
        (hash_table_ops_pb2.HashTableProto, "monolith.HashTableProto"),
        (multi_hash_table_ops_pb2.MultiHashTableProto, "monolith.MultiHashTableProto"),
        (ckpt_hooks_pb2.WorkerCkptInfo, "monolith.hooks.WorkerCkptInfo"),
        (ckpt_info_pb2.CkptInfo, "monolith.CkptInfo"),
        (controller_hooks_pb2.ControllerHooksProto, "monolith.ControllerHooksProto"),
        (
            monolith_checkpoint_state_pb2.MonolithCheckpointState,
            "monolith.native_training.MonolithCheckpointState",
        ),
        (debugging_info_pb2.DebuggingInfo, "DebuggingInfo"),
        (alert_pb2.AlertProto, "monolith.AlertProto"),
        (logging_ops_pb2.MachineHealthResult, "tensorflow.monolith_tf.MachineHealthResult"),
        (parameter_sync_pb2.PushRequest, "monolith.parameter_sync.PushRequest"),
        (service_pb2.GetBlockStatusResponse, "GetBlockStatusResponse"),
        (export_pb2.ServingModelState, "monolith.model_export.ServingModelState"),
        (data_op_config_pb2.LabelConf, "monolith.native_training.data.config.LabelConf"),
        (transform_config_pb2.TransformConfig, "monolith.native_training.data.TransformConfig"),
        (monolith_model_pb2.ModelDump, "monolith.native_training.model_dump.ModelDump"),
        (
            agent_service_pb2.HeartBeatResponse,
            "monolith.serving.agent_service.HeartBeatResponse",
        ),
        (primus_am_service_pb2.PSInfo, "primus.PSInfo"),
        (example_pb2.ExampleBatch, "monolith.io.proto.ExampleBatch"),
        (feature_pb2.Feature, "idl.matrix.proto.Feature"),
        (line_id_pb2.LineId, "idl.matrix.proto.LineId"),
        (proto_parser_pb2.Instance, "parser.proto.Instance"),
    ],
    ids=lambda value: None if isinstance(value, str) else "",
)
def test_full_name(message, full_name):
    assert message.DESCRIPTOR.full_name == full_name


def test_sub_configs_are_visible_through_the_table_module():
    assert embedding_hash_table_pb2.OptimizerConfig is optimizer_pb2.OptimizerConfig
    assert monolith_model_pb2.OptimizerConfig is optimizer_pb2.OptimizerConfig
    assert hasattr(embedding_hash_table_pb2, "InitializerConfig")
    assert hasattr(embedding_hash_table_pb2, "FloatCompressorConfig")


def test_value_filter_needs_field_and_op():
    fields = transform_config_pb2.FilterByValueConfig.DESCRIPTOR.fields_by_name
    required = {name for name, field in fields.items() if field.is_required}
    assert required == {"field_name", "op"}
    assert not transform_config_pb2.FilterByValueConfig(field_name="uid").IsInitialized()


def test_ckpt_info_text_form():
    info = ckpt_info_pb2.CkptInfo(slot_counts={3: 10}, feature_counts={"user": 4})
    text = text_format.MessageToString(info)
    assert text == (
        'slot_counts {\n  key: 3\n  value: 10\n}\nfeature_counts {\n  key: "user"\n  value: 4\n}\n'
    )
    assert text_format.Parse(text, ckpt_info_pb2.CkptInfo()) == info


def make_method_names(service: descriptor.ServiceDescriptor) -> list[str]:
    return [method.name for method in service.methods]


def test_controller_service():
    service = service_pb2.DESCRIPTOR.services_by_name["Controller"]
    assert service.full_name == "Controller"
    assert make_method_names(service) == [
        "StopTraining",
        "ResumeTraining",
        "GetBlockStatus",
        "SaveCheckpoint",
        "GetTrainingStatus",
    ]
    assert hasattr(service_pb2_grpc, "add_ControllerServicer_to_server")


def test_primus_service_keeps_its_method_names_and_messages():
    service = primus_am_service_pb2.DESCRIPTOR.services_by_name["AppMasterService"]
    assert service.full_name == "primus.AppMasterService"
    assert make_method_names(service) == [
        "ponyHeartbeat",
        "ponyGetPSInfo",
        "ponyStartWorker",
        "succeed",
        "kill",
        "suspend",
        "suspendStatus",
        "resume",
        "getSnapshot",
        "progress",
        "isStarving",
        "status",
        "getTaskTimePoint",
        "createSavepoint",
        "createSavepointStatus",
    ]
    assert service.methods_by_name["isStarving"].input_type.name == "StarvingRequest"
    assert service.methods_by_name["getTaskTimePoint"].output_type.name == "TaskTimePointResponse"
    assert hasattr(primus_am_service_pb2_grpc, "AppMasterServiceServicer")


@pytest.mark.parametrize(
    "old_path", [path for path in native_training.HISTORICAL_PATHS if "_pb2" in path]
)
def test_historical_path_is_the_same_module(old_path):
    home = native_training.HISTORICAL_PATHS[old_path]
    assert home.startswith("monolith.proto.")
    assert importlib.import_module(old_path) is importlib.import_module(home)


def test_every_message_module_of_the_original_has_its_historical_path():
    # example, feature, line_id and proto_parser came from the top-level package `idl`.
    without_path = {"example_pb2", "feature_pb2", "line_id_pb2", "proto_parser_pb2"}
    homes = {home.rpartition(".")[2] for home in native_training.HISTORICAL_PATHS.values()}
    imported = {name for name in globals() if name.endswith("_pb2")}
    assert imported - homes == without_path
