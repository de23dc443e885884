"""What the server counts."""

import math

from prometheus_client import parser

from monolith.serving.server.metrics import ServerMetrics


def read(metrics: ServerMetrics) -> dict[tuple, float]:
    """Reads the text as Prometheus does."""
    return {
        (
            sample.name.removeprefix("monolith_serving_"),
            *sorted(sample.labels.items()),
        ): sample.value
        for family in parser.text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }


def test_requests():
    metrics = ServerMetrics()
    metrics.count_request("grpc", "Predict", "ads", "OK", seconds=0.003)
    metrics.count_request("grpc", "Predict", "ads", "OK", seconds=0.3)
    metrics.count_request("rest", "Predict", "", "NOT_FOUND", seconds=0.1)
    found = read(metrics)
    grpc = (("api", "grpc"), ("code", "OK"), ("method", "Predict"), ("model", "ads"))
    rest = (("api", "rest"), ("code", "NOT_FOUND"), ("method", "Predict"), ("model", ""))
    assert found[("requests_total", *grpc)] == 2
    assert found[("requests_total", *rest)] == 1
    labels = (("api", "grpc"), ("method", "Predict"), ("model", "ads"))
    assert math.isclose(found[("request_seconds_sum", *labels)], 0.303)
    assert found[("request_seconds_bucket", labels[0], ("le", "0.005"), *labels[1:])] == 1


def test_calls_and_loads():
    metrics = ServerMetrics()
    metrics.count_call("ads", requests=3, rows=12, waited_sec=0.001)
    metrics.count_load("ads", seconds=2.5)
    metrics.count_load("ads", seconds=None)
    metrics.watch_in_flight(lambda: 4)
    found = read(metrics)
    model = ("model", "ads")
    assert found["batch_requests_sum", model] == 3
    assert found["batch_rows_sum", model] == 12
    assert found["loads_total", model, ("result", "loaded")] == 1
    assert found["loads_total", model, ("result", "failed")] == 1
    assert found["last_load_seconds", model] == 2.5
    assert found["requests_in_flight",] == 4


def test_a_version_that_is_gone_is_not_listed():
    metrics = ServerMetrics()
    metrics.set_available("ads", 7, True)
    assert read(metrics)["version_available", ("model", "ads"), ("version", "7")] == 1
    metrics.set_available("ads", 7, False)
    metrics.set_available("ads", 8, False)
    assert not any(key[0] == "version_available" for key in read(metrics))


def test_servers_in_one_process_count_for_themselves():
    first, second = ServerMetrics(), ServerMetrics()
    first.count_load("ads", seconds=1)
    assert not any(key[0] == "loads_total" for key in read(second))
