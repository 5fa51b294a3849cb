"""What a caller can add to sampling: a constraint, and functions that change the logits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@runtime_checkable
class Constraint(Protocol):
    """Which tokens may come next, step by step: a grammar, a list of answers, a schema.

    Options hold one at its beginning; each answer works on a fork of it, so that the same options
    serve any number of answers.
    """

    def allowed(self) -> NDArray[np.bool_] | None:
        """Bool [n_vocab], true for the tokens that may come next; None allows all.

        It should allow a token that ends the answer wherever the answer may end.
        """
        ...

    def accept(self, token: int) -> None:
        """Record the token that was chosen, which may be one that ends the answer."""
        ...

    def fork(self) -> Constraint:
        """An independent copy at the same position."""
        ...


class Processor(Protocol):
    """A function that changes logits before everything else does."""

    def __call__(self, tokens: NDArray[np.int64], logits: NDArray[np.float32], /) -> NDArray[Any]:
        """The new logits, float [n_vocab], for the token ids so far, prompt included, and float32 [n_vocab].

        Both arrays are copies: they may be changed, and the changed ``logits`` returned.
        """
        ...
