"""What a feature is called of which only the slot is known.

Example:
    >>> name_slot(7)
    'slot_7'
    >>> enable_tob_env()
    >>> name_slot(7)
    'fc_slot_7'
    >>> enable_tob_env(False)
"""

_is_tob_env = False


def enable_tob_env(enabled: bool = True) -> None:
    """Calls features `fc_slot_7` from now on, as the fids of Instances are named in Examples."""
    global _is_tob_env
    _is_tob_env = enabled


def name_slot(slot: int) -> str:
    """Returns the name of a slot's feature."""
    return f"fc_slot_{slot}" if _is_tob_env else f"slot_{slot}"
