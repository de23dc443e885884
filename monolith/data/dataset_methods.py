"""What programs for the original system call on their datasets of rows.

`attach` makes methods of them: `dataset.transform(t)` and `dataset.distribute()`. Rows are
serialized Instances or Examples. Which of both, the collection `monolith_dataset_output_pb_type` of
the graph says; in eager mode, where there are no collections, it is an argument.

Example:
    >>> from monolith.data import transforms
    >>> from monolith.proto import example_pb2
    >>> rows = [example_pb2.Example(label=[i]).SerializeToString() for i in range(3)]
    >>> dataset = tf.data.Dataset.from_tensor_slices(rows)
    >>> kept = TransformDataset(dataset, transforms.FilterByLabel([2.0]), "example")
    >>> len(list(kept))
    1
    >>> [bool(is_last) for _, is_last in CacheOneDataset(dataset)]
    [False, False, True]
"""

from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops

from monolith import errors
from monolith.data import transforms

# The collection with the type of rows of the graph's datasets.
OUTPUT_PB_TYPE_GRAPH_KEY = "monolith_dataset_output_pb_type"
# The collection with the item pools of a graph.
POOL_KEY = "TF_ITEMPOOL"

_ROW_TYPES = ("instance", "example")


class _Dataset(dataset_ops.UnaryDataset):
    """A dataset under another name."""

    def __init__(self, dataset: tf.data.Dataset) -> None:
        self._name = None
        self._spec = dataset.element_spec
        super().__init__(dataset, dataset._variant_tensor)

    @property
    def element_spec(self) -> Any:
        return self._spec


class TransformDataset(_Dataset):
    """The rows that a transform leaves, as it makes them.

    Args:
        input_dataset: Rows.
        transform: What to do with them, see `monolith.data.transforms`.
        variant_type: What a row is, `instance` or `example`.
    """

    def __init__(
        self,
        input_dataset: tf.data.Dataset,
        transform: transforms.Transform,
        variant_type: str,
    ) -> None:
        super().__init__(transforms.transform(input_dataset, transform, variant_type))


class CacheOneDataset(_Dataset):
    """Pairs of an element and whether it is the last one, which is read one ahead to know that.

    Args:
        input_dataset: What to read.
    """

    def __init__(self, input_dataset: tf.data.Dataset) -> None:
        # One pass over the input: two readings of it need not agree.
        super().__init__(input_dataset.window(2, shift=1).flat_map(_pair_first))


def read_row_type() -> str:
    """Returns what the rows of the current graph's datasets are, `instance` or `example`.

    Raises:
        errors.ConfigError: The collection does not have exactly one type, or another one.
    """
    found = [] if tf.executing_eagerly() else tf.compat.v1.get_collection(OUTPUT_PB_TYPE_GRAPH_KEY)
    types = {_name_type(value) for value in found}
    if len(types) != 1 or not types <= set(_ROW_TYPES):
        raise errors.ConfigError(
            f"The collection {OUTPUT_PB_TYPE_GRAPH_KEY!r} of the graph must say whether rows are "
            f"'instance' or 'example', but it has {sorted(types)}; give `variant_type`."
        )
    return types.pop()


def note_row_type(output_type: str) -> None:
    """Notes in the current graph what the rows of a dataset are."""
    if not tf.executing_eagerly():
        collection = tf.compat.v1.get_collection_ref(OUTPUT_PB_TYPE_GRAPH_KEY)
        if output_type not in collection:
            collection.append(output_type)


def attach() -> None:
    """Makes methods of the functions, for all datasets of the process."""
    tf.data.Dataset.transform = _transform
    tf.data.Dataset.distribute = _distribute


def _transform(
    self: tf.data.Dataset, t: transforms.Transform, variant_type: str | None = None
) -> tf.data.Dataset:
    """Returns the rows that a transform leaves, as it makes them."""
    return TransformDataset(self, t, variant_type or read_row_type())


def _distribute(self: tf.data.Dataset, *unused: Any, **also_unused: Any) -> tf.data.Dataset:
    """Returns the dataset: workers divide their files themselves."""
    return self


def _name_type(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _pair_first(*window: Any) -> tf.data.Dataset:
    """Returns the first element of a window, with whether there is no other one in it."""
    elements = tf.data.Dataset.zip(window[0] if len(window) == 1 else window)
    is_last = elements.reduce(0, lambda count, *element: count + 1) < 2
    return elements.take(1).map(
        lambda *element: (element[0] if len(element) == 1 else element, is_last)
    )
