"""A process that registers in ZooKeeper and reports what it sees; a test starts several.

Usage: zookeeper_member.py HOSTS JOB NAME INDEX ADDR SESSION_TIMEOUT_SECS

It connects, and registers when it reads a line. From the start it writes a line of JSON to stdout
whenever its view changes: the time on the clock that all processes of the machine share, and the
view. It ends when stdin does.
"""

import json
import select
import sys
import time

from monolith.cluster.discovery import ZKServiceDiscovery


def main():
    hosts, job, name, index, addr, session_timeout = sys.argv[1:]
    discovery = ZKServiceDiscovery(job, hosts, session_timeout_secs=float(session_timeout))
    last = None
    while True:
        if select.select([sys.stdin], [], [], 0.01)[0]:
            if not sys.stdin.readline():
                break
            discovery.register(name, int(index), addr)
        view = discovery.query(name)
        if view != last:
            print(json.dumps({"time": time.monotonic(), "view": view}), flush=True)
            last = view
    discovery.close()


if __name__ == "__main__":
    main()
