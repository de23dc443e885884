"""The flags of the input pipeline that other packages read, too.

A cluster starts the tf.data service for its workers, and a training config asks whether there is
one; both are told by these flags.
"""

from absl import flags

flags.DEFINE_string(
    "data_service_dispatcher",
    "",
    "Where the dispatcher of the tf.data service is, as grpc://host:port.",
)
flags.DEFINE_bool("dataset_use_dataservice", False, "Whether input comes from the tf.data service.")
