"""Where the examples of a job come from."""

import dataclasses


@dataclasses.dataclass
class ItemSettings:
    """The candidate items of a second pass, and what happens to the input otherwise.

    `use_dataservice`, whether input comes from the tf.data service, has no flag of its own name:
    `dataset_use_dataservice` sets it.

    :param only_feature_engineering: Whether features are written to files instead of training.
    :param num_extra_dsworker_on_gpu_worker: How many workers of the tf.data service run beside each
        GPU worker.
    :param enable_resource_constrained_roughsort: Whether a second pass over the candidate items
        follows the training.
    :param roughsort_candidate_items_path: Where the candidate items of that pass are.
    :param roughsort_items_use_parquet: Whether the candidate items are Parquet files.
    :param items_input_lagrangex_header: Whether records of items start with a Lagrange header.
    :param items_input_has_sort_id: Whether records of items have a sort id.
    :param items_input_kafka_dump: Whether files of items are dumps of Kafka.
    :param items_input_kafka_dump_prefix: Whether records of items have the prefix of Kafka dumps.
    """

    only_feature_engineering: bool = False
    use_dataservice: bool | None = None
    num_extra_dsworker_on_gpu_worker: int = 0
    enable_resource_constrained_roughsort: bool = False
    roughsort_candidate_items_path: str | None = None
    roughsort_items_use_parquet: bool = False
    items_input_lagrangex_header: bool = False
    items_input_has_sort_id: bool = False
    items_input_kafka_dump: bool = False
    items_input_kafka_dump_prefix: bool = False


@dataclasses.dataclass
class RecordSettings:
    """What the records of the input are.

    :param data_type: What records are that PBDataset reads: 'instance', 'example',
        'examplebatch' or 'plaintext'.
    :param feature_list: File that lists the features.
    :param lagrangex_header: Whether records start with a Lagrange header.
    :param sort_id: Whether records that PBDataset reads have a sort id.
    :param kafka_dump: Whether input files are dumps of Kafka.
    :param kafka_dump_prefix: Whether records have the prefix of Kafka dumps.
    :param enable_fid_dedup: Whether ids are made unique before they are looked up.
    """

    data_type: str | None = None
    feature_list: str | None = None
    lagrangex_header: bool = False
    sort_id: bool = True
    kafka_dump: bool = False
    kafka_dump_prefix: bool = False
    enable_fid_dedup: bool = False


@dataclasses.dataclass
class InputSettings:
    """Which files or topics are read, and by whom.

    :param kafka_topics: Kafka topics that PBDataset reads in place of what it is given, separated
        by commas.
    :param kafka_group_id: Their consumer group.
    :param kafka_servers: Addresses of Kafka as host:port,host:port.
    :param input_path: Directory of the input, with one subdirectory for each day.
    :param is_hourly: Whether the input has a subdirectory for each hour.
    :param wildcard: Which files of a subdirectory are input.
    :param start_date: First day of the input as YYYYMMDD.
    :param end_date: Day after the last day of the input as YYYYMMDD.
    :param start_hour: First hour of the first day.
    :param end_hour: Hour after the last hour of the last day.
    :param enable_dynamic_sharding: Whether workers take input files from a shared queue, one after
        the other; otherwise each has its part of them.
    :param max_task_num_per_worker: How many input files a worker reads at a time.
    """

    kafka_topics: str | None = None
    kafka_group_id: str | None = None
    kafka_servers: str | None = None
    input_path: str | None = None
    is_hourly: bool = False
    wildcard: str | None = None
    start_date: int | None = None
    end_date: int | None = None
    start_hour: int | None = None
    end_hour: int | None = None
    enable_dynamic_sharding: bool = False
    max_task_num_per_worker: int = 1
