"""Which part of the input a worker reads, without anybody writing it.

Every worker of a job builds the same pipeline. Whoever runs it offers this worker's part: the
readers of this package take every n-th file, if there are enough; any other dataset is divided by
the files that it reads, if there are enough, and otherwise by elements, as a rule batches. An input
function that divides the input itself (`Dataset.shard`) is left alone.

Elements can only be divided if all workers see them in one order. So shuffles that have no seed get
one that is the same in all workers, and another one in each job.

Example:
    >>> def input_fn():
    ...     return tf.data.Dataset.range(6).batch(2)
    >>> parts = [divide(input_fn, Part(index, of=2)) for index in range(2)]
    >>> [[batch.tolist() for batch in part.as_numpy_iterator()] for part in parts]
    [[[0, 1], [4, 5]], [[2, 3]]]
"""

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.data.experimental.ops import distribute
from tensorflow.python.data.util import random_seed as dataset_seeds

from monolith import errors

logger = logging.getLogger(__name__)

_READERS = frozenset(
    {
        "FixedLengthRecordDataset",
        "FixedLengthRecordDatasetV2",
        "TextLineDataset",
        "TFRecordDataset",
        "TFRecordDatasetV2",
    }
)
_DIVIDERS = frozenset({"AutoShardDataset", "ShardDataset"})
_BY_FILE = tf.data.experimental.AutoShardPolicy.FILE


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of the input.

    Attributes:
        index: Which one, from 0.
        of: How many there are.
        seed: Of shuffles that have none of their own; None leaves them as they are.
    """

    index: int
    of: int
    seed: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.of:
            raise errors.ConfigError(
                f"An input of {self.of} parts has no part {self.index}; they count from 0."
            )


@dataclasses.dataclass
class _Offer:
    """A part that readers may take."""

    part: Part
    by_files: bool
    num_taken: int = 0
    num_refused: int = 0
    # Of an input that is read split by split: the number of the file to read.
    split: tf.Tensor | None = None
    files: list[str] = dataclasses.field(default_factory=list)


_offer: _Offer | None = None


def divide(input_fn: Callable[[], Any], part: Part) -> Any:
    """Calls an input function and returns its dataset with the elements of one part only.

    Args:
        input_fn: Builds the input, in the same way in all workers. May be called twice.
        part: Which part.

    Returns:
        What `input_fn` returns; as a whole, if that is no dataset, or one that is divided already.
    """
    result, offer = _call(input_fn, part, by_files=True)
    if offer.num_taken and offer.num_refused:
        # Half of the readers would read everything.
        result, offer = _call(input_fn, part, by_files=False)
    if part.of == 1 or not isinstance(result, tf.data.Dataset):
        return result
    if offer.num_taken:
        how = "files"
    elif _find_ops(result) & _DIVIDERS:
        logger.info("the input function divides the input itself, among %d workers", part.of)
        return result
    elif _count_files(result) >= part.of:
        how = "files"
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = _BY_FILE
        result = distribute._AutoShardDataset(result.with_options(options), part.of, part.index)
    else:
        how = "batches"
        result = result.shard(part.of, part.index)
    logger.info("this is worker %d of %d, which reads its part of the %s", part.index, part.of, how)
    return result


def build_split(input_fn: Callable[[], Any], split: tf.Tensor) -> tuple[tf.data.Dataset, list[str]]:
    """Calls an input function and returns its dataset with one of its files only.

    Args:
        input_fn: Builds the input.
        split: The number of the file, which need not be known before the dataset is read.

    Returns:
        The dataset, and all files of the input.

    Raises:
        errors.ConfigError: It is no dataset of files, or divides its input itself, or has several
            sources.
    """
    offer = _Offer(Part(0, of=1), by_files=True, split=split)
    with _offered(offer):
        result = input_fn()
    if not isinstance(result, tf.data.Dataset):
        raise _make_refusal(f"it is a {type(result).__name__}")
    if offer.num_taken == 1:
        return result, offer.files
    if offer.num_taken:
        raise _make_refusal(f"it has {offer.num_taken} readers")
    if _find_ops(result) & _DIVIDERS:
        raise _make_refusal("it is divided by the input function itself (`shard`)")
    files = _list_files(result)
    if not files:
        raise _make_refusal("no files are found in it, or several lists of them")
    if _shuffles_files(result):
        raise _make_refusal("it shuffles the names of its files (`list_files(..., shuffle=False)`)")
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = _BY_FILE
    result = result.with_options(options)
    return distribute._AutoShardDataset(result, len(files), split), files


def get_split(paths: Sequence[str]) -> tf.Tensor | None:
    """Returns which file alone a reader is to read; None if it is to read all that it takes."""
    if _offer is None or _offer.split is None:
        return None
    _offer.num_taken += 1
    _offer.files = list(paths)
    return _offer.split


def take_files(paths: Sequence[str]) -> list[str]:
    """Returns the files of the part that is being built; all of them, if there are too few.

    For readers, with the files that they have found.
    """
    if _offer is None:
        return list(paths)
    part = _offer.part
    if not _offer.by_files or len(paths) < part.of:
        _offer.num_refused += 1
        return list(paths)
    _offer.num_taken += 1
    return list(paths[part.index :: part.of])


def take_part() -> Part:
    """Returns which part of a stream a reader is to read, of those that it makes itself.

    Raises:
        errors.ConfigError: Workers are to take the input file by file.
    """
    if _offer is None:
        return Part(0, of=1)
    if _offer.split is not None:
        raise _make_refusal("it is a stream, of which each worker reads its part")
    _offer.num_taken += 1
    return _offer.part


def is_offered() -> bool:
    """Returns whether the input of one worker is being built, which readers take their part of."""
    return _offer is not None


def get_seed() -> int | None:
    """Returns the seed for a reader that shuffles and was given none; None outside of a job."""
    return None if _offer is None else _offer.part.seed


def _call(input_fn: Callable[[], Any], part: Part, *, by_files: bool) -> tuple[Any, _Offer]:
    offer = _Offer(part, by_files)
    with _offered(offer), _seeded(part.seed):
        return input_fn(), offer


@contextlib.contextmanager
def _offered(offer: _Offer) -> Iterator[None]:
    global _offer
    previous, _offer = _offer, offer
    try:
        yield
    finally:
        _offer = previous


@contextlib.contextmanager
def _seeded(seed: int | None) -> Iterator[None]:
    """Gives random ops of a graph that have no seed one; a seed that is given decides alone."""
    if seed is None or tf.executing_eagerly():
        yield
        return
    graph = tf.compat.v1.get_default_graph()
    previous, get_seed = graph.seed, dataset_seeds.get_seed

    def get_seed_that_was_given(given: int | None) -> Any:
        # TensorFlow would mix it with the one of the graph, and a job's order with that of another.
        if given is None:
            return get_seed(given)
        current, graph.seed = graph.seed, previous
        try:
            return get_seed(given)
        finally:
            graph.seed = current

    if previous is None:
        graph.seed = seed
    dataset_seeds.get_seed = get_seed_that_was_given
    try:
        yield
    finally:
        graph.seed = previous
        dataset_seeds.get_seed = get_seed


def _make_refusal(what: str) -> errors.ConfigError:
    return errors.ConfigError(
        "With `enable_dynamic_sharding` workers take the files of one input, a reader of "
        f"monolith.data or a dataset of files, but {what}; change the input, or leave the setting "
        "out, and each worker reads its part."
    )


def _count_files(dataset: tf.data.Dataset) -> int:
    """Returns how many files a dataset reads, 0 if nobody can tell."""
    return len(_list_files(dataset))


def _list_files(dataset: tf.data.Dataset) -> list[str]:
    """Returns the files that a dataset reads, none if nobody can tell."""
    if tf.executing_eagerly() or not _find_ops(dataset) & _READERS:
        return []
    makers = {"TensorSliceDataset", *_READERS}
    names = [_find_texts(op.inputs[0]) for op in _walk(dataset) if op.type in makers]
    sources = [texts for texts in names if texts]
    # With several, files that belong together might go to different workers.
    return sources[0] if len(sources) == 1 else []


def _find_texts(tensor: tf.Tensor) -> list[str]:
    """Returns the names of files in a tensor, none if the graph does not say."""
    while tensor.op.type in ("Identity", "Reshape"):
        tensor = tensor.op.inputs[0]
    if tensor.op.type == "MatchingFiles":
        # In the order of the op.
        patterns = _find_texts(tensor.op.inputs[0])
        return sorted(name for pattern in patterns for name in tf.io.gfile.glob(pattern))
    values = tf.get_static_value(tensor) if tensor.dtype == tf.string else None
    return [] if values is None else [value.decode() for value in values.ravel()]


def _shuffles_files(dataset: tf.data.Dataset) -> bool:
    """Returns whether files are shuffled before they are read: a number would mean any of them."""
    shuffles = [op for op in _walk(dataset) if op.type.startswith("ShuffleDataset")]
    return any(not _find_ops(op) & _READERS for op in shuffles)


def _find_ops(dataset: tf.data.Dataset | tf.Operation) -> set[str]:
    """Returns the types of all ops of a pipeline, those inside of its functions included."""
    if tf.executing_eagerly():
        return set()
    types: set[str] = set()
    graph = (dataset if isinstance(dataset, tf.Operation) else dataset._variant_tensor).graph
    functions: list[str] = []

    def visit(node: Any) -> None:
        types.add(node.op)
        for value in node.attr.values():
            functions.extend(f.name for f in [value.func, *value.list.func] if f.name)

    for op in _walk(dataset):
        visit(op.node_def)
    seen: set[str] = set()
    while functions:
        name = functions.pop()
        if name in seen or not graph._is_function(name):
            continue
        seen.add(name)
        for node in graph._get_function(name).cached_definition.node_def:
            visit(node)
    return types


def _walk(dataset: tf.data.Dataset | tf.Operation) -> Iterator[tf.Operation]:
    """Yields the ops before a dataset, and its own."""
    pending = [dataset if isinstance(dataset, tf.Operation) else dataset._variant_tensor.op]
    seen = set()
    while pending:
        op = pending.pop()
        if op in seen:
            continue
        seen.add(op)
        yield op
        pending += [tensor.op for tensor in op.inputs]
