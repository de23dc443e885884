"""The flags of the input pipeline that other packages read, too.

A cluster starts the tf.data service for its workers, and a training config asks whether there is
one; an input function may ask which worker of how many it builds the input for. All are told by
these flags. The last ones say what `monolith.data.record_datasets` reads.
"""

from absl import flags

flags.DEFINE_string(
    "data_service_dispatcher",
    "",
    "Where the dispatcher of the tf.data service is, as grpc://host:port.",
)
flags.DEFINE_bool("dataset_use_dataservice", False, "Whether input comes from the tf.data service.")
flags.DEFINE_integer(
    "dataset_worker_idx",
    None,
    "Which worker the input is built for, counted from 0. Training sets it.",
)
flags.DEFINE_integer(
    "dataset_num_workers", None, "How many workers share the input. Training sets it."
)
flags.DEFINE_string(
    "dataset_input_patterns",
    None,
    "Files that `PBDataset` reads in place of those it is given: patterns with commas between, in "
    "which {DATE(20260101,20260131)} stands for days and {INT(0,7)} for numbers.",
)
flags.DEFINE_enum(
    "dataset_input_compression_type",
    None,
    ["NO", "ZLIB", "GZIP"],
    "How files of records are compressed, where the program does not say it.",
    case_sensitive=False,
)
flags.DEFINE_string(
    "kafka_other_metadata",
    None,
    "More settings of librdkafka for `KafkaDataset`, as name=value with commas between.",
)
