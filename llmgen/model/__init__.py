"""The computation: configuration, weights, cache, architectures, and the model that runs them."""

from __future__ import annotations

from llmgen.model.cache import Sequence
from llmgen.model.config import ModelConfig, read_config
from llmgen.model.model import Model, dry_run

__all__ = ["Model", "ModelConfig", "Sequence", "dry_run", "read_config"]
