"""What stands in for kazoo offers the names that are used of it, and says what to install."""

import pytest

from monolith.cluster import kazoo_missing

kazoo = pytest.importorskip("kazoo", reason="kazoo is not installed")


def find_real(name):
    import kazoo.client
    import kazoo.exceptions
    import kazoo.handlers.threading
    import kazoo.retry

    if name == "KazooTimeoutError":
        return kazoo.handlers.threading.KazooTimeoutError
    for module in (kazoo.client, kazoo.exceptions, kazoo.retry):
        if hasattr(module, name):
            return getattr(module, name)
    raise AssertionError(f"kazoo has no {name}")


@pytest.mark.parametrize("name", [n for n in vars(kazoo_missing) if n.startswith(("Kazoo", "No"))])
def test_kazoo_has_the_names(name):
    if name != "NoReturn":
        assert find_real(name).__name__ == name


def test_states_are_those_of_kazoo():
    real = find_real("KazooState")
    for state in ("SUSPENDED", "CONNECTED", "LOST"):
        assert getattr(kazoo_missing.KazooState, state) == getattr(real, state)


@pytest.mark.parametrize("name", ["KazooException", "NodeExistsError", "NoNodeError"])
def test_one_class_catches_all_errors_as_in_kazoo(name):
    assert issubclass(getattr(kazoo_missing, name), kazoo_missing.KazooException)
    assert issubclass(find_real(name), find_real("KazooException"))


@pytest.mark.parametrize("make", [kazoo_missing.KazooClient, kazoo_missing.KazooRetry])
def test_whoever_needs_it_is_told_what_to_install(make):
    with pytest.raises(ImportError, match=r'run `pip install "monolith-recsys\[zookeeper\]"`'):
        make(hosts="127.0.0.1:2181")
