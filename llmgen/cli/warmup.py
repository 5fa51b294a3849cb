"""``llmgen warmup``: compile the kernels before they are needed."""

from __future__ import annotations

from typing import Annotated

import typer

from llmgen import hub
from llmgen.cli.common.loading import compiling
from llmgen.cli.common.model_options import EngineOptions, file_options
from llmgen.cli.common.models import complete_model, model_path
from llmgen.cli.terminal.output import note
from llmgen.errors import LLMGenError, ModelFileError
from llmgen.visible import visible


@file_options
def command(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL...",
            help="Models to compile for; without any, all that are in the models folder.",
            autocompletion=complete_model,
            show_default=False,
        ),
    ] = None,
    *,
    engine: EngineOptions,
) -> None:
    """Compile the kernels that models need on this CPU, and keep them for later runs.

    Which kernels a model needs depends on its architecture, its tensor types and
    --kv-type. Kernels that are already compiled stay.
    """
    if models:
        for model in models:
            _warm(model, engine)
        return
    _refuse_wrong(engine)
    here = hub.local_models()
    if not here:
        raise ModelFileError(
            f"there are no models in {hub.models_folder()} to compile for; name one, such as smollm2"
        )
    for local in here:
        try:
            _warm(str(local.path), engine)
        except LLMGenError as error:  # a file that cannot run must not stop the others
            note(f"{visible(local.name)} left out: {visible(error)}")


def _refuse_wrong(engine: EngineOptions) -> None:
    """Raises UsageError for options that no model takes, which are not the fault of the first one."""
    from llmgen.backends.cpu.sizes import check_sizes
    from llmgen.model.kv_config import KVAutoConfig, KVCacheConfig

    check_sizes(engine.n_ctx, engine.n_threads)
    if not isinstance(engine.kv_type, KVAutoConfig | None):
        KVCacheConfig.of(engine.kv_type)


def _warm(model: str, engine: EngineOptions) -> None:
    """Load one model, which compiles what is missing."""
    path = model_path(model)

    from llmgen.backends.cpu.model import Model
    from llmgen.engine.kv_plan import CANDIDATES
    from llmgen.gguf import GGUFFile
    from llmgen.model.kv_config import KVAutoConfig

    options = engine.given()
    kinds = CANDIDATES if isinstance(engine.kv_type, KVAutoConfig) else (options.pop("kv_type", "f16"),)
    with GGUFFile.open(path) as file, compiling() as progress:
        for kv_type in kinds:
            loaded = Model.load(file, **{**options, "kv_type": kv_type}, progress=progress)
            loaded.close()
    print(f"{visible(path.name)}: ready ({loaded.kernel_level})")
