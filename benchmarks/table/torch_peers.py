"""Embeddings of PyTorch on the CPU: arrays, too.

PyTorch has no graph to repeat steps in, and a Python loop costs it little: the steps of a call are
looped over in both ways of measuring.
"""

import abc
from collections.abc import Callable

import numpy as np
import torch
from fbgemm_gpu import split_table_batched_embeddings_ops_common as fbgemm_common
from fbgemm_gpu import split_table_batched_embeddings_ops_training as fbgemm_training
from fbgemm_gpu.split_embedding_configs import EmbOptimType

from benchmarks.table import contender, workload

# Runs one step on ids [batch], offsets [batch + 1] and gradients [batch, dim].
Step = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]


class TorchPeer(contender.Contender):
    """One id per bag, the fastest way to look up without pooling in both libraries."""

    wants_places = True

    def __init__(self, rows: int, dim: int, threads: int) -> None:
        super().__init__(rows, dim, threads)
        torch.set_num_threads(threads)

    @abc.abstractmethod
    def make_step(self, operation: str) -> Step:
        """Returns what runs one step."""

    def prepare(self, case: workload.Case, ids: np.ndarray) -> contender.Call:
        step = self.make_step(case.operation)
        offsets = torch.arange(case.batch + 1)
        grads = torch.from_numpy(workload.gradients(case.batch, self.dim))
        calls = [list(torch.from_numpy(one)) for one in ids]

        def call(i: int) -> None:
            for one in calls[i]:
                step(one, offsets, grads)

        return call


class Fbgemm(TorchPeer):
    """fbgemm's table-batched embedding, whose backward pass applies the optimizer."""

    def __init__(self, rows: int, dim: int, threads: int) -> None:
        super().__init__(rows, dim, threads)
        self._tables = {
            "adagrad": self._make_table(EmbOptimType.EXACT_ADAGRAD),
            "sgd": self._make_table(EmbOptimType.EXACT_SGD),
        }
        self._tables["lookup"] = self._tables["adagrad"]
        for state in self._tables["adagrad"].split_optimizer_states()[0]:
            state.fill_(workload.INITIAL_ACCUMULATOR)

    def _make_table(
        self, optimizer: EmbOptimType
    ) -> fbgemm_training.SplitTableBatchedEmbeddingBagsCodegen:
        table = fbgemm_training.SplitTableBatchedEmbeddingBagsCodegen(
            [
                (
                    self.rows,
                    self.dim,
                    fbgemm_common.EmbeddingLocation.HOST,
                    fbgemm_training.ComputeDevice.CPU,
                )
            ],
            optimizer=optimizer,
            learning_rate=workload.LEARNING_RATE,
            eps=0.0,
        )
        table.split_embedding_weights()[0].fill_(workload.INITIAL_VALUE)
        return table

    def read(self, operation: str, ids: np.ndarray) -> np.ndarray:
        return self._tables[operation].split_embedding_weights()[0][torch.from_numpy(ids)].numpy()

    def make_step(self, operation: str) -> Step:
        table = self._tables[operation]

        @torch.no_grad()
        def look_up(ids: torch.Tensor, offsets: torch.Tensor, grads: torch.Tensor) -> None:
            table(ids, offsets)

        def train(ids: torch.Tensor, offsets: torch.Tensor, grads: torch.Tensor) -> None:
            table(ids, offsets).backward(grads)

        return look_up if operation == "lookup" else train


class EmbeddingBag(TorchPeer):
    """torch.nn.EmbeddingBag with sparse gradients and PyTorch's optimizers."""

    def __init__(self, rows: int, dim: int, threads: int) -> None:
        super().__init__(rows, dim, threads)
        self._bag = torch.nn.EmbeddingBag(
            rows, dim, mode="sum", sparse=True, include_last_offset=True
        )
        with torch.no_grad():
            self._bag.weight.fill_(workload.INITIAL_VALUE)
        self._optimizers = {
            "sgd": torch.optim.SGD(self._bag.parameters(), workload.LEARNING_RATE),
            "adagrad": torch.optim.Adagrad(
                self._bag.parameters(),
                workload.LEARNING_RATE,
                initial_accumulator_value=workload.INITIAL_ACCUMULATOR,
            ),
        }

    def read(self, operation: str, ids: np.ndarray) -> np.ndarray:
        return self._bag.weight.detach()[torch.from_numpy(ids)].numpy()

    def make_step(self, operation: str) -> Step:
        bag = self._bag

        @torch.no_grad()
        def look_up(ids: torch.Tensor, offsets: torch.Tensor, grads: torch.Tensor) -> None:
            bag(ids, offsets)

        def train(ids: torch.Tensor, offsets: torch.Tensor, grads: torch.Tensor) -> None:
            optimizer = self._optimizers[operation]
            bag(ids, offsets).backward(grads)
            optimizer.step()
            optimizer.zero_grad()

        return look_up if operation == "lookup" else train
