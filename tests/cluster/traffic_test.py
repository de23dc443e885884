"""Bytes that the connections of a process have carried."""

import contextlib
import os
import socket

import pytest

from monolith.cluster import net, traffic

# The kernel counts the start of a connection as a byte.
SLACK = 2


@pytest.fixture
def server():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


@contextlib.contextmanager
def connected(server):
    with socket.create_connection(server.getsockname()) as client, server.accept()[0] as accepted:
        yield client, accepted


def send(source, target, num_bytes):
    source.sendall(b"x" * num_bytes)
    while num_bytes:
        num_bytes -= len(target.recv(num_bytes))


def make_meter(server):
    port = server.getsockname()[1]
    return traffic.TrafficMeter(lambda local, remote: remote.port == port)


def test_both_directions(server):
    meter = make_meter(server)
    assert meter.read() == (0, 0)
    with connected(server) as (client, accepted):
        send(client, accepted, 1000)
        send(accepted, client, 30_000)
        sent, received = meter.read()
    assert 1000 <= sent <= 1000 + SLACK
    assert received == 30_000


def test_connection_that_has_ended_still_counts(server):
    meter = make_meter(server)
    for _ in range(3):
        with connected(server) as (client, accepted):
            send(client, accepted, 500)
            send(accepted, client, 7)
            meter.read()
    sent, received = meter.read()
    assert 1500 <= sent <= 1500 + 3 * SLACK
    assert received == 21


def test_socket_with_two_descriptors_counts_once(server):
    meter = make_meter(server)
    with connected(server) as (client, accepted):
        copied = os.dup(client.fileno())
        send(accepted, client, 100)
        assert meter.read().received_bytes == 100
        os.close(copied)


def test_members_are_servers_and_who_connects_here(server):
    port = server.getsockname()[1]
    other = traffic.Endpoint("10.0.0.9", 5)
    here = traffic.Endpoint("127.0.0.1", port)
    is_counted = traffic.counts_members(["127.0.0.1:4711", "[::1]:12"], f"127.0.0.1:{port}")
    assert is_counted(here, other)
    assert is_counted(other, traffic.Endpoint("127.0.0.1", 4711))
    assert is_counted(other, traffic.Endpoint("::1", 12))
    assert not is_counted(other, traffic.Endpoint("127.0.0.1", 4712))


def test_host_that_nobody_knows_is_left_out():
    is_counted = traffic.counts_members(["nowhere.invalid:1"], "127.0.0.1:2")
    assert not is_counted(traffic.Endpoint("127.0.0.1", 3), traffic.Endpoint("127.0.0.1", 1))


def test_sockets_of_the_process_are_found_and_left_alone(server):
    with connected(server) as (client, accepted):
        names = set()
        for skt in net.iterate_sockets():
            with contextlib.suppress(OSError):
                names.add(skt.getsockname())
        assert {client.getsockname(), server.getsockname()} <= names
        send(client, accepted, 3)
