"""Default names, with the behaviour that names of existing variables depend on."""

from monolith.core import base_layer, naming


def test_first_uses_are_not_recorded():
    assert [naming.get_uname("NamingTestLayer") for _ in range(3)] == ["NamingTestLayer"] * 3
    assert "NamingTestLayer" not in naming._name_inuse


def test_taken_names_are_numbered(monkeypatch):
    monkeypatch.setitem(naming._name_inuse, "Layer", 0)
    assert [naming.get_uname("Layer") for _ in range(2)] == ["Layer_1", "Layer_2"]


def test_historical_path():
    assert base_layer is naming
