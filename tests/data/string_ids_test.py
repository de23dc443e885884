"""String ids: published values of FarmHash's Fingerprint64, and TensorFlow's op against ours."""

import subprocess
import sys

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from monolith import errors
from monolith.data import string_ids

# Signed, as their sources print them.
PUBLISHED = {
    # Guava's FarmHashFingerprint64Test: 4, 32 and 256 bytes
    "test": 8581389452482819506,
    "test" * 8: -4196240717365766262,
    "test" * 64: 3500507768004279527,
    # The reference of GoogleSQL (BigQuery, Spanner), FARM_FINGERPRINT
    "1footrue": -1541654101129638711,
    "2applefalse": 2794438866806483259,
    "3true": -4880158226897771312,
    # FarmHash's definition: k2 for nothing
    "": 0x9AE16A3B2F90404F - 2**64,
}


@pytest.mark.parametrize("string", PUBLISHED, ids=lambda string: f"{len(string)}_bytes")
def test_published_values(string):
    expected = PUBLISHED[string] % 2**64
    assert string_ids.fingerprint64(string) == expected
    assert string_ids.hash_string(string) == expected % (2**63 - 1)
    assert string_ids.hash_strings([string]).numpy() == [expected % (2**63 - 1)]


def test_every_length_agrees_with_tensorflow():
    # Each branch of the hash, and each way the last block of 64 bytes can overlap.
    rng = np.random.default_rng(0)
    strings = [rng.bytes(length) for length in range(330)]
    expected = [string_ids.hash_string(string) for string in strings]
    assert string_ids.hash_strings(strings).numpy().tolist() == expected


@hypothesis.given(st.lists(st.text(), min_size=1, max_size=20))
def test_text_is_hashed_as_utf8(texts):
    expected = [string_ids.hash_string(text) for text in texts]
    assert string_ids.hash_strings(texts).numpy().tolist() == expected
    assert [string_ids.hash_string(text.encode()) for text in texts] == expected
    assert all(0 <= id_ < 2**63 - 1 for id_ in expected)


def test_shape_is_kept():
    ragged = tf.ragged.constant([["a", "b"], [], ["a"]])
    a, b = string_ids.hash_string("a"), string_ids.hash_string("b")
    assert string_ids.hash_strings(ragged).to_list() == [[a, b], [], [a]]
    assert string_ids.hash_strings([["a"], ["b"]]).numpy().tolist() == [[a], [b]]


@pytest.mark.usefixtures("graph_mode")
def test_works_in_a_graph():
    names = tf.compat.v1.placeholder(tf.string, [None])
    ids = string_ids.hash_strings(names)
    with tf.compat.v1.Session() as session:
        found = session.run(ids, {names: ["Zoë", "x" * 100]})
    assert found.tolist() == [string_ids.hash_string("Zoë"), string_ids.hash_string("x" * 100)]


def test_integers_are_refused():
    with pytest.raises(errors.ConfigError, match="needs strings but got int64; integers are ids"):
        string_ids.hash_strings(tf.constant([1, 2], tf.int64))


def test_hash_string_needs_no_tensorflow():
    program = (
        "import sys; from monolith.data.string_ids import hash_string; "
        "assert 'tensorflow' not in sys.modules; print(hash_string('test'))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout == "8581389452482819506\n"
