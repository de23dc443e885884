"""Flags about alerts: accepted, the chief's own counts there, and nobody is told that it works."""

import importlib

import pytest
from absl import flags
from absl.testing import flagsaver

from monolith.core import alerts

TEXT = 'training_alert { prefix: "movies" }'


@pytest.mark.parametrize("name", ["monolith_alert_proto", "monolith_chief_alert_proto"])
def test_flag(name):
    flag = flags.FLAGS[name]
    assert flag.default == ""
    assert flag.parser.parse(TEXT) == TEXT


def test_chiefs_flag_counts_in_the_chief(caplog):
    with flagsaver.flagsaver(monolith_alert_proto="all", monolith_chief_alert_proto=TEXT):
        alerts.take_over_as_chief()
        assert flags.FLAGS["monolith_alert_proto"].value == TEXT
    assert "sends no alerts" in caplog.text


def test_a_chief_without_one_keeps_what_all_have(caplog):
    with flagsaver.flagsaver(monolith_alert_proto="all"):
        alerts.take_over_as_chief()
        assert flags.FLAGS["monolith_alert_proto"].value == "all"
    assert not caplog.text


def test_historical_path():
    old = importlib.import_module("monolith.native_training.alert.alert_manager")
    assert old is alerts
    assert old.get_default_alert_manager() is None
