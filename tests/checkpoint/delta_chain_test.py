"""The list of deltas: what is read back, what is refused, which files belong to whom."""

import pytest
import tensorflow as tf

from monolith.checkpoint import delta_chain
from monolith.checkpoint.delta_chain import Delta


def write(base, content):
    with open(delta_chain.get_list_path(base), "w") as file:
        file.write(content)


def test_deltas_come_back_in_order(tmp_path):
    base = f"{tmp_path}/model.ckpt-100"
    deltas = [Delta(120, 7), Delta(200, 0), Delta(1000, 3)]
    write(base, delta_chain.serialize(deltas))
    assert delta_chain.read(base) == deltas
    assert delta_chain.get_prefixes(base) == [
        f"{base}.delta-120",
        f"{base}.delta-200",
        f"{base}.delta-1000",
    ]
    assert delta_chain.get_newest_prefix(base) == f"{base}.delta-1000"


def test_without_a_list_there_are_no_deltas(tmp_path):
    base = f"{tmp_path}/model.ckpt-100"
    assert delta_chain.read(base) == []
    assert delta_chain.get_newest_prefix(base) == base
    write(base, delta_chain.serialize([]))
    assert delta_chain.get_newest_prefix(base) == base


def test_any_damaged_byte_is_noticed(tmp_path):
    base = f"{tmp_path}/model.ckpt-100"
    good = delta_chain.serialize([Delta(120, 7), Delta(130, 8)])
    for i, char in enumerate(good):
        if char.isspace():
            continue  # White space outside of strings means nothing.
        write(base, good[:i] + chr(ord(char) ^ 1) + good[i + 1 :])
        with pytest.raises(tf.errors.DataLossError, match=r"model\.ckpt-100\.deltas is damaged"):
            delta_chain.read(base)
    for length in range(len(good) - 2):
        write(base, good[:length])
        with pytest.raises(tf.errors.DataLossError, match="is damaged"):
            delta_chain.read(base)


def test_list_of_a_later_version_is_refused(tmp_path, monkeypatch):
    base = f"{tmp_path}/model.ckpt-100"
    monkeypatch.setattr(delta_chain, "_FORMAT", 2)
    write(base, delta_chain.serialize([]))
    monkeypatch.undo()
    with pytest.raises(tf.errors.DataLossError, match="The format is 2, expected 1"):
        delta_chain.read(base)


def test_files_of_deltas_are_told_from_others(tmp_path):
    own = [
        "model.ckpt-10.delta-12.assets",
        "model.ckpt-10.delta-12.index",
        "model.ckpt-10.delta-12_temp",
        "model.ckpt-10.deltas",
        "model.ckpt-10.deltas.tmp0123",
    ]
    others = [
        "model.ckpt-1.delta-12.index",
        "model.ckpt-10.index",
        "model.ckpt-10.delta",
        "model.ckpt-100.deltas",
        "other.ckpt-10.deltas",
    ]
    for name in own + others:
        (tmp_path / name).touch()
    found = delta_chain.find_entries(str(tmp_path), "model.ckpt-10")
    assert found[0] == "model.ckpt-10.deltas"  # First to go: then nobody looks for the others.
    assert sorted(found) == sorted(own)
    assert delta_chain.find_bases(str(tmp_path), "model.ckpt") == [
        "model.ckpt-1",
        "model.ckpt-10",
        "model.ckpt-100",
    ]
    assert delta_chain.find_entries(str(tmp_path / "missing"), "model.ckpt-10") == []
