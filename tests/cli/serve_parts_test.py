"""Options of `monolith serve` for models in parts."""

import contextlib
import types

import pytest
from typer.testing import CliRunner

from monolith import errors
from monolith.cli import serve_parts
from monolith.cli.app import app


def make_announcer(place=None, advertise=None, replica=None, port=8500, host="127.0.0.1"):
    server = types.SimpleNamespace(port=port, models=types.SimpleNamespace(models={}))
    config = types.SimpleNamespace(host=host)
    return serve_parts.make_announcer(server, config, place, advertise, replica)


def test_without_a_place_nothing_is_announced():
    assert isinstance(make_announcer(), contextlib.nullcontext)
    assert serve_parts.find_servers(None, None) is None


def test_address_and_number(tmp_path):
    announcer = make_announcer(f"file:{tmp_path}")
    assert announcer._address == "127.0.0.1:8500"
    assert announcer._replica >= 0
    announcer = make_announcer(f"file:{tmp_path}", "ps.example:1", 3, host="0.0.0.0")
    assert (announcer._address, announcer._replica) == ("ps.example:1", 3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"advertise": "a:1"}, "give --discovery, too"),
        ({"replica": 0}, "give --discovery, too"),
        ({"place": "file:x", "port": None}, "leave --no-grpc out"),
        ({"place": "file:x", "host": "0.0.0.0"}, "give --advertise HOST:PORT"),
    ],
)
def test_announcements_that_make_no_sense(settings, message):
    with pytest.raises(errors.ConfigError, match=message):
        make_announcer(**settings)


@pytest.mark.parametrize(
    ("servers", "place", "message"),
    [
        (["ps_0"], None, "Servers are given as NAME=ADDRESS,ADDRESS"),
        (["ps_0=a:1"], "file:x", "either --servers or --discovery"),
    ],
)
def test_servers_that_make_no_sense(servers, place, message):
    with pytest.raises(errors.ConfigError, match=message):
        serve_parts.find_servers(servers, place)


def test_the_command_says_what_is_wrong(tmp_path):
    result = CliRunner().invoke(app, ["serve", str(tmp_path), "--servers", "ps_0=nowhere"])
    assert result.exit_code == 1
    assert "nowhere" in result.output
