"""The real models against float32: error, greedy text, and the same bits however the work is cut.

The references are llama.cpp's logits of the same files with every weight dequantized, and
its own distance from them; tests/data/README.md describes them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import models
from engines import engine, in_chunks, one_by_one
from llmgen import Tokenizer
from llmgen.backends.cpu.model import Model
from naive import logits as numpy_logits
from naive.float32 import float32_copy
from shared import DATA

MARGIN = 0.6  # between the two best logits of the reference: what rounding must not turn around
FOLLOWED = 44  # tokens of each of the reference's texts that ours must follow
WORSE_THAN_LLAMA_CPP = 1.05  # ours counts rare tokens as one, which takes 4 % off
TEXT = (
    "The lighthouse stood at the end of the pier, and on clear nights its beam could be seen from 20 miles away. "
    "Nobody knew who had built it: the records were lost in a fire, and those who remembered were gone."
)
FILES: dict[str, Callable[[], Path]] = {"smollm2": models.smollm2, "gemma3": models.gemma3}


@dataclass(frozen=True)
class Reference:
    """What is known about a model: a text's tokens, the largest logits at ``positions``, greedy texts.

    ``log_p`` [n, k] are the log-probabilities of the tokens ``ids`` [n, k].
    """

    tokens: list[int]
    positions: np.ndarray
    ids: np.ndarray
    log_p: np.ndarray
    llama_cpp_kl: float
    greedy: list[dict[str, Any]]


@dataclass(frozen=True)
class Subject:
    name: str
    model: Model
    reference: Reference


@pytest.fixture(scope="module", params=FILES)
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    reference = read_reference(request.param)
    with engine(FILES[request.param](), n_threads=2, kv_type="f16") as model:
        yield Subject(request.param, model, reference)


def read_reference(name: str) -> Reference:
    facts = json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))
    with np.load(DATA / f"{name}.npz") as stored:
        log_p = stored["logits"].astype(np.float64) - stored["log_sum_exp"][:, None]
        kl = float(stored["llama_cpp_kl"].mean())
        return Reference(facts["tokens"], stored["positions"], stored["ids"], log_p, kl, facts["greedy"])


def mean_kl(reference: Reference, ours: np.ndarray) -> float:
    """Mean KL(reference || ours) in nats; ours are logits [n, n_vocab].

    The tokens whose logits are not stored, 2 % of the probability, count as one.
    """
    total = 0.0
    for ids, log_p, row in zip(reference.ids, reference.log_p, ours, strict=True):
        p, log_q = np.exp(log_p), log_softmax(row)[ids]
        rest_p, rest_q = 1 - p.sum(), 1 - np.exp(log_q).sum()
        total += float(np.sum(p * (log_p - log_q)) + rest_p * np.log(rest_p / rest_q))
    return total / len(ours)


def log_softmax(row: np.ndarray) -> np.ndarray:
    row = row.astype(np.float64)
    row -= row.max()
    result: np.ndarray = row - np.log(np.exp(row).sum())
    return result


# --- error ---


def run_prompt(model: Model, tokens: list[int]) -> np.ndarray:
    """Logits [n, n_vocab] of the tokens as a prompt."""
    seq = model.new_sequence()
    rows = in_chunks(model, seq, tokens, ())
    seq.close()
    return rows


def run_tokens(model: Model, tokens: list[int]) -> np.ndarray:
    """The same with every token in the role of a generated one."""
    seq = model.new_sequence()
    rows = one_by_one(model, seq, tokens)
    seq.close()
    return rows


@pytest.mark.parametrize("run", [run_prompt, run_tokens])
def test_no_further_from_float32_than_llama_cpp(
    subject: Subject, run: Callable[[Model, list[int]], np.ndarray]
) -> None:
    reference = subject.reference
    assert len(reference.positions) >= 20
    ours = run(subject.model, reference.tokens)[reference.positions]
    kl = mean_kl(reference, ours)
    print(f"{subject.name}, {run.__name__}: mean KL {kl:.5f}, llama.cpp {reference.llama_cpp_kl:.5f}")
    assert kl <= WORSE_THAN_LLAMA_CPP * reference.llama_cpp_kl


def test_float32_is_within_1e_4_of_float64_on_every_logit(tmp_path: Path) -> None:
    path = float32_copy(models.smollm2(), tmp_path / "f32.gguf")
    tokens = Tokenizer.from_gguf(path).encode(TEXT)
    assert len(tokens) >= 40
    truth = numpy_logits(path, tokens)
    worst = {}
    for kv_type in ("f32", "f16"):
        with engine(path, n_threads=2, kv_type=kv_type) as model:
            worst[kv_type] = [
                float(np.abs(run(model, tokens) - truth).max()) for run in (run_prompt, run_tokens)
            ]
    path.unlink()  # half a gigabyte
    print(f"largest error of any logit, by type of cache: {worst}")
    assert max(worst["f32"]) <= 1e-4
    assert min(worst["f16"]) > 1e-3  # the measure sees what a cache in float16 costs


# --- greedy text ---


def sure_steps(text: dict[str, Any]) -> int:
    """Greedy tokens before the first one about which the reference is not sure."""
    return next((i for i, margin in enumerate(text["margins"]) if margin < MARGIN), len(text["ids"]))


def greedy(model: Model, prompt: list[int], n: int) -> list[int]:
    """The n most likely tokens, each appended to the text before it."""
    seq = model.new_sequence()
    row, ids = model.prefill(seq, prompt, logits="last"), []
    for _ in range(n):
        assert row is not None
        ids.append(int(row.argmax()))
        row = model.decode([seq], ids[-1:])[0]
    seq.close()
    return ids


def test_greedy_text_is_the_references_while_that_is_sure(subject: Subject) -> None:
    compared = 0
    for text in subject.reference.greedy:
        n = sure_steps(text)
        assert greedy(subject.model, text["prompt_ids"], n) == text["ids"][:n], text["prompt"]
        compared += n
    assert compared >= 70  # smollm2: 74, gemma3: 77


def test_every_sure_token_of_the_reference_is_ours(subject: Subject) -> None:
    """Also behind its unsure tokens: the reference's text goes in, and ours must follow it."""
    compared = 0
    for text in subject.reference.greedy:
        prompt, ids = text["prompt_ids"], text["ids"][:FOLLOWED]
        rows = run_prompt(subject.model, [*prompt, *ids])[len(prompt) - 1 : -1]
        sure = np.array(text["margins"][: len(ids)]) >= MARGIN
        np.testing.assert_array_equal(rows.argmax(axis=1)[sure], np.array(ids)[sure])
        compared += int(sure.sum())
    assert compared >= 200


# --- the same bits ---


@pytest.mark.parametrize("name", FILES)
def test_threads_and_chunks_do_not_change_a_bit(name: str) -> None:
    tokens = read_reference(name).tokens[:44]
    results = []
    for n_threads, cuts in ((1, [()]), (2, [(), (1, 2, 30)])):
        with engine(FILES[name](), n_threads=n_threads, kv_type="f16") as model:
            for sizes in cuts:
                seq = model.new_sequence()
                prompt = in_chunks(model, seq, tokens[:40], sizes)
                results.append(np.concatenate([prompt, one_by_one(model, seq, tokens[40:])]))
                seq.close()
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)
