"""Runs an exported model with TensorFlow's C library alone: no Python package of ours or theirs.

The loader behind it, `LoadSavedModel` of C++, is the one that TensorFlow Serving uses; what
`--custom_op_paths` does there, `TF_LoadLibrary` does here.

Run: `python c_loader.py TENSORFLOW_DIR OP_LIBRARY SAVED_MODEL OUTPUT INPUT=ID,ID ...`, where inputs
and the output are tensors of the graph, such as `user:0`; inputs are lists of int64. It prints the
output, numbers of 32 bits.
"""

import ctypes
import sys

_INT64 = 9  # Of TF_DataType.


class _Output(ctypes.Structure):
    _fields_ = (("operation", ctypes.c_void_p), ("index", ctypes.c_int))


class Tensorflow:
    """The few functions of the C API that it takes.

    Args:
        directory: Where the libraries are.
    """

    def __init__(self, directory: str) -> None:
        ctypes.CDLL(f"{directory}/libtensorflow_framework.so.2", ctypes.RTLD_GLOBAL)
        self._lib = ctypes.CDLL(f"{directory}/libtensorflow_cc.so.2", ctypes.RTLD_GLOBAL)
        self._status = ctypes.c_void_p(self._call("NewStatus"))

    def load_library(self, path: str) -> None:
        self._checked("LoadLibrary", path.encode())

    def load_model(self, path: str) -> None:
        self._graph = self._call("NewGraph")
        tags = (ctypes.c_char_p * 1)(b"serve")
        self._session = self._checked(
            "LoadSessionFromSavedModel",
            ctypes.c_void_p(self._call("NewSessionOptions")),
            None,
            path.encode(),
            tags,
            1,
            ctypes.c_void_p(self._graph),
            None,
        )

    def run(self, output: str, inputs: dict[str, list[int]]) -> list[float]:
        names = (_Output * len(inputs))(*map(self._find, inputs))
        tensors = (ctypes.c_void_p * len(inputs))(*map(self._make_tensor, inputs.values()))
        result = (ctypes.c_void_p * 1)()
        asked = (_Output * 1)(self._find(output))
        session = ctypes.c_void_p(self._session)
        self._checked(
            "SessionRun",
            *(session, None, names, tensors, len(inputs), asked, result, 1, None, 0, None),
        )
        tensor = ctypes.c_void_p(result[0])
        count = self._call("TensorByteSize", tensor, kind=ctypes.c_size_t) // 4
        data = self._call("TensorData", tensor)
        return list((ctypes.c_float * count).from_address(data))

    def _make_tensor(self, ids: list[int]) -> int:
        shape = (ctypes.c_int64 * 1)(len(ids))
        size = ctypes.c_size_t(8 * len(ids))
        tensor = self._call("AllocateTensor", _INT64, shape, 1, size)
        data = self._call("TensorData", ctypes.c_void_p(tensor))
        (ctypes.c_int64 * len(ids)).from_address(data)[:] = ids
        return tensor

    def _find(self, tensor: str) -> _Output:
        name, _, index = tensor.partition(":")
        graph = ctypes.c_void_p(self._graph)
        operation = self._call("GraphOperationByName", graph, name.encode())
        if not operation:
            sys.exit(f"There is no {tensor} in the graph.")
        return _Output(operation, int(index))

    def _checked(self, name: str, *args: object) -> int:
        result = self._call(name, *args, self._status)
        if self._call("GetCode", self._status, kind=ctypes.c_int):
            message = self._call("Message", self._status, kind=ctypes.c_char_p)
            sys.exit(f"TF_{name}: {message.decode()}")
        return result

    def _call(self, name: str, *args: object, kind: type = ctypes.c_void_p):
        function = getattr(self._lib, f"TF_{name}")
        function.restype = kind
        return function(*args)


def main(directory: str, library: str, model: str, output: str, *inputs: str) -> None:
    tensorflow = Tensorflow(directory)
    if library:
        tensorflow.load_library(library)
    tensorflow.load_model(model)
    pairs = (text.split("=") for text in inputs)
    ids = {name: [int(number) for number in numbers.split(",")] for name, numbers in pairs}
    print(tensorflow.run(output, ids))
    assert not {"tensorflow", "monolith"} & sys.modules.keys()


if __name__ == "__main__":
    main(*sys.argv[1:])
