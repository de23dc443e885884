"""Which input a dataset is: so that a saved position is only ever used for the input it belongs to.

Two datasets are the same input if their pipelines are built alike, over equal constants, and if the
files that those constants name are the same: by name, size and time of change. A program that is
started again gives the same identity; names that TensorFlow numbers, places in memory, and seeds of
shuffles, which a position brings along, have no part in it. What a function of Python does is not
in the graph; but the readers of this package call one that a description stands beside.

Example:
    >>> with tf.Graph().as_default():
    ...     def identify_range(stop):
    ...         dataset = tf.data.Dataset.range(stop).map(lambda x: x * 2).shuffle(4)
    ...         return identify([dataset._variant_tensor])
    ...     identify_range(3) == identify_range(3), identify_range(3) == identify_range(4)
    (True, False)
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, node_def_pb2
from tensorflow.python.framework import op_def_registry

from monolith import errors
from monolith.data import seekable

# Attributes that name things, count them, or say where they are.
_NAMES = frozenset({"metadata", "shared_name", "container", "seed", "seed2"})
_SEEDS = frozenset({"seed", "seed2", "seed_generator"})
# What decides here about the data is not in the graph.
_PYTHON = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})
_FED = frozenset({"Placeholder", "PlaceholderV2"})
_SERVICE = "DataService"
_PATTERN_CHARACTERS = frozenset("*?[")
_MAX_PATH_LENGTH = 4096
# Of more strings than that, such as a vocabulary, only the content counts.
_MAX_PATHS = 100_000


# What the text of an input begins with that may go on after its end.
STREAM = "stream "


class UnknownInputError(errors.MonolithError):
    """Nobody can tell this input from another one; the message says why."""


class _Node(NamedTuple):
    """A node of a graph or of a function.

    Attributes:
        definition: Its type and attributes.
        inputs: Names of the nodes before it, each with the number or name of the output.
    """

    definition: node_def_pb2.NodeDef
    inputs: list[tuple[str, str]]


def identify(datasets: Sequence[tf.Tensor]) -> str:
    """Returns a short text that is the same for the same input only.

    Args:
        datasets: The variants of the datasets, in one graph.

    Raises:
        UnknownInputError: A part of a pipeline is not in the graph, such as a Python function.
    """
    pipelines = _Pipelines(datasets[0].graph if datasets else tf.Graph())
    digest = hashlib.sha256()
    for dataset in datasets:
        digest.update(pipelines.digest(dataset))
    for line in _describe_files(pipelines.strings):
        digest.update(line.encode() + b"\0")
    return f"{STREAM if pipelines.has_stream else ''}{digest.hexdigest()}"


class _Pipelines:
    """Digests of parts of a graph that do not depend on the names in it."""

    def __init__(self, graph: tf.Graph) -> None:
        self.strings: set[bytes] = set()
        self.has_stream = False
        self._graph = graph
        self._nodes: dict[str, bytes] = {}
        self._functions: dict[str, bytes] = {}
        self._descriptions: set[bytes] = set()  # Digests of nodes that say what a reader reads.

    def digest(self, tensor: tf.Tensor) -> bytes:
        def find(name: str) -> _Node:
            op = self._graph.get_operation_by_name(name)
            inputs = [(before.op.name, str(before.value_index)) for before in op.inputs]
            return _Node(op.node_def, inputs)

        self._digest_nodes([tensor.op.name], find, self._nodes)
        return _combine(self._nodes[tensor.op.name], str(tensor.value_index).encode())

    def _digest_nodes(self, names: Iterable[str], find: Any, known: dict[str, bytes]) -> None:
        """Adds the digests of nodes, and of all before them, to `known`."""
        # Without recursion: a pipeline may be longer than Python's stack is deep.
        pending = list(names)
        path: set[str] = set()
        while pending:
            if pending[-1] in known:
                pending.pop()
                continue
            node = find(pending[-1])
            path.add(pending[-1])
            missing = [name for name, _ in node.inputs if name not in known]
            known.update({name: b"loop" for name in missing if name in path})
            if missing:
                pending += missing
                continue
            known[pending.pop()] = self._digest_node(node, known)

    def _digest_node(self, node: _Node, known: dict[str, bytes]) -> bytes:
        definition = node.definition
        is_described = any(known[name] in self._descriptions for name, _ in node.inputs)
        _check_can_be_seen(definition, is_described)
        called = self._find_function(definition.op)
        parts = [definition.op.encode() if called is None else self._digest_function(called)]
        ignored = _NAMES | {"token"} if definition.op in _PYTHON else _NAMES
        for name in sorted(definition.attr):
            if not name.startswith("_") and name not in ignored:
                parts += [name.encode(), self._digest_attribute(definition.attr[name])]
        arguments = _name_arguments(definition)
        for i, (name, output) in enumerate(node.inputs):
            if i >= len(arguments) or arguments[i] not in _SEEDS:
                parts += [known[name], output.encode()]
        if definition.op == "Const" and definition.attr["dtype"].type == tf.string.as_datatype_enum:
            values = np.ravel(tf.make_ndarray(definition.attr["value"].tensor)).tolist()
            if values and values[0].startswith(seekable.MARK):
                self._descriptions.add(_combine(*parts))
                self.has_stream |= values[0].startswith(seekable.STREAM_MARK)
            else:
                self.strings.update(values)
        return _combine(*parts)

    def _digest_attribute(self, value: attr_value_pb2.AttrValue) -> bytes:
        functions = [value.func] if value.HasField("func") else list(value.list.func)
        if not functions:
            return bytes(value.SerializeToString(deterministic=True))
        return _combine(*[self._digest_function_named(function.name) for function in functions])

    def _digest_function_named(self, name: str) -> bytes:
        function = self._find_function(name)
        return name.encode() if function is None else self._digest_function(function)

    def _digest_function(self, definition: Any) -> bytes:
        name = definition.signature.name
        if name not in self._functions:
            self._functions[name] = b"itself"  # What a function that calls itself finds.
            arguments = {arg.name: i for i, arg in enumerate(definition.signature.input_arg)}
            nodes = {node.name: node for node in definition.node_def}

            def find(name: str) -> _Node:
                return _Node(nodes[name], [_split(i) for i in nodes[name].input if i[0] != "^"])

            known = {arg: f"argument {i}".encode() for arg, i in arguments.items()}
            results = [_split(definition.ret[r.name]) for r in definition.signature.output_arg]
            # Also nodes that no result needs: an assertion, or an op that reads a file.
            self._digest_nodes([*arguments, *nodes], find, known)
            others = sorted(known[name] for name in nodes)
            found = [_combine(known[name], output.encode()) for name, output in results]
            self._functions[name] = _combine(*found, *others)
        return self._functions[name]

    def _find_function(self, name: str) -> Any:
        if not self._graph._is_function(name):
            return None
        return self._graph._get_function(name).cached_definition


def _check_can_be_seen(node: node_def_pb2.NodeDef, is_described: bool) -> None:
    if node.op in _PYTHON and not is_described:
        reason = "calls a Python function"
        way_out = "read files with `monolith.data` or with ops of `tf.data` alone"
    elif node.op in _FED:
        reason, way_out = "is fed from outside", "build it of constants"
    elif _SERVICE in node.op:
        reason, way_out = "comes from a data service", "let each worker read its files"
    else:
        return
    raise UnknownInputError(
        f"its pipeline {reason} ({node.op}), so that it cannot be told from another one; to have a "
        f"position saved, {way_out}"
    )


def _name_arguments(node: node_def_pb2.NodeDef) -> list[str]:
    """Returns the name of the argument that each input of a node belongs to."""
    op_def = op_def_registry.get(node.op)
    names: list[str] = []
    for argument in op_def.input_arg if op_def is not None else ():
        if argument.number_attr:
            count = int(node.attr[argument.number_attr].i)
        elif argument.type_list_attr:
            count = len(node.attr[argument.type_list_attr].list.type)
        else:
            count = 1
        names += [argument.name] * count
    return names


def _split(name: str) -> tuple[str, str]:
    """Returns node and output of an input in a function, such as `node:output:0`."""
    node, _, output = name.partition(":")
    return node, output


def _describe_files(strings: set[bytes]) -> Iterator[str]:
    for value in sorted(strings)[:_MAX_PATHS]:
        try:
            path = value.decode()
        except UnicodeDecodeError:
            continue
        if not path or len(path) > _MAX_PATH_LENGTH or not path.isprintable():
            continue
        try:
            found = [path]
            if _PATTERN_CHARACTERS & set(path):
                found = sorted(tf.io.gfile.glob(path))
            for file in found:
                yield from _describe_file(file)
        except (tf.errors.OpError, OSError):
            continue  # No path at all, such as one with a scheme that nobody knows.


def _describe_file(path: str) -> Iterator[str]:
    if "://" not in path:
        if os.path.isfile(path):
            local = os.stat(path)
            yield f"{path} {local.st_size} {local.st_mtime_ns}"
        return
    remote = tf.io.gfile.stat(path)
    if not remote.is_directory:
        yield f"{path} {remote.length} {remote.mtime_nsec}"


def _combine(*parts: bytes) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()
