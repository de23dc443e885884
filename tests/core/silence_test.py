"""Silence while TensorFlow starts."""

import os

import pytest

from monolith.core import silence


def test_nothing_gets_through_and_then_everything(capfd):
    with silence.silenced_stderr():
        os.write(2, b"noise")
    os.write(2, b"news")
    assert capfd.readouterr().err == "news"


def test_an_error_ends_the_silence(capfd):
    with pytest.raises(KeyError), silence.silenced_stderr():
        raise KeyError
    os.write(2, b"news")
    assert capfd.readouterr().err == "news"
