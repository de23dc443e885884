"""The same models in PyTorch, eagerly as it is used: arrays of rows, with sparse updates."""

import abc
import itertools
import time

import torch
from fbgemm_gpu import split_table_batched_embeddings_ops_common as fbgemm_common
from fbgemm_gpu import split_table_batched_embeddings_ops_training as fbgemm_training
from fbgemm_gpu.split_embedding_configs import EmbOptimType

from benchmarks.criteo import workload


def _linear(name: str, inputs: int, units: int, bias: bool = True) -> torch.nn.Linear:
    layer = torch.nn.Linear(inputs, units, bias=bias)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(workload.initial_weight(name, (inputs, units)).T))
        if bias:
            layer.bias.zero_()
    return layer


class Network(torch.nn.Module):
    """256-64-1, or DCN v2."""

    def __init__(self, network: str) -> None:
        super().__init__()
        self.crosses = torch.nn.ModuleList()
        if network == workload.DCN:
            for i in range(workload.CROSSES):
                v = _linear(f"cross_{i}_v", workload.WIDTH, workload.CROSS_RANK, bias=False)
                u = _linear(f"cross_{i}_u", workload.CROSS_RANK, workload.WIDTH)
                self.crosses.append(torch.nn.Sequential(v, u))
        layers: list[torch.nn.Module] = []
        for i, (dim, units) in enumerate(itertools.pairwise([workload.WIDTH, *workload.HIDDEN])):
            layers += [_linear(f"hidden_{i}", dim, units), torch.nn.ReLU()]
        self.deep = torch.nn.Sequential(*layers)
        last = workload.HIDDEN[-1] + (workload.WIDTH if len(self.crosses) else 0)
        self.logits = _linear("logits", last, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        deep = self.deep(inputs)
        crossed = inputs
        for cross in self.crosses:
            crossed = inputs * cross(crossed) + crossed
        return self.logits(torch.cat([crossed, deep], 1) if len(self.crosses) else deep)


class TorchPeer(abc.ABC):
    """A model, its optimizers and the batches, in memory."""

    def __init__(self, directory: str, most: int, network: str, threads: int) -> None:
        torch.set_num_threads(threads)
        self._network = Network(network)
        self._optimizer = torch.optim.Adagrad(
            self._network.parameters(),
            workload.LEARNING_RATE,
            initial_accumulator_value=workload.INITIAL_ACCUMULATOR,
            fused=True,
        )
        self.make_tables(workload.make_cardinalities(most))
        path = workload.path_of(directory, hashed=False)
        batches = [[torch.from_numpy(part) for part in batch] for batch in workload.read(path)]
        self._batches = itertools.cycle(batches)

    @abc.abstractmethod
    def make_tables(self, rows: list[int]) -> None:
        """Makes a table for each slot."""

    @abc.abstractmethod
    def look_up(self, keys: torch.Tensor) -> torch.Tensor:
        """Returns the rows of all slots side by side."""

    @abc.abstractmethod
    def update(self) -> None:
        """Updates rows by their gradients."""

    def step(self) -> torch.Tensor:
        keys, numbers, labels = next(self._batches)
        self._optimizer.zero_grad(set_to_none=True)
        logits = self._network(torch.cat([self.look_up(keys), numbers], 1))
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits[:, 0], labels)
        loss.backward()
        self._optimizer.step()
        self.update()
        return loss.detach()

    def learn(self, steps: int) -> float:
        """Trains so many steps; returns the loss of the last."""
        return [float(self.step()) for _ in range(steps)][-1]

    def run(self, seconds: float) -> tuple[int, float]:
        """Trains for at least that long; returns steps and seconds."""
        steps, start = 0, time.perf_counter()
        while True:
            self.step()
            steps += 1
            elapsed = time.perf_counter() - start
            if elapsed >= seconds:
                return steps, elapsed


class Embedding(TorchPeer):
    """`torch.nn.Embedding` with sparse gradients and PyTorch's Adagrad."""

    def make_tables(self, rows: list[int]) -> None:
        self._tables = torch.nn.ModuleList()
        for slot, count in enumerate(rows):
            weight = torch.empty(count, workload.DIM)
            _fill(weight, slot)
            self._tables.append(
                torch.nn.Embedding.from_pretrained(weight, freeze=False, sparse=True)
            )
        self._rows_optimizer = torch.optim.Adagrad(
            self._tables.parameters(),
            workload.LEARNING_RATE,
            initial_accumulator_value=workload.INITIAL_ACCUMULATOR,
        )

    def look_up(self, keys: torch.Tensor) -> torch.Tensor:
        return torch.cat([t(slot) for t, slot in zip(self._tables, keys, strict=True)], 1)

    def update(self) -> None:
        self._rows_optimizer.step()
        self._rows_optimizer.zero_grad(set_to_none=True)


class Fbgemm(TorchPeer):
    """fbgemm's table-batched embedding, whose backward pass applies exact Adagrad."""

    def make_tables(self, rows: list[int]) -> None:
        host = (fbgemm_common.EmbeddingLocation.HOST, fbgemm_training.ComputeDevice.CPU)
        self._tables = fbgemm_training.SplitTableBatchedEmbeddingBagsCodegen(
            [(count, workload.DIM, *host) for count in rows],
            optimizer=EmbOptimType.EXACT_ADAGRAD,
            learning_rate=workload.LEARNING_RATE,
            eps=0.0,
        )
        for slot, weight in enumerate(self._tables.split_embedding_weights()):
            _fill(weight, slot)
        for states in self._tables.split_optimizer_states():
            for state in states:
                state.fill_(workload.INITIAL_ACCUMULATOR)
        # One id in each bag.
        self._offsets = torch.arange(workload.SLOTS * workload.BATCH + 1)

    def look_up(self, keys: torch.Tensor) -> torch.Tensor:
        return self._tables(keys.view(-1), self._offsets)

    def update(self) -> None:
        pass


@torch.no_grad()
def _fill(weight: torch.Tensor, slot: int) -> None:
    for places, values in workload.initial_rows(slot, len(weight)):
        weight[places[0] : places[-1] + 1] = torch.from_numpy(values)
