"""Making untrusted text harmless on a terminal.

A model, a file or a name can contain escape sequences, which a terminal obeys: it clears
the screen, changes its title, writes the clipboard, answers on the user's behalf.  Other
characters are invisible, or display text in another order.

:func:`visible` is for names, values and messages, in which nothing may stay hidden;
:func:`make_visible` for a model's text, which needs line breaks and the joiners of emoji
and of many scripts.
"""

from __future__ import annotations

import re
import unicodedata

# Cc controls, Cf invisible format characters (bidi overrides among them), Cs lone
# surrogates, Zl/Zp line separators: they move the cursor or hide text.
_HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
# All control characters but newline and tab.  A carriage return overwrites the line.  Of
# the format characters: embeddings, overrides and isolates, which reorder text, the
# invisible marks for direction, line and paragraph separators, and the tag characters, in
# which text can be hidden.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff"
    "\U000e0000-\U000e0fff\ud800-\udfff]"
)
# Emoji flags of regions (England, Scotland, Wales) are written with tags, up to a closing one.
_FLAG = re.compile("\U0001f3f4[\U000e0061-\U000e007a\U000e0030-\U000e0039]{2,6}\U000e007f")

_CONTROL_PICTURES = 0x2400


def visible(text: object, keep: str = "") -> str:
    """The text with every control, invisible or unencodable character as an escape (``\\x1b``).

    Characters in ``keep`` (say, a newline) stay as they are.
    """
    return "".join(c if c in keep or not is_hidden(c) else _escape(c) for c in str(text))


def is_hidden(character: str) -> bool:
    """Whether a terminal obeys this character or does not display it."""
    return not character.isprintable() and unicodedata.category(character) in _HIDDEN


def _escape(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def make_visible(text: str) -> str:
    """The text with control characters shown instead of sent.

    Newline and tab stay.  Control characters become their Unicode pictures (``ESC`` is
    U+241B), others their number, as ``<U+202E>``.  Works on any chunk of a stream alone:
    an escape sequence without its first character is plain text.
    """
    if text.isascii() and text.isprintable():
        return text
    out = []
    position = 0
    for flag in _FLAG.finditer(text):
        out += [_UNSEEN.sub(_picture, text[position : flag.start()]), flag.group()]
        position = flag.end()
    out.append(_UNSEEN.sub(_picture, text[position:]))
    return "".join(out)


def _picture(match: re.Match[str]) -> str:
    point = ord(match.group())
    if point < 0x20:
        return chr(_CONTROL_PICTURES + point)
    if point == 0x7F:
        return "\u2421"
    return f"<U+{point:04X}>"
