"""What the rows of tables are made of, and whether those of a checkpoint still are.

A row is its values and the state of its optimizers, segment by segment. A save notes this form
beside the rows. So a restore into a table with another `dim`, another optimizer or other segments
is noticed before a row is read, and tells what is different.

Example:
    >>> now = {"user": (Segment(16, "adagrad"),), "item": (Segment(8, "adam"),)}
    >>> saved = {"user": (Segment(8, "adagrad"),), "item": (Segment(8, "sgd"),)}
    >>> for change in find_changes(now, saved):
    ...     print(change.table, change.describe(), change.keeps_weights)
    user has dim 16 (adagrad), in the checkpoint dim 8 (adagrad) False
    item has dim 8 (adam), in the checkpoint dim 8 (sgd) True
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from tensorflow.python.framework import tensor_util

from monolith.embedding.tables.registry import Entry
from monolith.proto import embedding_hash_table_pb2 as proto

_SINGLE_OP = "MonolithHashTable"
_MULTI_OP = "CreateMonolithMultiHashTable"


class Segment(NamedTuple):
    """One part of a row: so many values, trained by one optimizer."""

    dim: int
    optimizer: str


Form = tuple[Segment, ...]


class FormChange(NamedTuple):
    """A table whose rows have another form than those of a checkpoint.

    Attributes:
        table: Its name.
        now: The form of its rows.
        saved: The form of those of the checkpoint.
    """

    table: str
    now: Form
    saved: Form

    @property
    def keeps_weights(self) -> bool:
        """Whether only the optimizers differ, so that the values still mean what they did."""
        return [segment.dim for segment in self.now] == [segment.dim for segment in self.saved]

    def describe(self) -> str:
        """Returns what is different, for a message."""
        return f"has {_describe(self.now)}, in the checkpoint {_describe(self.saved)}"


def get_forms(entry: Entry) -> dict[str, Form]:
    """Returns what the rows of the tables behind a handle are made of, by name of the table.

    It is read from the op that makes the tables, so it is what they are. Empty if the graph does
    not have that op, or if the tables serve: those keep no states, and read any.
    """
    forms = {}
    for name, config in get_configs(entry).items():
        if config.entry_config.entry_type != proto.EntryConfig.TRAINING:
            return {}
        forms[name] = tuple(map(to_segment, config.entry_config.segments))
    return forms


def find_changes(now: Mapping[str, Form], saved: Mapping[str, Form]) -> list[FormChange]:
    """Compares the tables of a graph with those of a save; which only one of them has are left out.

    Args:
        now: The forms of the graph's tables, by name.
        saved: Those of the save. A table that is alone may have had another name.
    """
    if len(now) == 1 and len(saved) == 1:
        saved = dict(zip(now, saved.values(), strict=True))
    return [
        FormChange(name, form, saved[name])
        for name, form in now.items()
        if name in saved and saved[name] != form
    ]


def to_json(forms: Mapping[str, Form]) -> dict[str, list[dict[str, Any]]]:
    """Returns forms as `from_json` takes them."""
    return {name: [segment._asdict() for segment in form] for name, form in forms.items()}


def from_json(forms: Any) -> dict[str, Form]:
    """Returns the forms that `to_json` was given.

    Raises:
        AttributeError, KeyError, TypeError, ValueError: It is something else.
    """
    return {
        str(name): tuple(Segment(int(s["dim"]), str(s["optimizer"])) for s in segments)
        for name, segments in forms.items()
    }


def _describe(form: Form) -> str:
    return "dim " + " + ".join(f"{segment.dim} ({segment.optimizer})" for segment in form)


def get_configs(entry: Entry) -> dict[str, proto.EmbeddingHashTableConfig]:
    """Returns what the tables behind a handle were made with, by name; empty if unknown."""
    (name, *_) = entry.config.table_names
    if entry.handle.op.type == _SINGLE_OP:
        serialized = entry.handle.op.get_attr("config")
        return {name: proto.EmbeddingHashTableConfig.FromString(serialized)}
    initializer = entry.table.initializer
    if initializer is None or initializer.type != _MULTI_OP:
        return {}
    constant = tensor_util.constant_value(initializer.inputs[0])
    if constant is None:
        return {}
    configs = proto.MultiEmbeddingHashTableConfig.FromString(constant.item())
    return dict(zip(configs.names, configs.configs, strict=True))


def to_segment(segment: proto.EntryConfig.Segment) -> Segment:
    """Returns one part of a row, as its config says."""
    optimizer = segment.opt_config.WhichOneof("type")
    if optimizer is None:
        return Segment(segment.dim_size, "none")
    # As the native table reads it: the segment's own dim counts, if it has one.
    dim = getattr(segment.opt_config, optimizer).dim_size
    return Segment(segment.dim_size if segment.HasField("dim_size") else dim, optimizer)
