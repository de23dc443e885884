"""What the requests of TensorFlow Serving's API mean, once it is known which version answers.

A Classify or Regress request holds `tf.Example`s, which the model gets as strings; a Predict
request holds the model's inputs by name.
"""

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    inference_pb2,
    input_pb2,
    model_pb2,
    predict_pb2,
    regression_pb2,
)

from monolith.serving.server import signature as signatures
from monolith.serving.server import status, tensors
from monolith.serving.server.loaded import LoadedModel
from monolith.serving.server.signature import Signature

SIGNATURE_DEF = "signature_def"


class Version(Protocol):
    """Who answers."""

    @property
    def number(self) -> int:
        """The version."""

    @property
    def model(self) -> LoadedModel:
        """The model in memory."""

    async def run(
        self,
        signature: Signature,
        outputs: tuple[str, ...],
        arrays: Mapping[str, np.ndarray],
        deadline_sec: float | None = None,
    ) -> dict[str, np.ndarray]:
        """Calls a function of the model."""


async def run_predict(
    version: Version,
    request: predict_pb2.PredictRequest,
    max_bytes: int,
    deadline_sec: float | None = None,
) -> predict_pb2.PredictResponse:
    """Answers a Predict request.

    Args:
        version: Who answers.
        request: The request.
        max_bytes: How much memory its tensors may take.
        deadline_sec: When, by `time.monotonic`, nobody waits for the answer any more.

    Raises:
        RequestError: It cannot be answered.
    """
    signature = version.model.get_signature(get_signature_name(request.model_spec))
    outputs = signature.choose_outputs(request.output_filter)
    arrays = {}
    for name, proto in request.inputs.items():
        arrays[name] = tensors.read_tensor(proto, max_bytes=max_bytes)
        max_bytes -= arrays[name].nbytes
    results = await version.run(signature, outputs, arrays, deadline_sec)
    response = predict_pb2.PredictResponse()
    fill_model_spec(response.model_spec, request.model_spec, version, signature.name)
    for name, array in results.items():
        tensors.write_tensor_into(array, response.outputs[name])
    return response


async def run_classify(
    version: Version,
    request: classification_pb2.ClassificationRequest,
    deadline_sec: float | None = None,
) -> classification_pb2.ClassificationResponse:
    """Answers a Classify request; raises `RequestError`."""
    signature = _get_signature(version, request.model_spec, signatures.CLASSIFY)
    response = classification_pb2.ClassificationResponse()
    fill_model_spec(response.model_spec, request.model_spec, version, signature.name)
    response.result.CopyFrom(await _classify(version, signature, request.input, deadline_sec))
    return response


async def run_regress(
    version: Version,
    request: regression_pb2.RegressionRequest,
    deadline_sec: float | None = None,
) -> regression_pb2.RegressionResponse:
    """Answers a Regress request; raises `RequestError`."""
    signature = _get_signature(version, request.model_spec, signatures.REGRESS)
    response = regression_pb2.RegressionResponse()
    fill_model_spec(response.model_spec, request.model_spec, version, signature.name)
    response.result.CopyFrom(await _regress(version, signature, request.input, deadline_sec))
    return response


async def run_multi_inference(
    version: Version,
    request: inference_pb2.MultiInferenceRequest,
    deadline_sec: float | None = None,
) -> inference_pb2.MultiInferenceResponse:
    """Answers several Classify and Regress requests over the same examples.

    Raises:
        RequestError: One of them cannot be answered, or they ask for different models.
    """
    response = inference_pb2.MultiInferenceResponse()
    for task in request.tasks:
        if task.method_name not in (signatures.CLASSIFY, signatures.REGRESS):
            raise status.RequestError(
                status.Code.UNIMPLEMENTED,
                f"A task must be {signatures.CLASSIFY!r} or {signatures.REGRESS!r}, got "
                f"{task.method_name!r}.",
            )
        signature = _get_signature(version, task.model_spec, task.method_name)
        result = response.results.add()
        fill_model_spec(result.model_spec, task.model_spec, version, signature.name)
        if task.method_name == signatures.CLASSIFY:
            classified = await _classify(version, signature, request.input, deadline_sec)
            result.classification_result.CopyFrom(classified)
        else:
            regressed = await _regress(version, signature, request.input, deadline_sec)
            result.regression_result.CopyFrom(regressed)
    return response


def get_shared_spec(request: inference_pb2.MultiInferenceRequest) -> model_pb2.ModelSpec:
    """Returns the model that all tasks of a request ask for.

    Raises:
        RequestError: There are none, or they ask for different ones.
    """
    if not request.tasks:
        raise status.invalid("The request has no tasks.")
    first = request.tasks[0].model_spec
    seen = set()
    for task in request.tasks:
        spec = task.model_spec
        if (spec.name, spec.version, spec.version_label) != (
            first.name,
            first.version,
            first.version_label,
        ):
            raise status.invalid("All tasks of a request must ask for the same model and version.")
        name = get_signature_name(spec)
        if name in seen:
            raise status.invalid(f"Signature {name!r} is asked for twice.")
        seen.add(name)
    return first


def make_metadata(
    version: Version, request: get_model_metadata_pb2.GetModelMetadataRequest
) -> get_model_metadata_pb2.GetModelMetadataResponse:
    """Answers what functions a model has; raises `RequestError`."""
    if not request.metadata_field:
        raise status.invalid("GetModelMetadataRequest must name a `metadata_field`.")
    for field in request.metadata_field:
        if field != SIGNATURE_DEF:
            raise status.invalid(
                f"There is no metadata field {field!r}; there is {SIGNATURE_DEF!r}."
            )
    response = get_model_metadata_pb2.GetModelMetadataResponse()
    fill_model_spec(response.model_spec, request.model_spec, version, "")
    definitions = get_model_metadata_pb2.SignatureDefMap()
    for name, definition in version.model.definitions.items():
        definitions.signature_def[name].CopyFrom(definition)
    response.metadata[SIGNATURE_DEF].Pack(definitions)
    return response


def get_signature_name(spec: model_pb2.ModelSpec) -> str:
    """Returns the name of the function that a request asks for."""
    return spec.signature_name or signatures.DEFAULT


def fill_model_spec(
    target: model_pb2.ModelSpec,
    asked: model_pb2.ModelSpec,
    version: Version,
    signature_name: str,
) -> None:
    """Says in an answer who has given it."""
    target.name = asked.name
    target.version.value = version.number
    target.signature_name = signature_name


def _get_signature(version: Version, spec: model_pb2.ModelSpec, method: str) -> Signature:
    signature = version.model.get_signature(get_signature_name(spec))
    if signature.method != method:
        raise status.invalid(
            f"Signature {signature.name!r} is for {signature.method!r}, not for {method!r}; "
            "use Predict."
        )
    return signature


async def _classify(
    version: Version,
    signature: Signature,
    examples: input_pb2.Input,
    deadline_sec: float | None,
) -> classification_pb2.ClassificationResult:
    results, number = await _run_examples(version, signature, examples, deadline_sec)
    classes, scores = results.get("classes"), results.get("scores")
    if classes is None and scores is None:
        raise _broken(signature, "has neither an output 'classes' nor 'scores'")
    width = set()
    for name, array in (("classes", classes), ("scores", scores)):
        if array is not None:
            if array.ndim != 2 or len(array) != number:
                raise _broken(
                    signature, f"gives {name!r} of shape {list(array.shape)} for {number} examples"
                )
            width.add(array.shape[1])
    if len(width) > 1:
        raise _broken(signature, f"gives different numbers of classes and scores: {sorted(width)}")
    result = classification_pb2.ClassificationResult()
    for row in range(number):
        classifications = result.classifications.add()
        for column in range(*width):
            entry = classifications.classes.add()
            if classes is not None:
                label = classes[row, column]
                entry.label = (
                    label.decode("utf-8", "replace") if isinstance(label, bytes) else str(label)
                )
            if scores is not None:
                entry.score = float(scores[row, column])
    return result


async def _regress(
    version: Version,
    signature: Signature,
    examples: input_pb2.Input,
    deadline_sec: float | None,
) -> regression_pb2.RegressionResult:
    results, number = await _run_examples(version, signature, examples, deadline_sec)
    if "outputs" not in results:
        raise _broken(signature, "has no output 'outputs'")
    values = results["outputs"]
    if values.size != number or values.shape not in ((number,), (number, 1)):
        raise _broken(
            signature, f"gives 'outputs' of shape {list(values.shape)} for {number} examples"
        )
    result = regression_pb2.RegressionResult()
    for value in values.ravel().tolist():
        result.regressions.add().value = value
    return result


async def _run_examples(
    version: Version,
    signature: Signature,
    examples: input_pb2.Input,
    deadline_sec: float | None,
) -> tuple[Mapping[str, np.ndarray], int]:
    if list(signature.inputs) != ["inputs"]:
        raise _broken(signature, f"takes {list(signature.inputs)}, not only 'inputs'")
    serialized = _serialize_examples(examples)
    array = np.empty([len(serialized)], object)
    array[:] = serialized
    outputs = tuple(signature.outputs)
    results = await version.run(signature, outputs, {"inputs": array}, deadline_sec)
    return results, len(serialized)


def _serialize_examples(examples: input_pb2.Input) -> list[bytes]:
    kind = examples.WhichOneof("kind")
    if kind == "example_list":
        serialized = [example.SerializeToString() for example in examples.example_list.examples]
    elif kind == "example_list_with_context":
        with_context = examples.example_list_with_context
        # Features of an example win over those of the context: on the wire, the later entry of a
        # map counts.
        context = with_context.context.SerializeToString()
        serialized = [context + example.SerializeToString() for example in with_context.examples]
    else:
        serialized = []
    if not serialized:
        raise status.invalid("The request has no examples.")
    return serialized


def _broken(signature: Signature, what: str) -> status.RequestError:
    return status.RequestError(
        status.Code.FAILED_PRECONDITION, f"Signature {signature.name!r} of the model {what}."
    )
