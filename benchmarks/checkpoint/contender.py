"""What a library under test has to offer."""

import abc
import pathlib


class Contender(abc.ABC):
    """One library with a full table, in a process of its own.

    Attributes:
        kinds: The ways in which it saves the same rows.
        bytes_per_row: At most what a restored row takes, to have that memory ready.
    """

    kinds: tuple[str, ...]
    bytes_per_row: int

    def __init__(self, rows: int, directory: pathlib.Path) -> None:
        self.rows = rows
        self._directory = directory

    def home(self, kind: str) -> pathlib.Path:
        """Returns the directory that holds what was saved in that way, and nothing else."""
        return self._directory / kind.replace(" ", "_")

    @abc.abstractmethod
    def fill(self) -> None:
        """Fills the table."""

    @abc.abstractmethod
    def save(self, kind: str) -> None:
        """Saves all rows."""

    @abc.abstractmethod
    def make_empty(self, kind: str) -> None:
        """Makes an empty table for `restore` in place of the last one."""

    @abc.abstractmethod
    def restore(self, kind: str) -> None:
        """Restores what `save` saved."""

    @abc.abstractmethod
    def check(self, kind: str) -> None:
        """Raises unless the restored rows are the saved ones."""
