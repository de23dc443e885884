"""The prediction server: TensorFlow Serving's API over gRPC and REST, for models of any version.

From the request to the model: `grpc_service` and `rest` speak with clients, `predict` knows what a
request means, `manager` which version answers, `batching` merges requests, `loaded` runs the model.
"""
