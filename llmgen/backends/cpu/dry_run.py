"""What loading a model would give, without kernels, threads or memory."""

from __future__ import annotations

from llmgen.backends.cpu.binding import Binding
from llmgen.backends.cpu.decode_recorder import DecodeRecorder
from llmgen.backends.cpu.sizes import checked_layout, chosen_sizes
from llmgen.backends.cpu.states import StateLayout
from llmgen.gguf import GGUFFile
from llmgen.model.archs import check_all_read, read_model
from llmgen.model.decoder import Decoder
from llmgen.model.kv_config import KVCacheConfig
from llmgen.model.rope_option import check_stretchable, stretched
from llmgen.model.weights import Weights


def dry_run(
    file: GGUFFile,
    n_ctx: int | None = None,
    kv_type: str | KVCacheConfig = "f16",
    n_threads: int | None = None,
    rope_scaling: str | None = None,
) -> tuple[Decoder, StateLayout]:
    """The architecture and layout that ``Model.load`` would use for a file, without running it.

    The forward pass is recorded once, which checks every tensor's name, shape and type.
    Raises as ``load`` does.
    """
    kinds = KVCacheConfig.of(kv_type)
    config = stretched(read_model(file), rope_scaling, file)
    n_ctx, _ = chosen_sizes(config, kinds, n_ctx, n_threads)
    layout = checked_layout(config, n_ctx, kinds)
    weights, binding = Weights(file), Binding(n_ctx)
    config.forward(DecodeRecorder(binding, 0), weights, layout.states)
    check_all_read(file, weights, config)
    check_stretchable(config, binding.stretchable)
    return config, layout
