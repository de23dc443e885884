"""Where the package lies on disk, for files that travel beside the Python code.

The same code runs from a Bazel tree, from site-packages and from a source checkout; callers
name a bundled file relative to the directory that holds the package. Nothing but the standard
library is imported here, since this runs before everything else.

Example:
    >>> import os
    >>> os.path.exists(get_libops_path("monolith/core/paths.py"))
    True
"""

import os

# In this order: a Bazel tree may lie inside site-packages, and both contain `/monolith/`.
_MARKERS = ("/__main__/", "/site-packages/", "/monolith/")


def find_main() -> str:
    """Returns the directory that holds the `monolith` package.

    The last occurrence of a marker counts, so that a checkout such as `~/monolith/monolith/core`
    is found.

    Raises:
        ValueError: This file lies in none of the known layouts.
    """
    path = os.path.abspath(__file__)
    for marker in _MARKERS:
        position = path.rfind(marker)
        if position < 0:
            continue
        main_dir = path[:position]
        if marker != "/monolith/":
            main_dir = os.path.join(main_dir, marker.strip("/"))
        if os.path.exists(os.path.join(main_dir, "monolith")):
            return main_dir
    raise ValueError(
        f"Cannot find the directory that holds the monolith package from {path!r}: expected one of "
        f"{', '.join(_MARKERS)} in it, with a `monolith` directory there; reinstall the package."
    )


def get_libops_path(lib_name: str) -> str:
    """Returns the path of a bundled file, such as `monolith/native/ops.py`."""
    return os.path.join(find_main(), lib_name)
