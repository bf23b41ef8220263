"""All operators; their modules are imported as a graph names them (`clrt.ops.registry`)."""

from clrt.ops.registry import REGISTRY

__all__ = ["REGISTRY"]
