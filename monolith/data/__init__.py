"""Files as batches: `csv`, `parquet` and `tfrecord` read them as the features of a schema say.

`tail` and `kafka` read streams, which are still being written.

`movies` is a synthetic stream whose best reachable AUC is known. What is named here loads
TensorFlow when it is used first, not when this package is imported.

Example:
    >>> import pathlib
    >>> import monolith as ml
    >>> _ = pathlib.Path("clicks.csv").write_text("user,movie,click\\n7,Heat,1\\n8,Alien,0\\n")
    >>> schema = [ml.data.Ids("user"), ml.data.StringIds("movie"), ml.data.Label("click")]
    >>> for batch in ml.data.csv("clicks.csv", schema):
    ...     print(batch["user"].to_list(), batch["click"].numpy())
    [[7], [8]] [1. 0.]
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monolith.data import movies
    from monolith.data.framing import Framing
    from monolith.data.growing_files import tail
    from monolith.data.kafka_topics import kafka
    from monolith.data.reader import Reader, csv, parquet, tfrecord
    from monolith.data.schema import Dense, Ids, Label, StringIds
    from monolith.data.streams import StreamReader
    from monolith.data.string_ids import hash_string, hash_strings

__all__ = [
    "Dense",
    "Framing",
    "Ids",
    "Label",
    "Reader",
    "StreamReader",
    "StringIds",
    "csv",
    "hash_string",
    "hash_strings",
    "kafka",
    "movies",
    "parquet",
    "tail",
    "tfrecord",
]

_MODULES = {
    "Dense": "schema",
    "Framing": "framing",
    "Ids": "schema",
    "Label": "schema",
    "Reader": "reader",
    "StreamReader": "streams",
    "StringIds": "schema",
    "csv": "reader",
    "hash_string": "string_ids",
    "hash_strings": "string_ids",
    "kafka": "kafka_topics",
    "parquet": "reader",
    "tail": "growing_files",
    "tfrecord": "reader",
}


def __getattr__(name: str) -> Any:
    if name == "movies":
        return importlib.import_module("monolith.data.movies")
    if name not in _MODULES:
        hint = "; it is called Ids" if name == "RaggedIds" else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
    value = getattr(importlib.import_module(f"monolith.data.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    # What this module itself imports is not what people look for.
    return sorted({name for name in globals() if name.startswith("__")} | {*__all__})
