"""Queues of tensors inside the graph, on CPU and GPU; `prefetch` fills and empties them."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops as framework_ops
from tensorflow.python.ops import data_flow_ops, gen_data_flow_ops


class _GPUCompatiblePaddingFIFOQueue(data_flow_ops.QueueBase):
    """A first-in first-out queue that may be placed on a CPU or a GPU.

    Its elements may differ in the dimensions that `shapes` leaves open. Unlike
    `tf.queue.PaddingFIFOQueue` it enqueues and dequeues single elements only.
    """

    def __init__(
        self,
        capacity: int,
        dtypes: tf.DType | Sequence[tf.DType],
        shapes: Sequence[tf.TensorShape],
        names: Sequence[str] | None = None,
        shared_name: str | None = None,
        name: str = "padding_fifo_queue",
    ) -> None:
        """Makes the queue in the current graph.

        Args:
            capacity: How many elements it holds; an enqueue waits while it is full.
            dtypes: The types of the tensors of an element; one type is that of its only tensor.
            shapes: Their shapes; the rank must be known, a dimension may be `None`.
            names: Names of the tensors, with which elements are dicts.
            shared_name: Under this name sessions of one server share the queue.
            name: Name of the op.

        Raises:
            ValueError: There is not one shape for each type, or a rank is unknown.
        """
        if not isinstance(dtypes, (list, tuple)):
            dtypes = [dtypes]
        dtypes = [tf.as_dtype(dtype) for dtype in dtypes]
        shapes = [tf.TensorShape(shape) for shape in shapes]
        if len(dtypes) != len(shapes):
            raise ValueError(
                f"Shapes must be provided for all components, "
                f"but received {len(dtypes)} dtypes and {len(shapes)} shapes."
            )
        for index, shape in enumerate(shapes):
            if shape.rank is None:
                raise ValueError(
                    f"A queue needs to know the rank of its tensors, but tensor {index} of queue "
                    f"'{name}' has an unknown shape; give it one with `set_shape`."
                )
        with tf.init_scope():
            queue_ref = gen_data_flow_ops.padding_fifo_queue_v2(
                component_types=dtypes,
                shapes=shapes,
                capacity=capacity,
                shared_name=data_flow_ops._shared_name(shared_name),
                name=name,
            )
        super().__init__(dtypes, shapes, names, queue_ref)

    # Ops on a queue run where it is, whatever device the code around them asks for.

    def enqueue(self, vals: Any, name: str | None = None) -> tf.Operation:
        with framework_ops.colocate_with(self.queue_ref):
            return super().enqueue(vals, name)

    def dequeue(self, name: str | None = None) -> Any:
        with framework_ops.colocate_with(self.queue_ref):
            return super().dequeue(name)

    def enqueue_many(self, vals: Any, name: str | None = None) -> None:
        raise NotImplementedError(
            "_GPUCompatiblePaddingFIFOQueue supports neither enqueue_many nor dequeue_many, "
            "only enqueue and dequeue."
        )

    def dequeue_many(self, n: Any, name: str | None = None) -> None:
        raise NotImplementedError(
            "_GPUCompatiblePaddingFIFOQueue supports neither enqueue_many nor dequeue_many, "
            "only enqueue and dequeue."
        )


class _FIFOQueue:
    """A queue whose elements are lists of tensors like `dense_list`, on one device.

    Attributes:
        queue: The queue.
        enqueue_op: Evaluates `dense_list` and enqueues it; waits while the queue is full.
    """

    def __init__(
        self,
        dense_list: list[tf.Tensor],
        capacity: int = 2,
        queue_name: str = "prefetch_queue",
    ) -> None:
        _check_dense_list(dense_list)
        # Without control dependencies: what the tensors wait for must not wait for the queue.
        with tf.init_scope():
            self.queue = _GPUCompatiblePaddingFIFOQueue(
                capacity,
                dtypes=[tensor.dtype for tensor in dense_list],
                shapes=[tensor.shape for tensor in dense_list],
                name=queue_name,
            )
        self.enqueue_op = self.queue.enqueue(dense_list)

    def dequeue(self) -> list[tf.Tensor]:
        """Returns the tensors of the oldest element; waits while the queue is empty."""
        tensors = self.queue.dequeue()
        return list(tensors) if isinstance(tensors, (list, tuple)) else [tensors]

    def size(self) -> tf.Tensor:
        """Returns the number of elements in the queue."""
        return self.queue.size()


class _MultiFIFOQueue:
    """A queue for tensors on CPU and GPU: one queue on each of both, moved together.

    A tensor belongs to the GPU when its device says so by name. The queues stay in step because
    whatever enqueues or dequeues does so on both; a step that is torn apart in between would leave
    them apart, which is why it must end the session.

    Attributes:
        enqueue_op: Evaluates all tensors and enqueues them.
    """

    def __init__(
        self,
        dense_list: list[tf.Tensor],
        capacity: int = 2,
        queue_name: str = "prefetch_queue",
    ) -> None:
        _check_dense_list(dense_list)
        on_gpu = ["GPU" in tensor.device for tensor in dense_list]
        self._cpu_indices = [i for i, gpu in enumerate(on_gpu) if not gpu]
        self._gpu_indices = [i for i, gpu in enumerate(on_gpu) if gpu]
        cpu_tensors = [dense_list[i] for i in self._cpu_indices]
        gpu_tensors = [dense_list[i] for i in self._gpu_indices]
        if not cpu_tensors:
            # The size is asked of the CPU queue, and a queue cannot hold elements of nothing.
            with tf.device("/device:CPU:0"):
                cpu_tensors = [tf.constant(0, name="queue_token")]
        with tf.device("/device:CPU:0"):
            self._fifo_queues = [_FIFOQueue(cpu_tensors, capacity, queue_name)]
        if gpu_tensors:
            with tf.device("/device:GPU:0"):
                self._fifo_queues.append(_FIFOQueue(gpu_tensors, capacity, f"{queue_name}_gpu"))
        self.enqueue_op = tf.group(
            *[queue.enqueue_op for queue in self._fifo_queues], name=f"{queue_name}_enqueue_all"
        )

    @property
    def queue(self) -> _GPUCompatiblePaddingFIFOQueue:
        """The queue, if there is only one."""
        if len(self._fifo_queues) > 1:
            raise NotImplementedError(
                "The tensors are on CPU and GPU, so there are two queues; use `queues`."
            )
        return self._fifo_queues[0].queue

    @property
    def queues(self) -> list[_GPUCompatiblePaddingFIFOQueue]:
        """The queue on the CPU, and the one on the GPU if there is one."""
        return [queue.queue for queue in self._fifo_queues]

    def dequeue(self) -> list[tf.Tensor]:
        """Returns the tensors of the oldest element, in the order in which they were given."""
        if len(self._fifo_queues) == 1:
            return self._fifo_queues[0].dequeue()
        cpu_tensors, gpu_tensors = [queue.dequeue() for queue in self._fifo_queues]
        # Without CPU tensors there is a token, which `zip` leaves out.
        by_index = dict(zip(self._cpu_indices, cpu_tensors, strict=False))
        by_index.update(zip(self._gpu_indices, gpu_tensors, strict=True))
        return [by_index[i] for i in range(len(by_index))]

    def size(self) -> tf.Tensor:
        """Returns the number of elements in the CPU queue; the GPU queue has as many."""
        return self._fifo_queues[0].size()


def _check_dense_list(dense_list: list[tf.Tensor]) -> None:
    if dense_list is None:
        raise ValueError("`dense_list` must be a list of tensors, got None.")
    if not isinstance(dense_list, list):
        raise TypeError(f"`dense_list` must be a list of tensors, got {type(dense_list).__name__}.")
    if not dense_list:
        raise ValueError("`dense_list` is empty: a queue needs at least one tensor to move.")
