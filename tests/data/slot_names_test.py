"""Names of slots."""

from monolith.data import slot_names


def test_names_follow_the_environment():
    assert slot_names.name_slot(12) == "slot_12"
    slot_names.enable_tob_env()
    try:
        assert slot_names.name_slot(12) == "fc_slot_12"
    finally:
        slot_names.enable_tob_env(False)
    assert slot_names.name_slot(12) == "slot_12"
