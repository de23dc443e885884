"""Which functions of a model change its tables, so that not every client may call them.

Those that list the ids of tables are among them: they are for who changes tables, and ids may be
those of people.

What a function is called says little, so its graph is looked at: it writes if what it gives, or
what that waits for, needs an op that writes rows or files of tables. The functions that overwrite
variables are known by their names: models of others write variables in functions that are for
anybody.

Example:
    >>> is_writing_op("MonolithMultiHashTableAssign"), is_writing_op("MonolithMultiHashTableLookup")
    (True, False)
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

VARIABLES_ASSIGN = "variables_assign"

_WRITING_OP = re.compile(
    r"Monolith\w*Table\w*(Assign|Erase|Evict|ForgetTouched|ListIds|Optimize|Reinitialize|Restore"
    r"|Save(?!AsTensor)|TrackTouched)\w*"
)


def assigns_variables(signature: str) -> bool:
    """Returns whether a function of a model takes new values for its variables, or some of them.

    Example:
        >>> assigns_variables("variables_assign"), assigns_variables("variables_assign/1")
        (True, True)
    """
    return signature == VARIABLES_ASSIGN or signature.startswith(f"{VARIABLES_ASSIGN}/")


def is_writing_op(kind: str) -> bool:
    """Returns whether ops of a kind change rows of tables, write them to files, or list them."""
    return _WRITING_OP.fullmatch(kind) is not None


def find_writing(graph_def: Any, definitions: Mapping[str, Any]) -> frozenset[str]:
    """Returns the names of the functions that write.

    Args:
        graph_def: The `GraphDef` of the model.
        definitions: Its `SignatureDef`s by name.
    """
    by_name = frozenset(name for name in definitions if assigns_variables(name))
    functions = {
        function.signature.name: list(function.node_def) for function in graph_def.library.function
    }
    if not any(
        is_writing_op(node.op) for nodes in (graph_def.node, *functions.values()) for node in nodes
    ):
        return by_name
    nodes = {node.name: node for node in graph_def.node}
    return by_name | frozenset(
        name
        for name, definition in definitions.items()
        if _writes(_list_outputs(definition), nodes, functions)
    )


def _writes(
    outputs: Iterable[str], nodes: Mapping[str, Any], functions: Mapping[str, list[Any]]
) -> bool:
    waiting = {_get_node_name(output) for output in outputs}
    seen: set[str] = set()
    called: set[str] = set()
    while waiting:
        seen |= waiting
        reached = [nodes[name] for name in waiting if name in nodes]
        waiting = {_get_node_name(name) for node in reached for name in node.input} - seen
        # Of a function that is called all nodes run, also those that nobody waits for.
        inside = reached
        while inside:
            if any(is_writing_op(node.op) for node in inside):
                return True
            new = set().union(*map(_list_called, inside)) - called
            called |= new
            inside = [node for name in new for node in functions.get(name, ())]
    return False


def _list_called(node: Any) -> set[str]:
    """Returns the functions of a node: its own kind may be one, and attributes may name others."""
    called = {node.op}
    for value in node.attr.values():
        called.update(function.name for function in (value.func, *value.list.func))
    return called


def _list_outputs(definition: Any) -> list[str]:
    names = []
    for info in definition.outputs.values():
        encoding = info.WhichOneof("encoding")
        if encoding == "coo_sparse":
            sparse = info.coo_sparse
            names += [
                sparse.values_tensor_name,
                sparse.indices_tensor_name,
                sparse.dense_shape_tensor_name,
            ]
        elif encoding == "composite_tensor":
            names += [component.name for component in info.composite_tensor.components]
        else:
            names.append(info.name)
    return names


def _get_node_name(tensor: str) -> str:
    return tensor.removeprefix("^").partition(":")[0]
