"""In which kinds of numbers the keys and values of a sequence are kept."""

from __future__ import annotations

from dataclasses import dataclass, fields

from llmgen.errors import UsageError, shown

KV_KINDS = ("f32", "f16", "bf16", "q8_0", "q4_0", "nf4")
"""The kinds, most bytes first; docs/generation.md says what each costs."""
_SPELLINGS = {"fp32": "f32", "fp16": "f16", "q8": "q8_0", "q4": "q4_0"}


@dataclass(frozen=True)
class KVCacheConfig:
    """The kind of the keys (k) and of the values (v).

    Latent attention keeps neither: its contents (c), which values are projected from, are of v's kind and
    its rotated position parts (r) of k's, unless these are said.  Raises UsageError for an unknown kind.
    """

    k: str = "f16"
    v: str = "f16"
    c: str | None = None
    r: str | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            kind = getattr(self, field.name)
            if kind is not None or field.default is not None:
                object.__setattr__(self, field.name, _kind(kind))

    @property
    def latent(self) -> KVCacheConfig:
        """The same for a latent state, whose keys are the position parts and whose values are the contents."""
        return KVCacheConfig(self.r or self.k, self.c or self.v)

    @classmethod
    def of(cls, kinds: str | KVCacheConfig) -> KVCacheConfig:
        """From one kind for all ("q8_0") or one for each ("k=q8_0,v=f16"; what is not named is f16)."""
        if isinstance(kinds, KVCacheConfig):
            return kinds
        if not isinstance(kinds, str):
            raise UsageError(f"kv_type must be a text or a KVCacheConfig, not {type(kinds).__name__}")
        if "=" not in kinds:
            kind = _kind(kinds)
            return cls(kind, kind)
        return cls(**_parts(kinds))

    def __str__(self) -> str:
        named = [f"{part}={kind}" for part, kind in (("c", self.c), ("r", self.r)) if kind is not None]
        if self.k == self.v and not named:
            return self.k
        return ",".join([f"k={self.k}", f"v={self.v}", *named])


def _parts(text: str) -> dict[str, str]:
    names = [field.name for field in fields(KVCacheConfig)]
    parts: dict[str, str] = {}
    for item in text.split(","):
        name, _, kind = (word.strip() for word in item.partition("="))
        if name not in names or name in parts:
            raise UsageError(
                f"the KV cache type {shown(text)!r} is not understood at {shown(item)!r}; "
                "write one kind for all, or k=KIND,v=KIND, and c=KIND,r=KIND for latent attention (--kv-type)"
            )
        parts[name] = kind
    return parts


def _kind(text: object) -> str:
    """The kind that a text means."""
    kind = _SPELLINGS.get(text, text) if isinstance(text, str) else text
    if kind not in KV_KINDS:
        raise UsageError(
            f"unknown KV cache type {shown(text)!r}; choose one of {', '.join(KV_KINDS)}, "
            "or k=KIND,v=KIND (--kv-type)"
        )
    return str(kind)
