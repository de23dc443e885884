"""Many tensors in one: fewer, larger messages between processes.

Sending two hundred small tensors to another machine costs two hundred messages. Packed, they are
one tensor per type and one with their sizes, and the receiver, who knows the shapes, unpacks them.

Example:
    >>> import tensorflow as tf
    >>> tensors = {"user": tf.constant([[1, 2], [3, 4]]), "item": tf.constant([5])}
    >>> packed, sizes = pack_tensors(tensors)
    >>> packed.numpy().tolist(), sizes.numpy().tolist()
    ([5, 1, 2, 3, 4], [1, 4])
    >>> unpacked = unpack_tensors({"user": [None, 2], "item": [None]}, (packed, sizes))
    >>> unpacked["user"].numpy().tolist()
    [[1, 2], [3, 4]]
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from monolith.tensor.static_reshape import Shape, StaticReshapeNBuilder


def maybe_squeeze_3d_tensor(x: tf.RaggedTensor) -> tf.RaggedTensor:
    """Returns `x` of shape `[batch, (n)]`, or `x` of shape `[batch, 1, (n)]` without its axis 1.

    Raises:
        ValueError: `x` is not ragged, or has another rank.
    """
    if not isinstance(x, tf.RaggedTensor):
        raise ValueError(f"`x` must be a RaggedTensor of rank 2 or 3, got {x!r}.")
    rank = x.shape.rank
    if rank == 2:
        return x
    if rank == 3:
        return tf.squeeze(x, axis=1)
    raise ValueError(f"`x` must be a RaggedTensor of rank 2 or 3, got rank {rank}.")


def pack_tensors(keyed_tensors: Mapping[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """Lays tensors of one type one after the other, in the order of their sorted keys.

    Args:
        keyed_tensors: At least one tensor; all have the same type.

    Returns:
        The packed elements, a vector, and the number of elements of each tensor, int32
        `[len(keyed_tensors)]`.

    Raises:
        ValueError: There is nothing to pack, or the types differ.
    """
    if not keyed_tensors:
        raise ValueError("There is nothing to pack: `keyed_tensors` is empty.")
    builder = StaticReshapeNBuilder()
    for _, tensor in sorted(keyed_tensors.items()):
        builder.add(tf.convert_to_tensor(tensor), [None])
    dtypes = {tensor.dtype.name for tensor in builder.inputs}
    if len(dtypes) > 1:
        raise ValueError(
            f"Only tensors of one type can be packed together, got {sorted(dtypes)}; divide them "
            f"with `split_tensors_with_type` and use `pack_typed_keyed_tensors`."
        )
    flat, sizes = builder.build()
    # With one tensor there is nothing to concatenate, and `tf.concat` would copy it.
    return (flat[0] if len(flat) == 1 else tf.concat(flat, axis=0)), sizes


def unpack_tensors(
    keyed_shape: Mapping[str, Shape], packed: tuple[tf.Tensor, tf.Tensor]
) -> dict[str, tf.Tensor]:
    """Undoes `pack_tensors`.

    Args:
        keyed_shape: The shape of each tensor, with at most one dimension `None`.
        packed: What `pack_tensors` returned.

    Returns:
        The tensors by key, in the order of their sorted keys.
    """
    if not keyed_shape:
        return {}
    packed_tensor, sizes = packed
    keys = sorted(keyed_shape)
    builder = StaticReshapeNBuilder()
    for key, piece in zip(keys, _split(packed_tensor, sizes, len(keys)), strict=True):
        builder.add(piece, keyed_shape[key])
    tensors, _ = builder.build()
    return dict(zip(keys, tensors, strict=True))


def get_keyed_shape(keyed_tensors: Mapping[str, tf.Tensor]) -> dict[str, list[int | None]]:
    """Returns the static shape of each tensor, as `unpack_tensors` takes them.

    Example:
        >>> get_keyed_shape({"user": tf.constant([[1, 2], [3, 4]])})
        {'user': [2, 2]}

    Raises:
        ValueError: The rank of a tensor is unknown.
    """
    shapes = {}
    for key, tensor in keyed_tensors.items():
        if tensor.shape.rank is None:
            raise ValueError(
                f"Tensor {key!r} has an unknown rank, and could not be unpacked; give it a shape "
                f"with `set_shape`."
            )
        shapes[key] = tensor.shape.as_list()
    return shapes


def get_typed_keyed_shape(
    list_of_keyed_tensors: Sequence[Mapping[str, tf.Tensor]],
) -> list[dict[str, list[int | None]]]:
    """Returns the static shapes of several dicts, as `unpack_packed_tensors` takes them."""
    return [get_keyed_shape(keyed_tensors) for keyed_tensors in list_of_keyed_tensors]


def split_tensors_with_type(
    keyed_tensors: Mapping[str, tf.Tensor],
) -> list[dict[str, tf.Tensor]]:
    """Divides tensors by type, in the order of the sorted names of the types."""
    by_type: dict[str, dict[str, tf.Tensor]] = {}
    for key, tensor in keyed_tensors.items():
        by_type.setdefault(str(tensor.dtype), {})[key] = tensor
    return [by_type[dtype] for dtype in sorted(by_type)]


def merge_dicts(dicts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Undoes `split_tensors_with_type`: returns one dict with the items of all `dicts`."""
    return {key: value for d in dicts for key, value in d.items()}


def pack_typed_keyed_tensors(
    list_of_keyed_tensors: Sequence[Mapping[str, tf.Tensor]],
) -> list[tf.Tensor]:
    """Packs several dicts, each with tensors of one type.

    Returns:
        The packed elements of each dict, and last the sizes of all tensors, int32.
    """
    if not list_of_keyed_tensors:
        raise ValueError("There is nothing to pack: `list_of_keyed_tensors` is empty.")
    packed = [pack_tensors(keyed_tensors) for keyed_tensors in list_of_keyed_tensors]
    return [tensor for tensor, _ in packed] + [tf.concat([sizes for _, sizes in packed], axis=0)]


def unpack_packed_tensors(
    list_of_keyed_shape: Sequence[Mapping[str, Shape]], packed_list: Sequence[tf.Tensor]
) -> list[dict[str, tf.Tensor]]:
    """Undoes `pack_typed_keyed_tensors`.

    Args:
        list_of_keyed_shape: For each dict the shape of each tensor.
        packed_list: What `pack_typed_keyed_tensors` returned.

    Raises:
        ValueError: Something else than one tensor per dict and the sizes was given.
    """
    if len(packed_list) != len(list_of_keyed_shape) + 1:
        raise ValueError(
            f"`packed_list` must hold a tensor for each of the {len(list_of_keyed_shape)} dicts "
            f"and the sizes, got {len(packed_list)} tensors."
        )
    *packed_tensors, all_sizes = packed_list
    counts = [len(keyed_shape) for keyed_shape in list_of_keyed_shape]
    sizes_of_dicts = _split(all_sizes, counts, len(counts))
    return [
        unpack_tensors(keyed_shape, packed)
        for keyed_shape, packed in zip(
            list_of_keyed_shape, zip(packed_tensors, sizes_of_dicts, strict=True), strict=True
        )
    ]


def _split(tensor: tf.Tensor, sizes: Any, num: int) -> list[tf.Tensor]:
    return [tensor] if num == 1 else tf.split(tensor, sizes, num=num)
