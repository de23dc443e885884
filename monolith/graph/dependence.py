"""A check that running some ops does not run others, too, a second time."""

import tensorflow as tf


def check_ops_dependence(op_names_1: str | list[str], op_names_2: str | list[str]) -> None:
    """Checks that running some ops of the default graph does not run some others too.

    Args:
        op_names_1: Name or names of the ops that are run.
        op_names_2: Name or names of the ops that must not be among what they depend on.

    Raises:
        RuntimeError: They are.
    """
    graph = tf.compat.v1.get_default_graph()
    pending = [graph.get_operation_by_name(name) for name in _to_op_names(op_names_1)]
    needed = set()
    while pending:
        op = pending.pop()
        if op.name not in needed:
            needed.add(op.name)
            pending += [tensor.op for tensor in op.inputs] + list(op.control_inputs)
    shared = [name for name in _to_op_names(op_names_2) if name in needed]
    if shared:
        shared_names = ",".join(shared)
        raise RuntimeError(
            f"Checking ops dependence, the ops [{','.join(_to_op_names(op_names_1))}] depend on "
            f"ops [{shared_names}], which may cause ops [{shared_names}] to be run twice."
        )


def _to_op_names(names: str | list[str]) -> list[str]:
    """Returns names of ops for names of ops or of their outputs."""
    return [name.partition(":")[0] for name in ([names] if isinstance(names, str) else names)]
