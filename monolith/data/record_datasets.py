"""Datasets of serialized messages, as programs for the original system make them.

The elements are scalar strings: `batch` them, and parse the batch (`monolith.data.parsers`). How
far a dataset was read is saved with a checkpoint, and a worker of several reads its part.

Example:
    >>> import pathlib
    >>> from monolith.data import framing
    >>> content = framing.Framing(has_sort_id=False).make_record(b"a message")
    >>> _ = pathlib.Path("part-0").write_bytes(content)
    >>> dataset = PBDataset("part-0", input_pb_type=PbType.PLAINTEXT, has_sort_id=False)
    >>> list(dataset.as_numpy_iterator())
    [b'a message']
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from absl import flags
from tensorflow.python.data.ops import dataset_ops

import monolith.data.flags  # noqa: F401 - defines the flags
from monolith import errors
from monolith.data import (
    dataset_methods,
    division,
    files,
    kafka_messages,
    kafka_settings,
    kafka_topics,
    path_patterns,
    record_files,
)
from monolith.data.dataset_methods import (  # noqa: F401
    OUTPUT_PB_TYPE_GRAPH_KEY,
    POOL_KEY,
    CacheOneDataset,
    TransformDataset,
)
from monolith.data.framing import Framing
from monolith.data.record_types import (
    COMPRESSIONS,
    CompressType,
    FeaturePruningType,
    PbType,
    choose_types,
    find_type,
)

_ALIASES = ("topics_or_files", "buffer_size_or_group_id", "input_pb_type_or_servers")
_KAFKA_ARGUMENTS = {"topics", "group_id", "servers"}

dataset_methods.attach()


class DatasetMetaclass(type):
    """Makes `PBDataset(...)` a dataset of the kind that its arguments ask for."""

    def __call__(cls, *args: Any, **kwargs: Any) -> tf.data.Dataset:
        given = list(args)
        for number, alias in enumerate(_ALIASES):
            if alias in kwargs:
                if len(given) != number:
                    raise errors.ConfigError(f"`{alias}` is given twice, or one before it is not.")
                given.append(kwargs.pop(alias))
        from_kafka = {name: _get_flag(f"kafka_{name}") for name in _KAFKA_ARGUMENTS}
        if all(from_kafka.values()):
            for name in ("file_name", "patterns", *_KAFKA_ARGUMENTS):
                kwargs.pop(name, None)
            return KafkaDataset(**from_kafka, **kwargs)
        patterns = flags.FLAGS["dataset_input_patterns"].value
        if patterns:
            for name in ("file_name", "patterns", *_KAFKA_ARGUMENTS):
                kwargs.pop(name, None)
            # Of Kafka there is nothing else to keep.
            rest = [value for value in given[1:] if not isinstance(value, str)]
            return DistributedFilePBDataset(
                path_patterns.expand_patterns(patterns), *rest, **kwargs
            )
        if "patterns" in kwargs:
            return DistributedFilePBDataset(*given, **kwargs)
        if kwargs.keys() >= _KAFKA_ARGUMENTS:
            return KafkaDataset(*given, **kwargs)
        if "file_name" in kwargs or not given or isinstance(given[0], str):
            return FilePBDataset(*given, **kwargs)
        if isinstance(given[0], list | tuple):
            is_kafka = "group_id" in kwargs or (len(given) > 1 and isinstance(given[1], str))
            return (KafkaDataset if is_kafka else DistributedFilePBDataset)(*given, **kwargs)
        raise errors.ConfigError(
            f"PBDataset reads a file, a list of patterns or Kafka topics, but got {given[0]!r}."
        )


class PBDataset(metaclass=DatasetMetaclass):
    """Makes a dataset of the kind that its arguments ask for.

    | arguments | dataset |
    | --- | --- |
    | a path, `file_name`, or nothing (standard input) | `FilePBDataset` |
    | a list of patterns, or `patterns` | `DistributedFilePBDataset` |
    | topics, group and servers | `KafkaDataset` |

    The flag `--dataset_input_patterns` has it read those files instead. If the program has flags
    `kafka_topics`, `kafka_group_id` and `kafka_servers`, and all are set, it reads these topics,
    with those arguments that have a name and are for Kafka.
    """

    gen_patterns = staticmethod(path_patterns.gen_patterns)


class _Dataset(dataset_ops.UnaryUnchangedStructureDataset):
    """A dataset under another name."""

    def __init__(self, dataset: tf.data.Dataset) -> None:
        self._name = None
        super().__init__(dataset, dataset._variant_tensor)


class FilePBDataset(_Dataset):
    """The records of one file, or of standard input.

    Args:
        file_name: The file; standard input, if it is empty.
        buffer_size: How many bytes are read at once; 1 MiB, if it is None.
        input_pb_type: What a record is; if it is None, what the flag `data_type` of the program
            says, or an Instance.
        output_pb_type: What an element is: an Instance if records are, otherwise an Example. Rows
            of an ExampleBatch become elements of their own, unless it is `EXAMPLEBATCH`, too.
        feature_pruning_type: `AS_IS` and `PRUNING_RAW_FEATURE`: raw features are never parsed. They
            are not in the rows of a batch either.
        disable_iterator_save_restore: Refused if it is True: how far was read is always saved.
        use_snappy: Refused if it is True.
        compression_type: How the file is compressed.
        framing: `has_sort_id` (the flag `sort_id` of the program, or True), `kafka_dump`,
            `kafka_dump_prefix` and `lagrangex_header` (False): what stands before each record.

    Raises:
        errors.DataError: The file is not there.
        errors.ConfigError: An argument asks for what is not done.
    """

    def __init__(
        self,
        file_name: str = "",
        buffer_size: int | None = None,
        input_pb_type: PbType | None = None,
        output_pb_type: PbType | None = None,
        feature_pruning_type: int = FeaturePruningType.PRUNING_RAW_FEATURE,
        disable_iterator_save_restore: bool | None = None,
        use_snappy: bool | None = None,
        compression_type: CompressType = CompressType.UNKNOW,
        **framing: bool,
    ) -> None:
        _check_unchanged_features(feature_pruning_type)
        if disable_iterator_save_restore:
            raise errors.ConfigError(
                "`disable_iterator_save_restore` is True, but how far input was read is always "
                "saved with a checkpoint; leave it out."
            )
        settings = _make_settings(
            buffer_size, input_pb_type, output_pb_type, use_snappy, compression_type, framing
        )
        if not file_name:
            if settings.compression not in ("", "none") or buffer_size is not None:
                raise errors.ConfigError(
                    "Standard input is read as it comes: leave compression and `buffer_size` out, "
                    "and uncompress it with a pipe (`zcat FILE | python ...`)."
                )
            types = settings.input_type, settings.output_type
            super().__init__(record_files.read_standard_input(settings.framing, *types))
            return
        source = settings.open(files.list_files(file_name))
        super().__init__(record_files.make_dataset(source, cycle_length=1))


class DistributedFilePBDataset(_Dataset):
    """The records of all files that match patterns; a worker of several reads its part.

    Args:
        patterns: One or several.
        buffer_size: As that of `FilePBDataset`, and so are the next three.
        input_pb_type: What a record is.
        output_pb_type: What an element is.
        feature_pruning_type: Whether raw features are left out.
        exclude_fn: Is given the path of a file, and returns whether to leave it out.
        cycle_length: How many files are read in turns.
        block_length: How many records of one file are taken before the next has its turn.
        num_parallel_calls: How many files are read at the same time; None reads one.
        deterministic: Whether the order is the same in every run, if several are.
        use_parquet: Refused if it is True.
        use_tfrecord: Refused if it is True.
        use_snappy: As that of `FilePBDataset`, and so is what follows.
        compression_type: How the files are compressed.
        framing: What stands before each record.

    Raises:
        errors.DataError: A pattern matches nothing.
        errors.ConfigError: An argument asks for what is not done.
    """

    def __init__(
        self,
        patterns: str | Sequence[str],
        buffer_size: int | None = None,
        input_pb_type: PbType | None = None,
        output_pb_type: PbType | None = None,
        feature_pruning_type: int = FeaturePruningType.PRUNING_RAW_FEATURE,
        exclude_fn: Callable[[str], bool] | None = None,
        cycle_length: int = 2,
        block_length: int | None = None,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
        use_parquet: bool = False,
        use_tfrecord: bool = False,
        use_snappy: bool | None = None,
        compression_type: CompressType = CompressType.UNKNOW,
        **framing: bool,
    ) -> None:
        _check_unchanged_features(feature_pruning_type)
        if use_parquet or use_tfrecord:
            raise errors.ConfigError(
                "`use_parquet` and `use_tfrecord` are for files without framing; read these with "
                "ml.data.parquet or tf.data.TFRecordDataset."
            )
        if cycle_length < 1 or (block_length is not None and block_length < 1):
            raise errors.ConfigError(
                f"`cycle_length` and `block_length` must be positive, got {cycle_length} and "
                f"{block_length}."
            )
        if deterministic is not None and num_parallel_calls is None:
            raise errors.ConfigError(
                "`deterministic` is for files that are read at the same time; give "
                "`num_parallel_calls`, too, or leave it out: the order is always the same."
            )
        settings = _make_settings(
            buffer_size, input_pb_type, output_pb_type, use_snappy, compression_type, framing
        )
        paths = [
            path for path in files.list_files(patterns) if not (exclude_fn and exclude_fn(path))
        ]
        if not paths:
            raise errors.DataError(f"`exclude_fn` leaves no file of {patterns!r}; correct one.")
        super().__init__(
            record_files.make_dataset(
                settings.open(_take_flagged_part(paths)),
                cycle_length=cycle_length,
                block_length=block_length,
                num_parallel_calls=num_parallel_calls,
                deterministic=deterministic,
            )
        )


class KafkaDataset(_Dataset):
    """The records in the messages of Kafka topics.

    Without a checkpoint, reading begins at the earliest, or where `auto.offset.reset` says.

    Args:
        topics: Their names.
        group_id: The consumer group that offsets are committed to.
        servers: Brokers to ask first.
        has_header: Whether records in a message are framed.
        variant_type: What a record is, by the name of a `PbType`; an Instance, if it is None.
        output_pb_type: What an element is, as that of `FilePBDataset`.
        stream_timeout: Milliseconds without a message that end the dataset; -1 waits for ever.
        message_poll_timeout: Milliseconds that are waited in any case.
        poll_batch_size: How many messages are taken at once; 16 batches or 128 others by default.
        filter_empty: Whether records without content are left out.
        configuration: Settings of librdkafka, each as `name=value`.
        container: Refused.
        shared_name: Refused.
        kafka_other_metadata: More settings, with commas between; default is the flag of that name.
        framing: What stands before each record, as that of `FilePBDataset`.

    Raises:
        ImportError: confluent-kafka is not installed.
        errors.DataError: No broker answers, or there is no such topic.
        errors.ConfigError: An argument asks for what is not done.
    """

    def __init__(
        self,
        topics: str | Sequence[str],
        group_id: str,
        servers: str | Sequence[str],
        *,
        has_header: bool = True,
        variant_type: str | None = None,
        output_pb_type: PbType | None = None,
        stream_timeout: int = -1,
        message_poll_timeout: int = 10000,
        poll_batch_size: int | None = None,
        filter_empty: bool = False,
        configuration: Sequence[str] | None = None,
        container: str = "",
        shared_name: str = "",
        kafka_other_metadata: str | None = None,
        **framing: bool,
    ) -> None:
        if framing and not has_header:
            raise errors.ConfigError(
                f"{sorted(framing)} say what stands before a record, but `has_header` is False; "
                "leave one of them out."
            )
        input_type, output_type = choose_types(find_type(variant_type), output_pb_type)
        if poll_batch_size is None:
            poll_batch_size = 16 if input_type == "examplebatch" else 128
        pace = kafka_messages.read_pace(stream_timeout, message_poll_timeout, poll_batch_size)
        dataset_methods.note_row_type(output_type)
        codec = kafka_messages.RecordCodec(
            _make_framing(framing) if has_header else None, input_type, output_type, filter_empty
        )
        names, broker = _find_topics(
            topics, group_id, servers, configuration, container or shared_name, kafka_other_metadata
        )
        super().__init__(kafka_messages.read_records(names, broker, pace, codec))


def create_plain_kafka_dataset(
    topics: str | Sequence[str],
    group_id: str,
    servers: str | Sequence[str],
    stream_timeout: int = -1,
    message_poll_timeout: int = 10000,
    poll_batch_size: int = 1024,
    configuration: Sequence[str] | None = None,
    container: str = "",
    shared_name: str = "",
    kafka_other_metadata: str | None = None,
) -> tf.data.Dataset:
    """Returns a dataset of `PlainMessages`, up to `poll_batch_size` in each.

    The arguments are those of `KafkaDataset`, and so is what is raised.
    """
    pace = kafka_messages.read_pace(stream_timeout, message_poll_timeout, poll_batch_size)
    names, broker = _find_topics(
        topics, group_id, servers, configuration, container or shared_name, kafka_other_metadata
    )
    return kafka_messages.read_plain(names, broker, pace)


@dataclasses.dataclass(frozen=True)
class _Settings:
    framing: Framing
    input_type: str
    output_type: str
    compression: str
    buffer_size: int | None

    def open(self, paths: Sequence[str]) -> record_files.RecordFiles:
        for path in paths:
            if path.endswith(".snappy") and not self.compression:
                raise _refuse_compression(repr(path))
        found = (self.framing, self.input_type, self.output_type, self.compression)
        source = record_files.RecordFiles(tuple(paths), (), *found)
        if self.buffer_size is None:
            return source
        return dataclasses.replace(source, buffer_bytes=self.buffer_size)


def _make_settings(
    buffer_size: int | None,
    input_pb_type: PbType | None,
    output_pb_type: PbType | None,
    use_snappy: bool | None,
    compression_type: CompressType,
    framing: dict[str, bool],
) -> _Settings:
    if buffer_size is not None and buffer_size < 1:
        raise errors.ConfigError(f"`buffer_size` must be positive, got {buffer_size}.")
    flag = flags.FLAGS["dataset_input_compression_type"].value
    if compression_type == CompressType.UNKNOW and flag is not None:
        compression_type = CompressType[flag]
    if use_snappy or compression_type not in COMPRESSIONS:
        raise _refuse_compression("snappy" if use_snappy else compression_type.name.lower())
    if input_pb_type is None and (named := _get_flag("data_type")):
        input_pb_type = find_type(named.lower())
    types = choose_types(input_pb_type, output_pb_type)
    dataset_methods.note_row_type(types[1])
    compression = COMPRESSIONS[compression_type]
    return _Settings(_make_framing(framing), *types, compression, buffer_size)


def _make_framing(settings: dict[str, bool]) -> Framing:
    known = {field.name for field in dataclasses.fields(Framing)}
    if unknown := sorted(settings.keys() - known):
        raise errors.ConfigError(
            f"There are no arguments {unknown}; what stands before records is said by "
            f"{', '.join(sorted(known))}."
        )
    if "has_sort_id" not in settings and (has_sort_id := _get_flag("sort_id")) is not None:
        settings = {**settings, "has_sort_id": has_sort_id}
    return Framing(**settings)


def _get_flag(name: str) -> Any:
    """Returns a flag that programs define themselves; None if this one does not."""
    return flags.FLAGS[name].value if name in flags.FLAGS else None


def _find_topics(
    topics: str | Sequence[str],
    group_id: str,
    servers: str | Sequence[str],
    configuration: Sequence[str] | None,
    shared: str,
    other_metadata: str | None,
) -> tuple[list[str], kafka_topics.Broker]:
    if shared:
        raise errors.ConfigError(
            "`container` and `shared_name` name a resource that several graphs share, but each "
            "dataset has its own consumer; leave them out."
        )
    if other_metadata is None:
        other_metadata = flags.FLAGS["kafka_other_metadata"].value
    config = kafka_settings.read_settings(configuration or (), other_metadata)
    addresses = servers if isinstance(servers, str) else ",".join(servers)
    broker = kafka_topics.Broker(addresses, group_id, config)
    names = topics.split(",") if isinstance(topics, str) else list(topics)
    if not names or len(set(names)) != len(names):
        raise errors.ConfigError(f"Topics are one name or several that differ, got {topics!r}.")
    broker.count_partitions(names)  # So that a wrong name is an error here.
    return names, broker


def _take_flagged_part(paths: list[str]) -> list[str]:
    """Returns the files of the worker that flags name, outside of a job, which divides itself."""
    index, of = (flags.FLAGS[f"dataset_{name}"].value for name in ("worker_idx", "num_workers"))
    if division.is_offered() or index is None or of is None:
        return paths
    part = division.Part(index, of)
    if len(paths) < part.of:
        raise errors.DataError(
            f"{len(paths)} files cannot be divided among {part.of} workers; write more files, or "
            "start fewer workers."
        )
    return paths[part.index :: part.of]


def _check_unchanged_features(pruning: int) -> None:
    if pruning not in (FeaturePruningType.AS_IS, FeaturePruningType.PRUNING_RAW_FEATURE):
        raise errors.ConfigError(
            "`PRUNING_FEATURE` is not done before parsing; name the features that you want when "
            "you parse, the others cost nothing."
        )


def _refuse_compression(what: str) -> errors.ConfigError:
    return errors.ConfigError(
        f"Files of records are read plain or as gzip or zlib, but not {what}; write them as one of "
        "these."
    )
