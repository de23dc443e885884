"""Optimizers inside of rows, against the numbers of the specification and models in NumPy.

The models are written from the formulas, in float64, one row at a time. A table computes in
float32, so results agree to about 1e-4 of the values.
"""

import itertools
import math

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from monolith.embedding import entry
from monolith.embedding.tables import single
from monolith.proto import embedding_hash_table_pb2

_numbers = itertools.count()


def make_table(*segments, learning_rates=None) -> single.HashTable:
    """Makes a table eagerly from segments (dim, optimizer)."""
    config = embedding_hash_table_pb2.EmbeddingHashTableConfig(cuckoo={})
    for dim, optimizer in segments:
        config.entry_config.segments.append(
            entry.CombineAsSegment(dim, entry.ZerosInitializer(), optimizer, entry.Fp32Compressor())
        )
    return single.hash_table_from_config(
        entry.HashTableConfigInstance(config, learning_rates or [1.0] * len(segments)),
        name_suffix=f"table_optimizers_test_{next(_numbers)}",
    )


# Optimizer, learning rate, gradients step by step, value after each step; the value starts at 0.
VECTORS = {
    "sgd": (entry.SgdOptimizer(), 0.1, [[1.0]], [[-0.1]]),
    "adagrad": (
        entry.AdagradOptimizer(initial_accumulator_value=1.0),
        0.1,
        [[1.0, 2.0]],
        [[-0.07071067, -0.08944272]],
    ),
    "adagrad_weight_decay": (
        entry.AdagradOptimizer(initial_accumulator_value=1.0, weight_decay_factor=0.1),
        0.1,
        [[1.0, 2.0]] * 2,
        [[-0.07071067, -0.08944272], [-0.128173, -0.155943]],
    ),
    "adagrad_default_accumulator": (
        entry.AdagradOptimizer(),
        1.0,
        [[1.0]] * 2,
        [[-0.95346254], [-1.643528]],
    ),
    "adadelta": (
        entry.AdadeltaOptimizer(),
        0.01,
        [[10.0, 1.0]] * 2,
        [[-0.0031607, -0.0030151], [-0.0064035, -0.0061047]],
    ),
    "adam": (
        entry.AdamOptimizer(),
        0.01,
        [[10.0, 1.0]] * 2,
        [[-0.00990099, -0.00909091], [-0.01983060, -0.01842895]],
    ),
    "adam_nesterov": (
        entry.AdamOptimizer(use_nesterov=True),
        0.01,
        [[10.0, 1.0]] * 2,
        [[-0.01881188, -0.01727273], [-0.03297464, -0.03059173]],
    ),
    "amsgrad": (
        entry.AmsgradOptimizer(),
        0.01,
        [[10.0, 1.0]] * 2,
        [[-0.00990099, -0.00909091], [-0.01983060, -0.01842895]],
    ),
    "amsgrad_smaller_gradient": (
        entry.AmsgradOptimizer(),
        0.01,
        [[10.0], [1.0]],
        [[-0.00990099], [-0.01725208]],
    ),
    "ftrl": (
        entry.FtrlOptimizer(),
        0.01,
        [[10.0, 1.0]] * 2,
        [[-0.009995, -0.00953463], [-0.0170643, -0.0164353]],
    ),
    "ftrl_regularized": (
        entry.FtrlOptimizer(
            initial_accumulator_value=0.1, beta=1.0, l1_regularization=1.0, l2_regularization=1.0
        ),
        0.01,
        [[10.0, -10.0]] * 2,
        [[-0.00817068, 0.00817068], [-0.01476887, 0.01476887]],
    ),
    "group_adagrad": (
        entry.AdaGradWithGroupLassoOptimizer(
            beta=1.0, initial_accumulator_value=0.0, l2_regularization=1.0
        ),
        0.01,
        [[10.0]] * 2,
        [[-0.008182], [-0.014125]],
    ),
    "group_adagrad_other_gradient": (
        entry.AdaGradWithGroupLassoOptimizer(
            beta=1.0, initial_accumulator_value=0.0, l2_regularization=0.5
        ),
        0.01,
        [[10.0, 1.0], [1.0, 5.0]],
        [[-0.008639, -0.000864], [-0.009096, -0.004778]],
    ),
    "group_adagrad_unregularized": (
        entry.AdaGradWithGroupLassoOptimizer(
            beta=1.0, initial_accumulator_value=0.0, l2_regularization=0.0
        ),
        0.01,
        [[10.0, 1.0]],
        [[-0.009091, -0.000909]],
    ),
    "group_adagrad_zeroed": (
        entry.AdaGradWithGroupLassoOptimizer(
            beta=1.0, initial_accumulator_value=0.0, l2_regularization=1000.0
        ),
        0.01,
        [[10.0, 1.0]],
        [[0.0, 0.0]],
    ),
    "group_ftrl": (
        entry.FTRLWithGroupSparsityOptimizer(
            beta=1.0, initial_accumulator_value=0.0, l1_regularization=1.0
        ),
        0.01,
        [[10.0, 1.0]] * 2,
        [[-0.00818633, -0.00450248], [-0.01479001, -0.00867126]],
    ),
    "momentum": (
        entry.MomentumOptimizer(),
        0.01,
        [[10.0, 1.0]] * 2,
        [[-0.1, -0.01], [-0.29, -0.029]],
    ),
    "momentum_nesterov": (
        entry.MomentumOptimizer(use_nesterov=True),
        0.01,
        [[10.0, 1.0]] * 2,
        [[-0.19, -0.019], [-0.461, -0.0461]],
    ),
    "moving_average": (
        entry.MovingAverageOptimizer(),
        0.01,
        [[10.0, 1.0]] * 2,
        [[1.0, 0.1], [1.9, 0.19]],
    ),
    "rmsprop": (entry.RmspropOptimizer(), 0.01, [[10.0]] * 2, [[-0.024025], [-0.042686]]),
    "rmspropv2": (
        entry.RmspropV2Optimizer(),
        0.01,
        [[10.0, 1.0]] * 2,
        [[-0.0090909, -0.005], [-0.0158549, -0.0092045]],
    ),
    "batch_softmax": (entry.BatchSoftmaxOptimizer(), 0.1, [[2.0]], [[0.1]]),
    "dynamic_wd_decoupled": (
        entry.DynamicWdAdagradOptimizer(initial_accumulator_value=1.0, weight_decay_factor=0.1),
        0.1,
        [[1.0, 2.0]] * 2,
        [[-0.07071068, -0.08944272], [-0.1277386, -0.15521496]],
    ),
    "dynamic_wd_coupled": (
        entry.DynamicWdAdagradOptimizer(
            initial_accumulator_value=1.0, weight_decay_factor=0.1, decouple_weight_decay=False
        ),
        0.1,
        [[1.0, 2.0]] * 2,
        [[-0.07071067, -0.08944272], [-0.128173, -0.155943]],
    ),
}


@pytest.mark.parametrize(
    ("optimizer", "rate", "gradients", "expected"), VECTORS.values(), ids=VECTORS.keys()
)
def test_vectors(optimizer, rate, gradients, expected):
    table = make_table((len(gradients[0]), optimizer), learning_rates=[rate])
    for step, (gradient, value) in enumerate(zip(gradients, expected, strict=True), start=1):
        table = table.apply_gradients([7], [gradient], step)
        np.testing.assert_allclose(table.lookup([7])[0], value, rtol=0, atol=1e-6)


class Row:
    """One row of a model; subclasses make the state of `dim` elements and take steps."""

    def __init__(self, dim: int, settings: dict):
        self.w = np.zeros(dim)
        self.s = settings
        self.start(dim)

    def start(self, dim: int) -> None:
        pass

    def step(self, g: np.ndarray, lr: float, global_step: int) -> None:
        raise NotImplementedError

    def decayed(self, g: np.ndarray) -> np.ndarray:
        return g + self.s["weight_decay_factor"] * self.w


class Sgd(Row):
    def step(self, g, lr, global_step):
        self.w = self.w - lr * g


class Adagrad(Row):
    def start(self, dim):
        self.norm = np.full(dim, self.s["initial_accumulator_value"])

    def step(self, g, lr, global_step):
        h = self.decayed(g)
        self.norm = self.norm + h**2
        self.w = self.w - lr * h / np.sqrt(self.norm)


class DynamicWdAdagrad(Adagrad):
    def step(self, g, lr, global_step):
        if not self.s["decouple_weight_decay"]:
            super().step(g, lr, global_step)
            return
        self.norm = self.norm + g**2
        self.w = self.w - lr * g / np.sqrt(self.norm) - lr * self.s["weight_decay_factor"] * self.w


class Adadelta(Row):
    def start(self, dim):
        self.accum, self.accum_update = np.zeros(dim), np.zeros(dim)

    def step(self, g, lr, global_step):
        ratio, epsilon = self.s["averaging_ratio"], self.s["epsilon"]
        h = self.decayed(g)
        self.accum = ratio * self.accum + (1 - ratio) * h**2
        u = np.sqrt(self.accum_update + epsilon) / np.sqrt(self.accum + epsilon) * h
        self.w = self.w - lr * u
        self.accum_update = ratio * self.accum_update + (1 - ratio) * u**2


class Adam(Row):
    def start(self, dim):
        self.m, self.v, self.vhat = np.zeros(dim), np.zeros(dim), np.zeros(dim)
        self.p1, self.p2 = self.s["beta1"], self.s["beta2"]

    def step(self, g, lr, global_step):
        b1, b2 = self.s["beta1"], self.s["beta2"]
        rate = lr * math.sqrt(1 - self.p2) / (1 - self.p1)
        h = self.decayed(g)
        self.m = self.m + (h - self.m) * (1 - b1)
        self.v = self.v + (h**2 - self.v) * (1 - b2)
        numerator = h * (1 - b1) + b1 * self.m if self.s["use_nesterov"] else self.m
        self.w = self.w - rate * numerator / (np.sqrt(self.denominator()) + self.s["epsilon"])
        self.p1, self.p2 = self.p1 * b1, self.p2 * b2

    def denominator(self):
        return self.v


class Amsgrad(Adam):
    def denominator(self):
        self.vhat = np.maximum(self.vhat, self.v)
        return self.vhat


class Momentum(Row):
    def start(self, dim):
        self.n = np.zeros(dim)

    def step(self, g, lr, global_step):
        mu = self.s["momentum"]
        n = mu * self.n - lr * self.decayed(g)
        self.w = self.w + (-mu * self.n + (1 + mu) * n if self.s["use_nesterov"] else n)
        self.n = n


class MovingAverage(Row):
    def step(self, g, lr, global_step):
        self.w = self.s["momentum"] * self.w + (1 - self.s["momentum"]) * g


class Rmsprop(Row):
    def start(self, dim):
        self.n = np.zeros(dim)

    def step(self, g, lr, global_step):
        h = self.decayed(g)
        self.n = self.s["momentum"] * self.n + self.share_of_new() * h**2
        self.w = self.w - lr * h / (np.sqrt(self.n) + 1)

    def share_of_new(self):
        return 1 - self.s["momentum"]


class RmspropV2(Rmsprop):
    def share_of_new(self):
        return 1


class Ftrl(Row):
    def start(self, dim):
        self.norm = np.full(dim, self.s["initial_accumulator_value"])
        self.zero = np.zeros(dim)

    def accumulate(self, g, lr):
        norm = self.norm + g**2
        sigma = (np.sqrt(norm) - np.sqrt(self.norm)) / lr
        self.zero = self.zero + g - sigma * self.w
        self.norm = norm

    def step(self, g, lr, global_step):
        self.accumulate(g, lr)
        l1, l2 = self.s["l1_regularization"], self.s["l2_regularization"]
        # At the limit, float32 may decide the other way.
        hypothesis.assume(np.all(np.abs(np.abs(self.zero) - l1) > 1e-3))
        shrunk = np.sign(self.zero) * l1 - self.zero
        w = lr * shrunk / (np.sqrt(self.norm) + self.s["beta"] + l2 * lr)
        self.w = np.where(np.abs(self.zero) <= l1, 0, w)


class GroupFtrl(Ftrl):
    def step(self, g, lr, global_step):
        self.accumulate(g, lr)
        l1, l2 = self.s["l1_regularization"], self.s["l2_regularization"]
        norm_of_zero = np.linalg.norm(self.zero)
        hypothesis.assume(abs(norm_of_zero - l1) > 1e-3)
        if norm_of_zero < l1:
            self.w = np.zeros_like(self.w)
        else:
            scale = lr * (l1 - norm_of_zero) / norm_of_zero
            self.w = scale * self.zero / (self.s["beta"] + np.sqrt(self.norm) + l2 * lr)


class GroupAdagrad(Row):
    def start(self, dim):
        self.acc = self.s["initial_accumulator_value"]

    def step(self, g, lr, global_step):
        h = self.decayed(g)
        self.acc += np.max(h**2)
        a = lr / (self.s["beta"] + math.sqrt(self.acc))
        z = h - self.w / a
        norm_of_z = np.linalg.norm(z)
        l2 = self.s["l2_regularization"]
        hypothesis.assume(abs(norm_of_z - l2) > 1e-3)
        if norm_of_z < l2:
            self.w = np.zeros_like(self.w)
        else:
            self.w = -a * (norm_of_z - l2) / norm_of_z * z


class BatchSoftmax(Row):
    def start(self, dim):
        self.last = 0

    def step(self, g, lr, global_step):
        self.w = (1 - lr) * self.w + lr * (global_step - self.last)
        self.last = global_step


def one_of(*values):
    return st.sampled_from(values)


DECAY = {"weight_decay_factor": one_of(0.0, 0.01, 0.2)}
ACCUMULATOR = {"initial_accumulator_value": one_of(0.1, 1.0)}
BETAS = {"beta1": one_of(0.0, 0.5, 0.9), "beta2": one_of(0.5, 0.99), "epsilon": one_of(0.01, 1.0)}
REGULARIZED = {
    "beta": one_of(0.0, 1.0),
    "l1_regularization": one_of(0.0, 0.5, 3.0),
    "l2_regularization": one_of(0.0, 0.1, 1.0),
}
BOOLEAN = st.booleans()

MODELS = [
    (entry.SgdOptimizer, Sgd, {}),
    (entry.AdagradOptimizer, Adagrad, {**ACCUMULATOR, **DECAY}),
    (
        entry.DynamicWdAdagradOptimizer,
        DynamicWdAdagrad,
        {**ACCUMULATOR, **DECAY, "decouple_weight_decay": BOOLEAN},
    ),
    (
        entry.AdadeltaOptimizer,
        Adadelta,
        {**DECAY, "averaging_ratio": one_of(0.0, 0.5, 0.9), "epsilon": one_of(0.01, 1.0)},
    ),
    (entry.AdamOptimizer, Adam, {**BETAS, **DECAY, "use_nesterov": BOOLEAN}),
    (entry.AmsgradOptimizer, Amsgrad, {**BETAS, **DECAY, "use_nesterov": BOOLEAN}),
    (
        entry.MomentumOptimizer,
        Momentum,
        {**DECAY, "momentum": one_of(0.0, 0.5, 0.9), "use_nesterov": BOOLEAN},
    ),
    (entry.MovingAverageOptimizer, MovingAverage, {"momentum": one_of(0.0, 0.5, 0.9)}),
    (entry.RmspropOptimizer, Rmsprop, {**DECAY, "momentum": one_of(0.0, 0.5, 0.9)}),
    (entry.RmspropV2Optimizer, RmspropV2, {**DECAY, "momentum": one_of(0.0, 0.5, 0.9)}),
    (entry.FtrlOptimizer, Ftrl, {**ACCUMULATOR, **REGULARIZED}),
    (entry.FTRLWithGroupSparsityOptimizer, GroupFtrl, {**ACCUMULATOR, **REGULARIZED}),
    (
        entry.AdaGradWithGroupLassoOptimizer,
        GroupAdagrad,
        {
            **ACCUMULATOR,
            **DECAY,
            "beta": one_of(0.0, 1.0),
            "l2_regularization": one_of(0.0, 0.5, 3.0),
        },
    ),
    (entry.BatchSoftmaxOptimizer, BatchSoftmax, {}),
]


@pytest.mark.parametrize(
    ("optimizer", "model", "settings"), MODELS, ids=[model.__name__ for _, model, _ in MODELS]
)
@hypothesis.settings(max_examples=20)
@hypothesis.given(data=st.data())
def test_random_updates(optimizer, model, settings, data):
    """Random ids, gradients and settings; every occurrence of an id is a step of its row."""
    drawn = data.draw(st.fixed_dictionaries(settings))
    # 17 is more than any vector register holds, with a rest.
    dim = 1 if model is BatchSoftmax else data.draw(one_of(1, 3, 17))
    rate = data.draw(one_of(0.01, 0.1, 1.0))
    batches = data.draw(
        st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), min_size=1, max_size=6)
    )
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))

    table = make_table((dim, optimizer(**drawn)), learning_rates=[rate])
    rows = {}
    for step, ids in enumerate(batches, start=1):
        gradients = random.normal(scale=3, size=[len(ids), dim]).astype(np.float32)
        for i, gradient in zip(ids, gradients.astype(np.float64), strict=True):
            rows.setdefault(i, model(dim, drawn)).step(gradient, float(np.float32(rate)), step)
        table = table.apply_gradients(ids, gradients, step)
    for i, row in rows.items():
        np.testing.assert_allclose(
            table.lookup([i])[0], row.w, rtol=1e-3, atol=1e-4, err_msg=f"{optimizer} {drawn}"
        )
    assert table.size().numpy() == len(rows)
    tf.raw_ops.DestroyResourceOp(resource=table.table)


class TestSegments:
    def test_state_of_segments_is_apart(self):
        optimizers = [
            entry.AdagradOptimizer(initial_accumulator_value=1.0),
            entry.AdagradOptimizer(initial_accumulator_value=2.0),
        ]
        table = make_table((1, optimizers[0]), (2, optimizers[1]), learning_rates=[1.0, 2.0])
        table = table.apply_gradients([5], [[1.0, 2.0, 3.0]], 0)
        np.testing.assert_allclose(
            table.lookup([5])[0], [-0.70710677, -1.6329931, -1.8090681], atol=1e-6
        )
        # From 0 again, with the state of the first step.
        table = table.assign([5], [[0.0, 0.0, 0.0]]).apply_gradients([5], [[1.0, 2.0, 3.0]], 1)
        np.testing.assert_allclose(
            table.lookup([5])[0], [-0.57735026, -1.264911, -1.3416407], atol=1e-6
        )

    def test_different_optimizers_in_one_row(self):
        table = make_table(
            (1, entry.SgdOptimizer()),
            (2, entry.MovingAverageOptimizer(0.5)),
            (1, entry.BatchSoftmaxOptimizer()),
            (2, entry.AdagradOptimizer(initial_accumulator_value=0.0)),
            learning_rates=[0.5, 9.0, 1.0, 2.0],
        )
        table = table.apply_gradients([5], [[1.0, 2.0, 4.0, 7.0, 3.0, -5.0]], 6)
        # sgd: -0.5 * 1; average: half of 2 and 4; steps since 0: 6; adagrad: -2 * sign.
        np.testing.assert_allclose(table.lookup([5])[0], [-0.5, 1, 2, 6, -2, 2], rtol=1e-6)
        dump = embedding_hash_table_pb2.EntryDump.FromString(table.lookup_entry([5]).numpy()[0])
        # The moving average keeps no state.
        assert [d.WhichOneof("type") for d in dump.opt.dump] == ["sgd", "batch_softmax", "adagrad"]


class TestStochasticRounding:
    def test_values_are_halves_and_right_on_average(self):
        optimizer = entry.StochasticRoundingFloat16OptimizerWrapper(entry.SgdOptimizer())
        table = make_table((1, optimizer))
        ids = np.arange(4000)
        # 1 + 0.25 of the distance to the next half, which is 2^-10.
        value = np.float32(1 + 0.25 * 2.0**-10)
        table = table.apply_gradients(ids, np.full([4000, 1], -value), 0)
        values = table.lookup(ids).numpy().ravel()
        down, up = 1.0, 1 + 2.0**-10
        assert set(values) == {down, up}
        # 4000 draws with probability 0.25: a deviation of 0.007.
        assert (values == up).mean() == pytest.approx(0.25, abs=0.035)

    def test_other_segments_are_not_rounded_and_the_step_is_kept(self):
        rounded = entry.StochasticRoundingFloat16OptimizerWrapper(entry.BatchSoftmaxOptimizer())
        table = make_table((1, rounded), (1, entry.SgdOptimizer()))
        table = table.apply_gradients([1], [[0.0, 0.1]], 5)
        assert table.lookup([1]).numpy().tolist() == [[5, -np.float32(0.1)]]
