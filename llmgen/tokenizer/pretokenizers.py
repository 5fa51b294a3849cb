r"""Every pre-tokenizer that ``tokenizer.ggml.pre`` can name: one table.

Names, patterns and flags follow the files and llama.cpp, for which the files are made
(src/llama-vocab.cpp, src/unicode.cpp).  Where llama.cpp splits differently from the model's
own pattern, the table follows llama.cpp, since the files are tested with it.  A
pre-tokenizer is a list of rules; each cuts the pieces that the one before it left.  A rule
is

- a regular expression, each of whose matches becomes a piece, as does the text between
  two matches.  ``\p{L}``, ``\p{M}``, ``\p{N}``, ``\p{P}`` and ``\p{S}`` are the Unicode
  categories; ``\p{Upper}`` is a letter that is not a-z, ``\p{Lower}`` one that is not A-Z
  (case is told apart in ASCII only), ``\p{Han}`` the Han script, ``\p{Other}`` a letter
  outside it.  ``\s`` and ``\S`` know all white space; ``\d`` is ASCII.  A category and a
  literal beyond ASCII cannot stand in one rule.
- or a :class:`Digits`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Digits:
    """Cut runs of digits into groups of three, counted from the end of the run.

    ``pattern`` matches a digit.  ``joined``: the first group stays joined to the text before
    the run; otherwise the last group stays joined to the text after it.
    """

    pattern: str
    joined: bool


Rule = str | Digits


@dataclass(frozen=True)
class PreTokenizer:
    """How text is cut before merging.

    ``ignore_merges``: a piece that is a token as it stands is never merged.
    ``byte_level``: tokens spell bytes in GPT-2's alphabet; otherwise they are UTF-8 with
    U+2581 for a space, and ``<0x41>`` spells a byte.
    ``add_bos``: whether BOS is added if the file does not say; ``always_bos``: add it even if
    the file says otherwise, since known files do so by mistake.
    """

    rules: tuple[Rule, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    always_bos: bool = False
    byte_level: bool = True
    newline_runs: bool = False
    """A run of newlines that is a token is never merged."""


_CONTRACTION = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_PATH_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_LLAMA3 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_SIGNS}|{_SPACES}"
_QWEN2 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_SIGNS}|{_SPACES}"
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_UPPER, _LOWER = r"\p{Upper}", r"\p{Lower}"
_UPPER_M, _LOWER_M = r"[\p{Upper}\p{M}]", r"[\p{Lower}\p{M}]"


def _cased(upper: str, lower: str, after: str) -> str:
    """Words that may start with capitals, or be all capitals."""
    head = r"[^\r\n\p{L}\p{N}]?"
    return f"{head}{upper}*{lower}+{after}|{head}{upper}+{lower}*{after}"


_TEKKEN = rf"{_cased(_UPPER, _LOWER, '')}|\p{{N}}|{_PATH_SIGNS}|{_SPACES}"
_GPT4O = rf"{_cased(_UPPER, _LOWER, _CONTRACTION + '?')}|\p{{N}}{{1,3}}|{_PATH_SIGNS}|{_SPACES}"
_GRANITE_97M = rf"{_cased(_UPPER_M, _LOWER_M, _CONTRACTION + '?')}|\p{{N}}{{1,3}}|{_PATH_SIGNS}|{_SPACES}"
_LETTERS_AND_MARKS = rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+{_CONTRACTION}?"
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+"
)
_CJK_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_CJK_KOREAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_LINES = r"[^\n]+|\n+"

_DEEPSEEK_LETTERS = (
    r"\s?["
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481"
    "\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b"
    "\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59"
    "\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3"
    "\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124"
    "\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b"
    "\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e"
    "\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f"
    "\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943"
    "]+"
)
# The third range starts at U+8C48, not at U+F900 as in the model's own pattern: llama.cpp's
# source has the character that U+F900 decomposes to.
_AFMOE_SCRIPTS = (
    "[\u4e00-\u9fff\u3400-\u4dbf\u8c48-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f"
    "\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)
_YOUTU_SCRIPTS = (
    "[\uac00-\ud7a3\u3131-\u318e]+"
    "|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
    "|[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
)
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_LONG_SPACES = "|".join(rf"\s{{{n}}}(?!\S)" for n in ("512", "256", "128", "64", "32", "16", "8", "4", "1,2"))

DEFAULT = PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"))
"""Used if the file names no pre-tokenizer, or an unknown one."""

_ROWS: list[tuple[str, PreTokenizer]] = [
    ("default", DEFAULT),
    (
        "gpt-2 phi-2 jina-es jina-de jina-v1-en jina-v2-es jina-v2-de jina-v2-code roberta-bpe gigachat "
        "a.x-4.0 mellum modern-bert mpt olmo jais trillion granite-docling exaone4",
        PreTokenizer((_GPT2,)),
    ),
    (
        "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2",
        PreTokenizer((r"\p{N}", _GPT2)),
    ),
    (
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True),
    ),
    ("dbrx smaug-bpe chatglm-bpe", PreTokenizer((_LLAMA3,))),
    ("glm4 glm5", PreTokenizer((_LLAMA3,), ignore_merges=True)),
    (
        "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2",
        PreTokenizer((_QWEN2,)),
    ),
    ("qwen35", PreTokenizer((_QWEN35,))),
    ("laguna", PreTokenizer((_LINES, _QWEN2))),
    ("ufakzeka", PreTokenizer((rf"{_WORD}|\p{{N}}|{_SIGNS}|{_SPACES}",))),
    (
        "jais-2",
        PreTokenizer((rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_SIGNS}|\s*[\r\n]+|{_LONG_SPACES}|\s{{1}}",)),
    ),
    (
        "minicpm5",
        PreTokenizer(
            (r"\p{N}{1,3}", rf"{_CONTRACTION}|{_WORD}|\p{{N}}+|{_SIGNS}|{_SPACES}"), ignore_merges=True
        ),
    ),
    (
        "bailingmoe bailingmoe2 llada-moe",
        PreTokenizer(
            (
                rf"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|{_WORD}|\p{{N}}|{_SIGNS}"
                r"|\s*[\r\n]|\s+(?!\S)|\s+",
            )
        ),
    ),
    (
        "seed-coder",
        PreTokenizer((rf"{_CONTRACTION}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}",)),
    ),
    (
        "exaone-moe",
        PreTokenizer(
            (
                rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
                r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
            )
        ),
    ),
    ("tekken", PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True)),
    ("gpt-4o llama4 kanana2 talkie minimax-m2", PreTokenizer((_GPT4O,))),
    ("granite-embed-multi-97m", PreTokenizer((_GRANITE_97M,), ignore_merges=True)),
    (
        "tiny_aya cohere2moe",
        PreTokenizer(
            (Digits(r"\p{N}", joined=True), rf"{_LETTERS_AND_MARKS}|\p{{N}}{{1,3}}|{_PATH_SIGNS}|{_SPACES}"),
        ),
    ),
    (
        "youtu",
        PreTokenizer(
            (_YOUTU_SCRIPTS, rf"{_LETTERS_AND_MARKS}|\p{{N}}|{_PATH_SIGNS}|{_SPACES}"), ignore_merges=True
        ),
    ),
    (
        "kimi-k2",
        PreTokenizer(
            (
                rf"\p{{Han}}+|[^\r\n\p{{L}}\p{{N}}]?\p{{Other}}+{_CONTRACTION}?"
                rf"|\p{{N}}{{1,3}}|{_SIGNS}|{_SPACES}",
            )
        ),
    ),
    (
        "deepseek-llm",
        PreTokenizer(
            (
                r"[\r\n]",
                _DEEPSEEK_LETTERS,
                "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
                r"\s+\Z",
                _CJK_KOREAN,
                r"\p{N}+",
            )
        ),
    ),
    (
        "deepseek-coder",
        PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK_KOREAN, r"\p{N}")),
    ),
    (
        "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
        PreTokenizer((r"\p{N}{1,3}", _CJK_KANA, rf"{_DEEPSEEK3}[\r\n]*|{_SPACES}")),
    ),
    (
        "spark2_5",
        PreTokenizer(
            (r"\p{N}{1,3}", _CJK_KANA, rf"{_DEEPSEEK3}|[\r\n]|\s+(?!\S)|\s+", r"\p{N}"),
        ),
    ),
    (
        "afmoe",
        PreTokenizer((Digits(r"\p{N}", joined=True), _AFMOE_SCRIPTS, rf"{_DEEPSEEK3}[\r\n]*|{_SPACES}")),
    ),
    ("falcon", PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]"))),
    ("poro-chat bloom gpt3-finnish", PreTokenizer((_BLOOM,))),
    ("viking", PreTokenizer((_BLOOM, r"\p{N}"))),
    ("superbpe", PreTokenizer((r"\p{N}+", Digits(r"\d", joined=False)))),
    (
        "chameleon",
        PreTokenizer(
            (
                "<sentinel:[0-9]+>",
                "IMGIMG[A-I]{1,4}Z",
                r"[\t\n]|    |  ",
                r"\p{N}",
                r"[\p{P}!-/:-@\[-`{-~]",
                _GPT2,
            ),
            add_bos=True,
        ),
    ),
    (
        "gemma4 granite-embed-multi-311m",
        PreTokenizer((_LINES,), always_bos=True, byte_level=False, newline_runs=True),
    ),
    ("sarvam-moe", PreTokenizer((_LINES,), byte_level=False)),
]

PRE_TOKENIZERS: dict[str, PreTokenizer] = {name: row for names, row in _ROWS for name in names.split()}
"""By every name that a file can give it."""
