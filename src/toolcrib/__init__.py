"""Toolcrib: one runtime for the tools of LLM agents.

The public names, one by one. Importing this package imports nothing else: each name is loaded from its
module when it is first asked for, so that ``import toolcrib`` costs next to nothing.
"""

__version__ = "0.1.0"

TYPE_CHECKING = False  # type checkers know the name; importing typing would cost more than all the rest
if TYPE_CHECKING:
    from toolcrib.app import Crib, open
    from toolcrib.config import Config
    from toolcrib.doors.cli.serve import serve
    from toolcrib.errors import (
        ApprovalError,
        ConfigError,
        Failed,
        SigningError,
        SourceError,
        StoreError,
        ToolcribError,
        UnknownTool,
        UsageError,
    )
    from toolcrib.functions import Context, tool
    from toolcrib.model import (
        AudioBlock,
        EmbeddedResource,
        ImageBlock,
        Problem,
        ResourceLink,
        Schema,
        Severity,
        TextBlock,
        Tool,
        ToolCall,
        ToolError,
        ToolResult,
    )

__all__ = [
    "ApprovalError",
    "AudioBlock",
    "Config",
    "ConfigError",
    "Context",
    "Crib",
    "EmbeddedResource",
    "Failed",
    "ImageBlock",
    "Problem",
    "ResourceLink",
    "Schema",
    "Severity",
    "SigningError",
    "SourceError",
    "StoreError",
    "TextBlock",
    "Tool",
    "ToolCall",
    "ToolError",
    "ToolResult",
    "ToolcribError",
    "UnknownTool",
    "UsageError",
    "__version__",
    "open",
    "serve",
    "tool",
]

_HOMES = {
    "ApprovalError": "errors",
    "AudioBlock": "model",
    "Config": "config",
    "ConfigError": "errors",
    "Context": "functions",
    "EmbeddedResource": "model",
    "Failed": "errors",
    "ImageBlock": "model",
    "Problem": "model",
    "ResourceLink": "model",
    "Schema": "model",
    "Severity": "model",
    "SigningError": "errors",
    "SourceError": "errors",
    "StoreError": "errors",
    "TextBlock": "model",
    "Tool": "model",
    "ToolCall": "model",
    "ToolError": "model",
    "ToolResult": "model",
    "ToolcribError": "errors",
    "UnknownTool": "errors",
    "UsageError": "errors",
    "Crib": "app",
    "open": "app",
    "serve": "doors.cli.serve",
    "tool": "functions",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'toolcrib' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"toolcrib.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
