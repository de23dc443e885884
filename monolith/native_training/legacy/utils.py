"""Small helpers that people know as `monolith.native_training.utils`.

Those that this package uses itself live where their concern does; they are here under both names.

Example:
    >>> ps_device(3)
    '/job:ps/task:3/device:CPU:0'
"""

import collections
import contextlib
import copy
import inspect
import os
import platform
import socket
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, TypeVar

import tensorflow as tf

from monolith.core.hyperparams import InstantiableParams, Params, allowed_kwargs
from monolith.core.metrics import get_metric_prefix, set_metric_prefix
from monolith.core.naming import get_uname, to_snake_case
from monolith.graph.dependence import check_ops_dependence
from monolith.graph.devices import PS_JOB_NAME, ps_device
from monolith.graph.gradients import propagate_back_gradients
from monolith.graph.metadata import add_to_collections

__all__ = [
    "PS_JOB_NAME",
    "add_to_collections",
    "check_list",
    "check_ops_dependence",
    "extend_as_list",
    "get_collection",
    "get_debugging_info_file_name",
    "get_local_host",
    "get_meta_graph_file_name",
    "get_metric_prefix",
    "get_ndim",
    "get_test_tmp_dir",
    "int_shape",
    "params",
    "propagate_back_dict_gradients",
    "propagate_back_gradients",
    "ps_device",
    "set_metric_prefix",
    "to_list",
    "to_snake_case",
    "with_params",
]

_ClassT = TypeVar("_ClassT", bound=type)
_KeyT = TypeVar("_KeyT")


def propagate_back_dict_gradients(
    grads_and_vars: Iterable[tuple[Any, Any]],
    x_to_key: Mapping[Any, _KeyT],
    valid_var_set: AbstractSet[Any] | None = None,
) -> dict[_KeyT, list[tuple[Any, Any]]]:
    """Does `propagate_back_gradients` to the keys of `x_to_key` and groups the result by value.

    Returns:
        Pairs of gradient and tensor for each group, in the order of `x_to_key`.
    """
    dxs = propagate_back_gradients(grads_and_vars, x_to_key.keys(), valid_var_set)
    grouped = collections.defaultdict(list)
    for dx, (x, key) in zip(dxs, x_to_key.items(), strict=True):
        grouped[key].append((dx, x))
    return grouped


def get_ndim(x: Any) -> int | None:
    """Returns the number of dimensions of a tensor, None if it is not known."""
    return x.get_shape().rank


def int_shape(x: Any) -> list[int] | None:
    """Returns the static shape with -1 for unknown dimensions, None if their number is unknown."""
    try:
        return [_int_dim(dim) for dim in x.get_shape().as_list()]
    except ValueError:
        return None


def _int_dim(dim: Any) -> int:
    if isinstance(dim, tf.compat.v1.Dimension):
        dim = dim.value
    if dim is None:
        return -1
    if isinstance(dim, int):
        return dim
    raise ValueError(f"A dimension must be an int or None, got {dim!r}.")


def extend_as_list(x: Any, n: int) -> Any:
    """Makes a list of `n` elements.

    A list or tuple that is too short is filled up with None, one that is long enough is returned
    itself. Anything else is repeated, as deep copies where possible.
    """
    if isinstance(x, (list, tuple)):
        return x if len(x) >= n else list(x) + [None] * (n - len(x))
    try:
        return [x if i == 0 else copy.deepcopy(x) for i in range(n)]
    except Exception:  # noqa: BLE001 - a deep copy may fail in as many ways as there are classes
        return [x] * n


def check_list(
    candidate: Any, length_checker: Callable[[int], bool], could_be_none: bool = False
) -> Any:
    """Returns `candidate` if it is a list of a good length, or an allowed None.

    Raises:
        TypeError: It is neither a list nor an allowed None.
        ValueError: `length_checker` refuses its length.
    """
    if candidate is None and could_be_none:
        return candidate
    if not isinstance(candidate, list):
        raise TypeError(f"Expected a list, got {candidate!r}.")
    if not length_checker(len(candidate)):
        raise ValueError(f"The list has an unexpected length of {len(candidate)}: {candidate!r}.")
    return candidate


def to_list(x: Any) -> list[Any]:
    """Returns a list itself, anything else, tuples too, as the only element of one."""
    return x if isinstance(x, list) else [x]


def _get_parameters(cls: type, parameters: dict[str, inspect.Parameter]) -> None:
    """Adds the parameters of the constructor of `cls`, without `self` and variadic ones."""
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    for name, parameter in inspect.signature(cls.__init__).parameters.items():  # type: ignore[misc]
        if name not in ("self", "cls") and parameter.kind not in variadic:
            parameters[name] = parameter


def _get_all_parameters(cls: type, parameters: dict[str, inspect.Parameter]) -> None:
    """Adds the parameters of the constructors of all base classes, then those of `cls`."""
    for base in cls.__bases__:
        if base is not object:
            _get_all_parameters(base, parameters)
    _get_parameters(cls, parameters)


def _inverted_index(ips: Params, idx_dict: dict[str, Params]) -> None:
    """Adds, for each name in a tree of params, the params that hold it, outer before inner ones."""
    for _, value in ips.iter_params():
        if isinstance(value, Params):
            _inverted_index(value, idx_dict)
    for name, value in ips.iter_params():
        if not isinstance(value, Params):
            idx_dict[name] = ips


def params(cls: type) -> InstantiableParams:
    """Derives params from the constructors of a class and its bases.

    They start from the params of the nearest base class that has some. Each constructor argument
    becomes a param with the same default, None where it has none; one that a base class's params
    hold already, at any depth, gets its default there.
    """
    ips = _params_of_nearest_base(cls)
    ips.cls = cls
    owners: dict[str, Params] = {}
    _inverted_index(ips, owners)
    parameters: dict[str, inspect.Parameter] = {}
    _get_all_parameters(cls, parameters)

    _try_define(ips, "name", get_uname(cls.__name__))
    for name, parameter in parameters.items():
        has_default = parameter.default is not inspect.Parameter.empty
        default = parameter.default if has_default else None
        if name in owners:
            if has_default:
                owners[name][name] = default
        elif not _try_define(ips, name, default) and default is not None and name in ips:
            ips[name] = default
    for name in sorted(allowed_kwargs):
        _try_define(ips, name, None)
    return ips


def _params_of_nearest_base(cls: type) -> InstantiableParams:
    for base in cls.__mro__[1:]:
        method = getattr(base, "params", None)
        # Only a class method: instances of Keras layers may have anything under this name.
        if inspect.ismethod(method):
            return method()
    return InstantiableParams(cls)


def _try_define(ips: InstantiableParams, name: str, default: Any) -> bool:
    # Refused are names that exist already and those that are no param names, such as `maxLen`;
    # the constructor's own default serves the latter.
    with contextlib.suppress(AttributeError, AssertionError):
        ips.define(name, default, name)
        return True
    return False


def with_params(cls: _ClassT) -> _ClassT:
    """Class decorator that adds a class method `params()`, see `params`."""
    cls.params = classmethod(params)  # type: ignore[attr-defined]
    return cls


def get_local_host() -> str:
    """Returns the address that the name of this machine resolves to."""
    host_name = socket.gethostname()
    if platform.system() not in ("Windows", "Linux"):
        host_name += ".local"
    return socket.gethostbyname(host_name)


def get_test_tmp_dir() -> str:
    """Returns the directory where tests may write."""
    return os.environ.get("TEST_TMPDIR", "/tmp")


def get_debugging_info_file_name(model_dir: str) -> str:
    """Returns where a model directory keeps its `DebuggingInfo`."""
    return os.path.join(model_dir, "debugging_info.pb")


def get_meta_graph_file_name(model_dir: str) -> str:
    """Returns where a model directory keeps the graph that a debugging session loads."""
    return os.path.join(model_dir, "meta_graph_for_debugging.pb")


def get_collection(name: str) -> Any:
    """Returns a collection of the default graph, None if it is empty."""
    return tf.compat.v1.get_collection(name) or None
