"""Kills, freezes and cuts off members of a real job, and sees that its tables stay right.

What it does: two servers, a chief and two workers train on a fixed input, each row counting its
updates. Random members are killed (and started again after a moment, at the address that the others
know or at another one), stopped and continued, or have their connections cut or stalled. Half of
the time only lost servers are restored (`partial_recovery`), half of it all of them. Then the job
is left alone, and must end by itself: no process left, no update lost that a complete checkpoint
held before a fault, none that nobody has sent, and the whole input trained.

Run: `make chaos`, or `python tests/chaos/run.py --minutes 20 --seed 1`. The seed decides the
faults; what the machine is doing decides the rest, so that a failure may take a few runs to come
back. With `--keep DIR` the logs, ledgers and checkpoints stay there.
"""

import importlib
import os
import pathlib
import sys


def main() -> int:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    for name in ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy"):
        # gRPC asks a proxy even for 127.0.0.1.
        os.environ.pop(name, None)
        os.environ.pop(name.upper(), None)
    tests = pathlib.Path(__file__).parents[1]
    sys.path[:0] = [str(tests), str(tests.parent)]
    # Not at the top: TensorFlow reads the environment when it is imported.
    return importlib.import_module("chaos.rounds").main()


if __name__ == "__main__":
    sys.exit(main())
