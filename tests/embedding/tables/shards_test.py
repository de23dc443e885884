"""Which files a server reads, and the list that says which files there are."""

import pytest
import tensorflow as tf

from monolith.embedding.tables import row_forms, shards
from monolith.embedding.tables.registry import TableShard


@pytest.mark.parametrize("num_saved", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("num_servers", [1, 2, 3, 4, 5, 6])
def test_chosen_files_hold_all_ids_of_the_server_and_no_other_does(num_saved, num_servers):
    files = [f"t_{i}" for i in range(num_saved)]
    for server in range(num_servers):
        needed = {
            files[row_id % num_saved]
            for row_id in range(-100, 100)
            if row_id % num_servers == server
        }
        chosen = TableShard("t", server, num_servers).choose_files(files)
        assert set(chosen) == needed
        assert len(chosen) == len(needed)


def test_list_names_the_files_of_all_servers_in_order(tmp_path):
    path = f"{tmp_path}/list.json"
    shards.write_list(
        path,
        {
            TableShard("user", 1, 2): "user_1",
            TableShard("item"): "item",
            TableShard("user", 0, 2): "user_0",
        },
    )
    assert shards.read_list(path).files == {"item": ["item"], "user": ["user_0", "user_1"]}
    assert shards.read_list(f"{tmp_path}/missing.json") == ({}, {})


def test_list_says_what_rows_are_made_of(tmp_path):
    path = f"{tmp_path}/list.json"
    forms = {"user": {"user": (row_forms.Segment(2, "adam"),)}}
    shards.write_list(path, {TableShard("user"): "user"}, forms)
    assert shards.read_list(path) == ({"user": ["user"]}, forms)


@pytest.mark.parametrize("rows", ["3", '{"t": 3}', '{"t": {"u": [{"dim": 1}]}}'])
def test_damaged_forms_are_named(tmp_path, rows):
    path = tmp_path / "list.json"
    path.write_text(f'{{"format": 1, "tables": {{}}, "rows": {rows}}}')
    with pytest.raises(tf.errors.DataLossError, match=r"list\.json is damaged"):
        shards.read_list(str(path))


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"format": 2, "tables": {}}', '{"format": 1, "tables": 3}']
)
def test_damaged_list_is_named(tmp_path, content):
    path = tmp_path / "list.json"
    path.write_text(content)
    with pytest.raises(tf.errors.DataLossError, match=r"list\.json is damaged"):
        shards.read_list(str(path))
