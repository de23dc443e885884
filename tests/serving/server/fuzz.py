"""Sends odd requests to a prediction server, over both APIs: `make fuzz-serving`.

A finding is printed with the request that led to it. The same seed sends the same requests.
"""

import argparse
import asyncio
import os
import pathlib
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from support import serving, serving_fuzz

from monolith.serving.server.config import Batching, Limits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    settings = {"batching": Batching(), "limits": Limits(max_request_bytes=1 << 20)}
    with tempfile.TemporaryDirectory() as directory:
        serving.save_model(pathlib.Path(directory) / "1")
        with serving.serving(directory, **settings) as (server, client):
            started = time.monotonic()
            fuzzer = serving_fuzz.Fuzzer(args.seed)
            codes = asyncio.run(serving_fuzz.run_grpc(server.port, fuzzer, args.requests // 2))
            statuses = asyncio.run(
                serving_fuzz.run_rest(server.rest_port, fuzzer, args.requests // 2)
            )
            assert client.predict([1.0]) == [2]
            print(f"{sum(codes.values()) + sum(statuses.values())} requests, no finding,")
            print(f"in {time.monotonic() - started:.0f} seconds:")
            for code, count in [*codes.most_common(), *statuses.most_common()]:
                print(f"  {getattr(code, 'name', code)}: {count}")


if __name__ == "__main__":
    main()
