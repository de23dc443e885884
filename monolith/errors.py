"""The exceptions that callers of this package may want to catch."""


class MonolithError(Exception):
    """Base of all errors this package raises on purpose."""


class ConfigError(MonolithError, ValueError):
    """A setting is invalid on its own, or contradicts another one."""


class DataError(MonolithError, ValueError):
    """Input data is missing, unreadable, or not what it was said to be; names file and column."""


class RankLostError(MonolithError, RuntimeError):
    """A rank of a synchronous job is gone, so the others cannot go on; names it."""
