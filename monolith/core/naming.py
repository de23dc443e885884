"""Names of layers and tasks that did not choose one."""

import collections
import re

# Names that are taken, with the number given out last.
_name_inuse: collections.defaultdict[str, int] = collections.defaultdict(int)


def get_uname(name: str) -> str:
    """Returns `name`, or `name_1`, `name_2`, ... once the name is marked as taken.

    A first use does not mark the name, so two layers of one class get the same default name:
    variables of existing checkpoints carry these names.

    Example:
        >>> get_uname("Tower"), get_uname("Tower")
        ('Tower', 'Tower')
    """
    if name not in _name_inuse:
        return name
    _name_inuse[name] += 1
    return f"{name}_{_name_inuse[name]}"


def to_snake_case(name: str) -> str:
    """Turns `CamelCase` into `snake_case`; a leading underscore becomes `private_`."""
    separated = re.sub(r"(.)([A-Z][a-z0-9]+)", r"\1_\2", name)
    snake_case = re.sub(r"([a-z])([A-Z])", r"\1_\2", separated).lower()
    return f"private{snake_case}" if snake_case.startswith("_") else snake_case
