"""Old and new names of variables."""

import pytest

from monolith.checkpoint import alias_names
from monolith.native_training import dense_reload_utils


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dense/kernel", "dense/kernel"),
        (" dense/kernel:0\n", "dense/kernel"),
        ("^dense/kernel", "dense/kernel"),
        ("scope/", "scope"),
        ("dense_1/kernel:12", "dense_1/kernel"),
    ],
)
def test_node_name(name, expected):
    assert dense_reload_utils.node_name(name) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [("a/a/kernel", "a/kernel"), ("a/b/a/kernel", "a/b/kernel"), ("a/b/kernel", "a/b/kernel")],
)
def test_get_new_name(name, expected):
    assert dense_reload_utils.get_new_name(name) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("m/c_dot/mlp/dense_0/kernel", "m/c_dot/compress_tower/dense_0/kernel"),
        ("dcn/kernel_2/trainable_norm/Adam", "kernel_2_trainable_norm/Adam"),
        ("m/dcn/kernel_2/Adam", "m/kernel_2/Adam"),
        ("dcn/bias_13/trainable_norm", "bias_13_trainable_norm"),
        ("dcn/bias_0", "bias_0"),
        ("tower/dense/kernel", "tower/dense/kernel"),
    ],
)
def test_get_guess_name(name, expected):
    assert dense_reload_utils.get_guess_name(name) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [("dense_12", ("dense_", 12)), ("dense", ("dense", 0)), ("mlp2_dense_03", ("mlp2_dense_", 3))],
)
def test_split_name(name, expected):
    assert dense_reload_utils.split_name(name) == expected


def test_added_rules(monkeypatch):
    monkeypatch.setattr(alias_names, "_MAPPING_RULES", dict(alias_names._MAPPING_RULES))
    dense_reload_utils.add_mapping_rules({r"ctr_(\w+)/(.*)": "{}_tower/{}"})
    assert dense_reload_utils.get_guess_name("m/ctr_user/bias") == "m/user_tower/bias"
    assert dense_reload_utils.get_guess_name("dcn/bias_0") == "bias_0"
    with pytest.raises(Exception, match="unterminated"):
        dense_reload_utils.add_mapping_rules({"([": "{}"})


class TestInferAliasMap:
    def infer(self, new, old):
        return alias_names.infer_alias_map(new, old)

    def test_renumbered_layers_are_matched_in_order(self):
        # dense_9 comes before dense_10; as text it would come after.
        new = {"t/dense/kernel": [8, 4], "t/dense/bias": [4], "t/dense_1/kernel": [4, 1]}
        old = {"t/dense_9/kernel": [8, 4], "t/dense_9/bias": [4], "t/dense_10/kernel": [4, 1]}
        assert self.infer(new, old) == {
            "t/dense/kernel": "t/dense_9/kernel",
            "t/dense/bias": "t/dense_9/bias",
            "t/dense_1/kernel": "t/dense_10/kernel",
        }

    def test_numbers_that_overlap(self):
        # All have the same shape, so only the order tells: dense_1 is not dense_1.
        new = {f"{layer}/kernel": [4, 4] for layer in ("dense", "dense_1", "dense_2")}
        old = {f"{layer}/kernel": [4, 4] for layer in ("dense_1", "dense_2", "dense_3")}
        assert self.infer(new, old) == {
            "dense/kernel": "dense_1/kernel",
            "dense_1/kernel": "dense_2/kernel",
            "dense_2/kernel": "dense_3/kernel",
        }

    def test_slots_of_optimizers_go_with_their_variable(self):
        new = {"dense/kernel": [2], "dense/kernel/Adagrad": [2], "global_step": []}
        old = {"dense_5/kernel": [2], "dense_5/kernel/Adagrad": [2], "global_step": []}
        assert self.infer(new, old) == {
            "dense/kernel": "dense_5/kernel",
            "dense/kernel/Adagrad": "dense_5/kernel/Adagrad",
            "global_step": "global_step",
        }

    def test_repeated_scopes_and_renamed_layers(self):
        new = {"m/x": [1], "c_dot/compress_tower/w": [2], "m/dense_1/kernel": [3]}
        old = {"m/m/x": [1], "c_dot/mlp/w": [2], "m/m/dense_4/kernel": [3], "unused": [9]}
        assert self.infer(new, old) == {
            "m/x": "m/m/x",
            "c_dot/compress_tower/w": "c_dot/mlp/w",
            "m/dense_1/kernel": "m/m/dense_4/kernel",
        }

    def test_parts_share_the_old_variable(self):
        new = {"dense/kernel/part_0": [6, 2], "dense/kernel/part_1": [5, 2]}
        assert self.infer(new, {"dense_3/kernel": [11, 2]}) == {
            "dense/kernel/part_0": "dense_3/kernel",
            "dense/kernel/part_1": "dense_3/kernel",
        }

    @pytest.mark.parametrize(
        ("new", "old"),
        [
            pytest.param({"x": [1], "y": [1]}, {"x": [1]}, id="new_variable"),
            pytest.param({"dense/kernel": [2]}, {"dense_1/kernel": [3]}, id="other_shape"),
            pytest.param(
                {"dense/kernel": [2]},
                {"dense_1/kernel": [2], "dense_2/kernel": [2]},
                id="one_layer_less",
            ),
            pytest.param({"a/x": [1]}, {"a/a/x": [1], "a/a/a/x": [1]}, id="two_candidates"),
            pytest.param({"dense/kernel": [2], "x": [2]}, {"dense/kernel": [2]}, id="nothing_like"),
        ],
    )
    def test_doubt_gives_nothing(self, new, old):
        assert self.infer(new, old) is None
