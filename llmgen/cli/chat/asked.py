"""What a chat template is given besides the conversation, to ask for an answer of a certain kind."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Asked:
    """Variables that the template reads, and a word that it looks for in the system message."""

    keywords: dict[str, Any] = field(default_factory=dict)
    flag: str = ""

    def flagged(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The conversation with the flag in its system message."""
        if not self.flag:
            return messages
        if messages and messages[0]["role"] == "system":
            first, rest = messages[0], messages[1:]
            return [{**first, "content": f"{first['content']}\n{self.flag}"}, *rest]
        return [{"role": "system", "content": self.flag}, *messages]
