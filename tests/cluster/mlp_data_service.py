"""One process of a job under MLP, as `mlp_pass` makes it; a test starts one per role.

The worker sums a dataset that the data service reads for it, and prints the sum.
"""

import os
import sys

from absl import flags

from monolith.cluster import mlp


def main():
    # Not at the top: pytest imports this file, too, and keeps its flags.
    import tensorflow as tf

    flags.DEFINE_integer("num_extra_dsworker_on_gpu_worker", 1, "")
    flags.FLAGS([*sys.argv, "--dataset_use_dataservice"])
    mlp._WAIT_PERIOD_SECS = 0.05
    mlp._JOIN_PERIOD_SECS = 0.05
    mlp._JOIN_PROBE_TIMEOUT_SECS = 1
    # The platform's port may be taken on a machine that runs tests.
    start_profiler = mlp.MLPEnv.start_profiler
    mlp.MLPEnv.start_profiler = lambda env: start_profiler(env, int(os.environ["PROFILER_PORT"]))
    mlp.mlp_pass()
    dispatcher = flags.FLAGS.data_service_dispatcher
    dataset = tf.data.Dataset.range(10).apply(
        tf.data.experimental.service.distribute("distributed_epoch", dispatcher)
    )
    total = sum(int(element) for element in dataset)
    print(f"{dispatcher} {total} {len(mlp.EXTRA_DSWORKERS)}", flush=True)


if __name__ == "__main__":
    main()
