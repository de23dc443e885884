"""Protobuf and gRPC modules, generated from proto/ by the build and never committed."""
