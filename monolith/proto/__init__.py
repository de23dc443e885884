"""Protobuf and gRPC modules, generated from proto/ by the build and never committed."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # The modules are not among the sources that mypy reads.
    def __getattr__(name: str) -> Any: ...
