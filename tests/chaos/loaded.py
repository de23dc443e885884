"""What members of an attack load besides, in the process from which they are forked.

An attack lasts longer than nobody touches a file: a member that is started again late must not load
what is on disk by then.
"""

from monolith.training import estimator, runner  # noqa: F401 - loaded, as said above
