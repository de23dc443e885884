"""Which variable of a checkpoint became which variable of a changed model.

Layers get numbers in the order they are made (`dense_12`), scopes get repeated or lose a level, a
layer is renamed in a new version of the library: the weights are the same, and the names differ.
What is found here is only proposed when names and shapes of *all* variables fit, since a wrong
guess would train on without anyone noticing.

Example:
    >>> infer_alias_map({"tower/dense_1/kernel": [8, 4]}, {"tower/dense_7/kernel": [8, 4]})
    {'tower/dense_1/kernel': 'tower/dense_7/kernel'}
"""

import collections
import re
from collections.abc import Iterable, Mapping, Sequence

Shape = Sequence[int]

# In the middle for the slots of an optimizer: `kernel/part_0/Adam` is a part of `kernel/Adam`; with
# the number of an output in the names that variables tell, such as `kernel/part_0:0`.
_PART_SUFFIX = re.compile(r"/part_(\d+)(?=/|:\d+$|$)", re.ASCII)
_DENSE_LAYER = re.compile(
    r"^(?:(?P<prefix>.+)/)?(?P<layer>[^/]+)/(?P<rest>(?:bias|kernel|trainable_kernel_norm).*)$"
)
_TRAILING_NUMBER = re.compile(r"\d+$", re.ASCII)
_OUTPUT_SUFFIX = re.compile(r":\d+$", re.ASCII)

# Pattern of a part of an old name, to the new text with the pattern's groups in `{}`. The first
# pattern that is found counts.
_MAPPING_RULES: dict[str, str] = {
    r"c_dot/mlp(.*)": "c_dot/compress_tower{}",
    r"dcn/kernel_(\d+)/trainable_norm(.*)": "kernel_{}_trainable_norm{}",
    r"dcn/kernel_(\d+)(.*)": "kernel_{}{}",
    r"dcn/bias_(\d+)/trainable_norm(.*)": "bias_{}_trainable_norm{}",
    r"dcn/bias_(\d+)(.*)": "bias_{}{}",
}


def add_mapping_rules(rules: Mapping[str, str]) -> None:
    """Adds rules to guess new names: pattern of an old name, to the new text.

    Example:
        >>> add_mapping_rules({r"old_tower_(\\d+)(.*)": "new_tower_{}{}"})
        >>> get_guess_name("model/old_tower_3/bias")
        'model/new_tower_3/bias'
    """
    for pattern in rules:
        re.compile(pattern)  # A bad pattern fails here and not in a restore.
    _MAPPING_RULES.update(rules)


def node_name(name: str) -> str:
    """Returns the name of the node that a tensor or a control input comes from."""
    return _OUTPUT_SUFFIX.sub("", name.strip().rstrip("/").lstrip("^"))


def get_new_name(name: str) -> str:
    """Returns a name without the parts of the path that were there before.

    Example:
        >>> get_new_name("model/tower/model/dense/kernel")
        'model/tower/dense/kernel'
    """
    return "/".join(dict.fromkeys(name.split("/")))


def get_guess_name(name: str) -> str:
    """Returns what a variable with an old name is called now, the name itself if not known."""
    for pattern, new_text in _MAPPING_RULES.items():
        match = re.search(pattern, name)
        if match:
            text = new_text.format(*match.groups())
            return name[: match.start()] + text + name[match.end() :]
    return name


def split_name(name: str) -> tuple[str, int]:
    """Splits `dense_12` into `("dense_", 12)`; without a number it is 0."""
    match = _TRAILING_NUMBER.search(name)
    return (name[: match.start()], int(match.group())) if match else (name, 0)


def get_part_index(name: str) -> int:
    """Returns which part of a partitioned variable a name is, 0 if the variable is whole."""
    match = _PART_SUFFIX.search(name)
    return int(match.group(1)) if match else 0


def get_whole_name(name: str) -> str:
    """Returns the name of the variable that a part belongs to; checkpoints have only that."""
    return _PART_SUFFIX.sub("", name)


def infer_variable_name(names: Iterable[str]) -> set[str]:
    """Returns the names of whole variables, given names of their parts.

    Example:
        >>> infer_variable_name(["kernel/part_0", "kernel/part_1"])
        {'kernel'}
        >>> infer_variable_name(["kernel/part_0:0", "kernel/part_1:0"])
        {'kernel:0'}
    """
    return {get_whole_name(name) for name in names}


def infer_alias_map(
    variables: Mapping[str, Shape], saved: Mapping[str, Shape]
) -> dict[str, str] | None:
    """Finds out what variables were called when the checkpoint was written.

    Args:
        variables: Names and shapes of the variables of the graph, parts on their own.
        saved: Names and shapes of the variables of the checkpoint.

    Returns:
        The old name for each of `variables`; None if some cannot be explained.
    """
    wanted = _merge_parts(variables)
    aliases = _match_dense_layers(wanted, saved)
    aliases.update(_match_renamed(wanted, saved, aliases))
    old_names = {name: aliases.get(name, name) for name in wanted}
    for name, old_name in old_names.items():
        if list(saved.get(old_name, ())) != list(wanted[name]) or old_name not in saved:
            return None
    if len(set(old_names.values())) != len(old_names):
        return None
    return {name: old_names[get_whole_name(name)] for name in variables}


def _merge_parts(variables: Mapping[str, Shape]) -> dict[str, list[int]]:
    """Returns names and shapes of whole variables; parts follow each other on the first axis."""
    merged: dict[str, list[int]] = {}
    for name, shape in variables.items():
        whole = merged.get(get_whole_name(name))
        if whole is None:
            merged[get_whole_name(name)] = list(shape)
        else:
            whole[0] += shape[0]
    return merged


def _match_renamed(
    wanted: Mapping[str, Shape], saved: Mapping[str, Shape], known: Mapping[str, str]
) -> dict[str, str]:
    """Returns new name to old name where a rule turns exactly one old name into the new one."""
    found = collections.defaultdict(set)
    for old_name in saved.keys() - wanted.keys():
        shorter = get_new_name(old_name)
        for new_name in {shorter, get_guess_name(old_name), get_guess_name(shorter)}:
            if new_name in wanted and new_name not in saved and new_name not in known:
                found[new_name].add(old_name)
    return {new_name: olds.pop() for new_name, olds in found.items() if len(olds) == 1}


def _match_dense_layers(wanted: Iterable[str], saved: Iterable[str]) -> dict[str, str]:
    """Returns new name to old name for layers that have other numbers now.

    The layers of one scope and kind are matched in the order of their numbers, all of them: where
    `dense_1` and `dense_2` became `dense` and `dense_1`, `dense_1` must not be taken for itself.
    """
    old_scopes = _group_dense_layers(saved)
    for scope, kind in list(old_scopes):
        shorter = get_new_name(scope), kind
        old_scopes.setdefault(shorter, old_scopes[scope, kind])
    aliases = {}
    for scope_and_kind, layers in _group_dense_layers(wanted).items():
        old_layers = old_scopes.get(scope_and_kind, {})
        if len(layers) != len(old_layers):
            continue
        for number, old_number in zip(sorted(layers), sorted(old_layers), strict=True):
            for rest, name in layers[number].items():
                if rest in old_layers[old_number]:
                    aliases[name] = old_layers[old_number][rest]
    return {name: old_name for name, old_name in aliases.items() if name != old_name}


def _group_dense_layers(
    names: Iterable[str],
) -> dict[tuple[str, str], dict[int, dict[str, str]]]:
    """Returns, by scope and kind of layer, by number, by the rest of the name, the name."""
    groups: dict[tuple[str, str], dict[int, dict[str, str]]] = {}
    for name in names:
        match = _DENSE_LAYER.match(name)
        if match:
            kind, number = split_name(match["layer"])
            group = groups.setdefault((match["prefix"] or "", kind.rstrip("_")), {})
            group.setdefault(number, {})[match["rest"]] = name
    return groups
