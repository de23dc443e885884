"""Puts the inputs of several requests one after the other, and takes the answers apart again.

What belongs to whom differs:

- a function of a model has a row of each input and output for each example; where an example has
  any number of values, `x` holds those of all and `x_lengths` says how many each has;
- `lookup` of a parameter server's model has the ids of each table, and under the same name a row
  for each;
- `raw_lookup` has in `id` the ids of all tables, in `id_split` where those of each end, and all
  rows as one vector.

Example:
    >>> merger = RowMerger({0: 1})  # Input 1 says how many values of input 0 each example has.
    >>> requests = [[np.array([7, 8]), np.array([2])], [np.array([9]), np.array([0, 1])]]
    >>> values, lengths = merger.join(requests)
    >>> values.tolist(), lengths.tolist()
    ([7, 8, 9], [2, 0, 1])
    >>> [answer[0].tolist() for answer in merger.split([np.array([0.1, 0.2, 0.3])], requests)]
    [[0.1], [0.2, 0.3]]
"""

import abc
from collections.abc import Mapping, Sequence

import numpy as np

from monolith.graph.signatures import LENGTHS_NAME
from monolith.serving.server.signature import Signature

Arrays = Sequence[np.ndarray]

# What the entry model calls on the model of a parameter server.
_LOOKUP = "lookup"
_RAW_LOOKUP = "raw_lookup"
# What changes rows: each call counts, so none is merged with others.
_ASSIGNS = ("hashtable_assign", "hashtable_assign_packed", "raw_assign", "raw_assign_packed")
# The shape of a list of any length.
_LIST = (None,)


class MisfitError(Exception):
    """These requests cannot be merged; each alone may be answered, or refused with its reason."""


class OutputError(Exception):
    """The outputs cannot be taken apart, so this function can never be merged."""


class Merger(abc.ABC):
    """Knows what belongs to whom."""

    @abc.abstractmethod
    def count_rows(self, inputs: Arrays) -> int:
        """Returns how many rows a request has, 0 if it has to be run alone."""

    @abc.abstractmethod
    def join(self, requests: Sequence[Arrays]) -> list[np.ndarray]:
        """Returns the inputs of all requests as those of one; raises `MisfitError`."""

    @abc.abstractmethod
    def split(self, outputs: Arrays, requests: Sequence[Arrays]) -> list[list[np.ndarray]]:
        """Returns the outputs of each request; raises `OutputError`."""


class RowMerger(Merger):
    """Merges examples.

    Args:
        lengths: Inputs that hold any number of values per example, and those that say how many, by
            their places among the inputs.
    """

    def __init__(self, lengths: Mapping[int, int] | None = None) -> None:
        self._lengths = dict(lengths or {})

    def count_rows(self, inputs: Arrays) -> int:
        found = -1
        for place, array in enumerate(inputs):
            if place in self._lengths:
                continue
            shape = array.shape
            if not shape or found not in (-1, shape[0]):
                return 0
            found = shape[0]
        return max(found, 0)

    def join(self, requests: Sequence[Arrays]) -> list[np.ndarray]:
        joined = _concatenate(requests)
        for values, lengths in self._lengths.items():
            # Values that nobody counts would become those of the next request.
            rows = [len(request[lengths]) for request in requests]
            starts = np.cumsum([0, *rows[:-1]])
            counted = np.add.reduceat(joined[lengths], starts)
            sizes = [len(request[values]) for request in requests]
            if joined[lengths].min() < 0 or counted.tolist() != sizes:
                raise MisfitError("A request has other lengths than values.")
        return joined

    def split(self, outputs: Arrays, requests: Sequence[Arrays]) -> list[list[np.ndarray]]:
        rows = [self.count_rows(request) for request in requests]
        return _cut(outputs, [rows] * len(outputs))


class LookupMerger(Merger):
    """Merges lookups in tables, each of which has ids of its own.

    Args:
        places: For each output, the input with its ids.
    """

    def __init__(self, places: Sequence[int]) -> None:
        self._places = list(places)

    def count_rows(self, inputs: Arrays) -> int:
        return sum(map(len, inputs))

    def join(self, requests: Sequence[Arrays]) -> list[np.ndarray]:
        return _concatenate(requests)

    def split(self, outputs: Arrays, requests: Sequence[Arrays]) -> list[list[np.ndarray]]:
        sizes = [[len(request[place]) for request in requests] for place in self._places]
        return _cut(outputs, sizes)


class RawLookupMerger(Merger):
    """Merges lookups whose ids and rows are packed into one vector, table by table.

    Rows of one request would stay together if tables could be asked twice in one call; as each is
    asked once, what `normalize_merged_split` puts one after the other has to be sorted by tables.

    Args:
        dims: The width of the rows of each table.
    """

    def __init__(self, dims: Sequence[int]) -> None:
        self._dims = list(dims)

    def count_rows(self, inputs: Arrays) -> int:
        return len(inputs[0])

    def join(self, requests: Sequence[Arrays]) -> list[np.ndarray]:
        ends = [self._read_ends(*request) for request in requests]
        parts = [
            ids[end[table] : end[table + 1]]
            for table in range(len(self._dims))
            for (ids, _), end in zip(requests, ends, strict=True)
        ]
        return [np.concatenate(parts), np.sum([split for _, split in requests], axis=0)]

    def split(self, outputs: Arrays, requests: Sequence[Arrays]) -> list[list[np.ndarray]]:
        (flat,) = outputs
        answers: list[list[np.ndarray]] = [[] for _ in requests]
        start = 0
        for table, dim in enumerate(self._dims):
            for answer, (_, split) in zip(answers, requests, strict=True):
                stop = start + int(split[table + 1] - split[table]) * dim
                answer.append(flat[start:stop])
                start = stop
        if flat.ndim != 1 or start != len(flat):
            raise OutputError(f"The rows of all ids are {start} numbers, got {list(flat.shape)}.")
        return [[np.concatenate(parts)] for parts in answers]

    def _read_ends(self, ids: np.ndarray, split: np.ndarray) -> list[int]:
        ends: list[int] = split.tolist()
        if len(ends) != len(self._dims) + 1 or ends[0] != 0 or ends[-1] != len(ids):
            raise MisfitError("`id_split` does not fit to `id`.")
        if sorted(ends) != ends:
            raise MisfitError("`id_split` does not rise.")
        return ends


def make_merger(
    signature: Signature, outputs: Sequence[str], others: Mapping[str, Signature]
) -> Merger | None:
    """Returns what merges requests of a function.

    Args:
        signature: The function.
        outputs: What is asked of it.
        others: All functions of the model.

    Returns:
        None if each request has to be run alone.
    """
    places = {name: place for place, name in enumerate(signature.inputs)}
    if signature.name.rpartition("/")[2] in _ASSIGNS or not places:
        return None
    lists = {name for name, spec in signature.inputs.items() if spec.shape == _LIST}
    if signature.name == _RAW_LOOKUP:
        dims = _read_dims(others.get(_LOOKUP))
        is_as_expected = lists == {"id", "id_split"} and list(outputs) == ["flat_emb"]
        return RawLookupMerger(dims) if dims and is_as_expected else None
    if not all(spec.has_rows for spec in (*signature.inputs.values(), *signature.outputs.values())):
        return None
    if signature.name == _LOOKUP:
        if lists != places.keys() or not set(outputs) <= lists:
            return None
        return LookupMerger([places[name] for name in outputs])
    lengths = {
        places[name]: places[LENGTHS_NAME.format(name)]
        for name in lists
        if LENGTHS_NAME.format(name) in lists
    }
    return RowMerger(lengths)


def _read_dims(lookup: Signature | None) -> list[int]:
    """Returns the widths of all tables, in the order of their names; none if one is unknown."""
    if lookup is None:
        return []
    shapes = [spec.shape for spec in lookup.outputs.values()]
    dims = [shape[1] for shape in shapes if shape is not None and len(shape) == 2 and shape[1]]
    return [dim for dim in dims if dim is not None] if len(dims) == len(shapes) else []


def _concatenate(requests: Sequence[Arrays]) -> list[np.ndarray]:
    try:
        return [np.concatenate(parts) for parts in zip(*requests, strict=True)]
    except ValueError as e:  # They are of different widths.
        raise MisfitError(str(e)) from e


def _cut(outputs: Arrays, sizes: Sequence[Sequence[int]]) -> list[list[np.ndarray]]:
    """Cuts each output into pieces of given sizes."""
    for output, pieces in zip(outputs, sizes, strict=True):
        if output.ndim == 0 or len(output) != sum(pieces):
            raise OutputError(f"{sum(pieces)} rows gave an output of {list(output.shape)}.")
    cut: list[list[np.ndarray]] = [[] for _ in sizes[0]] if sizes else []
    for output, pieces in zip(outputs, sizes, strict=True):
        start = 0
        for answer, size in zip(cut, pieces, strict=True):
            answer.append(output[start : start + size])
            start += size
    return cut
