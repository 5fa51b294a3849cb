"""The engine's logits against llama.cpp's and the oracle's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gguf
import variants
from archs import CHANGED, SPECS, UNORDERED, build_arch, build_changed, build_variant, changed_file, reference
from engines import engine, in_chunks, one_by_one
from llmgen.backends.cpu.states import StateLayout
from llmgen.errors import ContextFullError, Interrupted, UsageError
from llmgen.model.kv_config import KVCacheConfig
from llmgen.model.runs import Part
from llmgen.model.states import KV, Recurrent
from naive import logits, nmse

UNEVEN = (1, 5, 16, 3, 17)
LIMIT = 1e-6


@pytest.mark.parametrize("name", SPECS)
def test_reference_logits(name: str) -> None:
    tokens, expected = reference(name)
    with engine(build_arch(name)) as model:
        whole = model.prefill(model.new_sequence(), tokens.tolist(), logits="all")
        assert whole.dtype == np.float32
        assert nmse(whole, expected) < LIMIT
        if name in UNORDERED:
            return
        assert nmse(one_by_one(model, model.new_sequence(), tokens), expected) < LIMIT
        assert nmse(in_chunks(model, model.new_sequence(), tokens, UNEVEN), expected) < LIMIT


@pytest.mark.parametrize(("name", "kind"), CHANGED)
def test_more_layers_and_experts_yarn_and_scaled_logits(name: str, kind: str) -> None:
    tokens, expected = reference(f"{name}+{kind}")
    with changed_file(name, kind) as path, engine(path) as model:
        seq = model.new_sequence()
        if name in UNORDERED:
            assert nmse(model.prefill(seq, tokens.tolist(), logits="all"), expected) < LIMIT
            return
        prompt = in_chunks(model, seq, tokens[:30], UNEVEN)
        generated = one_by_one(model, seq, tokens[30:])
    assert nmse(np.concatenate([prompt, generated]), expected) < LIMIT


@pytest.mark.parametrize("name", UNORDERED)
def test_without_causal_order_a_text_is_one_run(name: str) -> None:
    tokens, expected = reference(name)
    n = len(tokens)
    with engine(build_arch(name), n_threads=2) as model:
        seq, other = model.new_sequence(), model.new_sequence()
        rows = model.forward([Part(other, tokens[:9], 1), Part(seq, tokens, n)], "prompt")
        assert nmse(rows[1:], expected) < LIMIT
        assert nmse(rows[:1], logits(build_arch(name), tokens[:9], 8)) < LIMIT
        assert seq.cut_point(n - 1) == 0  # keys know what came behind them
        with pytest.raises(ContextFullError):
            seq.truncate(n - 1)
        seq.clear()
        assert nmse(model.prefill(seq, tokens[:9], logits="all")[-1:], rows[:1]) < LIMIT
        assert nmse(model.prefill(model.new_sequence(), tokens.tolist(), logits="all"), expected) < LIMIT


def test_without_causal_order_a_text_is_never_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmgen.backends.cpu.sizes.WHOLE", 64)
    with engine(build_arch("dream-dense")) as model:
        assert model.prefill(model.new_sequence(), [1] * 64, logits="all").shape == (64, 128)
        with pytest.raises(UsageError, match=r"65 tokens, expected at most 64: the tokens of dream see"):
            model.prefill(model.new_sequence(), [1] * 65)


@pytest.mark.parametrize("name", variants.VARIANTS | variants.BY_WAYS)
def test_variants(name: str) -> None:
    path = variants.build(name)
    tokens, _ = variants.reference("llama-tied")  # the same for all
    expected = logits(path, tokens)
    with engine(path) as model:
        seq = model.new_sequence()
        prompt = model.prefill(seq, tokens[:70].tolist(), logits="all")
        generated = one_by_one(model, seq, tokens[70:])
    assert nmse(prompt, expected[:70]) < LIMIT
    assert nmse(generated, expected[70:]) < LIMIT


def test_summaries_and_which_of_them_are_chosen() -> None:
    path, tokens, expected = variants.deepseek4_long()
    with engine(path, n_ctx=512, n_threads=2) as model:
        seq = model.new_sequence()
        model.prefill(seq, tokens[:250].tolist(), logits="none")
        assert nmse(one_by_one(model, seq, tokens[250:])[-2:], expected) < LIMIT
        seq.clear()
        assert nmse(in_chunks(model, seq, tokens, (7, 120, 64, 3))[-2:], expected) < LIMIT


def test_groups_of_keys_that_are_chosen_by_their_mean() -> None:
    path, tokens, expected = variants.qwen4exp_few_keys()
    with engine(path, n_threads=2) as model:
        seq = model.new_sequence()
        rows = [in_chunks(model, seq, tokens[:60], UNEVEN), one_by_one(model, seq, tokens[60:])]
        assert nmse(np.concatenate(rows)[[82, 86]], expected) < LIMIT
        assert nmse(np.concatenate(rows), logits(path, tokens)) < LIMIT
        seq.clear()
        whole = model.prefill(seq, tokens.tolist(), logits="all")
        np.testing.assert_array_equal(whole[:60], rows[0])


def test_the_attention_factor_holds_for_local_layers_too() -> None:
    """Gemma 3's layers with a window are not stretched, but llama.cpp scales their rotations with the others'."""
    keys = {**variants.YARN, "rope.scaling.attn_factor": ("FLOAT32", 1.3)}
    path = build_variant("gemma3-dense", "attn-factor", set_keys=keys)
    tokens, _ = reference("gemma3-dense")
    with engine(path) as model:
        assert nmse(one_by_one(model, model.new_sequence(), tokens), logits(path, tokens)) < LIMIT


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_float_weights_meet_float_activations(kind: str) -> None:
    path = build_arch("gemma3-dense", kind)
    tokens, _ = reference("gemma3-dense")
    expected = logits(path, tokens)
    with engine(path) as model:
        assert nmse(in_chunks(model, model.new_sequence(), tokens, (20,)), expected) < LIMIT
        assert nmse(one_by_one(model, model.new_sequence(), tokens), expected) < LIMIT


@pytest.mark.parametrize("kind", ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "mxfp4"])
def test_quantized_weights_meet_int8_activations(kind: str) -> None:
    path = build_arch("llama-dense", kind)
    tokens, _ = reference("llama-dense")
    exact, rounded = logits(path, tokens), logits(path, tokens, int8_activations=True)
    with engine(path) as model:
        prompt = in_chunks(model, model.new_sequence(), tokens, (20,))
        generated = one_by_one(model, model.new_sequence(), tokens)
    if kind == "q8_0":
        # signed 8-bit weights meet 16-bit activations where tokens are generated
        assert nmse(generated, exact) < 1e-3 * nmse(rounded, exact)
        generated = prompt
    for ours in (prompt, generated):
        # A rounding that falls the other way moves a logit far more than the order of a sum
        # does, so the twins meet in size of error, not in every digit.
        assert nmse(ours, rounded) < nmse(rounded, exact)
        assert nmse(ours, exact) < 1.5 * nmse(rounded, exact)


def test_f16_cache_is_near_the_f32_cache() -> None:
    path = build_arch("gemma2-dense")
    tokens, expected = reference("gemma2-dense")
    with engine(path, kv_type="f16") as model:
        assert nmse(in_chunks(model, model.new_sequence(), tokens, UNEVEN), expected) < 1e-5
        assert nmse(one_by_one(model, model.new_sequence(), tokens), expected) < 1e-5


# --- far beyond the window ---


@pytest.mark.parametrize("name", ["gemma2", "gemma3", "olmo2"])
def test_long_contexts_past_the_window(name: str) -> None:
    path = build_variant(f"{name}-dense", "long", set_keys={"context_length": ("UINT32", 2048)})
    tokens = np.random.default_rng(4).integers(0, 128, 1400)
    expected = logits(path, tokens)
    with engine(path, n_ctx=2048) as model:
        seq = model.new_sequence()
        prompt = in_chunks(model, seq, tokens[:1300], (3, 700, 29, 33, 32, 31, 1))
        generated = one_by_one(model, seq, tokens[1300:])
    assert nmse(prompt, expected[:1300]) < LIMIT
    assert nmse(generated, expected[1300:]) < LIMIT


def test_long_context_without_a_window() -> None:
    path = build_variant("llama-dense", "long", set_keys={"context_length": ("UINT32", 2048)})
    tokens = np.random.default_rng(5).integers(0, 128, 1400)
    expected = logits(path, tokens)
    with engine(path, n_ctx=2048) as model:
        seq = model.new_sequence()
        prompt = in_chunks(model, seq, tokens[:1300], (513, 1, 255))
        generated = one_by_one(model, seq, tokens[1300:])
    assert nmse(prompt, expected[:1300]) < LIMIT
    assert nmse(generated, expected[1300:]) < LIMIT


# --- the same bits, whatever the company ---


def bit_variants() -> list[Path]:
    quantized = [build_arch("gemma3-dense", "q4_0"), build_arch("llama-dense", "q8_0")]
    # a latent cache, one of which a few keys are chosen, and one of which blocks of them are
    names: tuple[str, ...] = ("minicpm3-many-heads", "deepseek32-few-keys", "minimax-m3-wide-blocks")
    quantized += [variants.build(name) for name in names]
    mixtures = [build_changed("qwen3moe-moe", "experts", kind) for kind in ("f32", "q4_0", "q8_0")]
    # windows; sinks and scales; slopes, learned positions and clamps; recurrent states
    names = ("olmo2-dense", "granite_swa-dense", "mpt-dense", "qwen35-dense")
    return [*quantized, *map(build_arch, names), *mixtures]


@pytest.mark.parametrize("index", range(12))
@pytest.mark.parametrize("kv_type", ["f16", "f32", "q8_0", "k=q4_0,v=nf4"])
def test_chunks_and_threads_do_not_change_a_bit(index: int, kv_type: str) -> None:
    path, tokens = bit_variants()[index], np.random.default_rng(6).integers(0, 128, 150)
    results = []
    for n_threads in (1, 2):
        with engine(path, n_threads=n_threads, kv_type=kv_type) as model:
            for sizes in ((), (1, 2, 3), (16, 16, 48), (33, 64), (149,)):
                seq = model.new_sequence()
                prompt = in_chunks(model, seq, tokens, sizes)
                generated = one_by_one(model, seq, tokens[:20])
                results.append(np.concatenate([prompt, generated]))
                seq.close()
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)


def test_generated_tokens_do_not_depend_on_their_company() -> None:
    tokens = np.random.default_rng(7).integers(0, 128, (8, 60))
    lengths = [1, 40, 7, 33, 20, 59, 2, 12]  # each sequence stands elsewhere
    for path in bit_variants():
        with engine(path, n_threads=2) as model:
            alone = [model.new_sequence() for _ in lengths]
            together = [seq_with(model, row[:n]) for row, n in zip(tokens, lengths, strict=True)]
            for seq, row, n in zip(alone, tokens, lengths, strict=True):
                model.prefill(seq, row[:n].tolist(), logits="none")
            for count in (1, 2, 3, 5, 8):
                ids = [int(i) for i in tokens[:count, -1]]
                batch = model.decode(together[:count], ids)
                single = np.concatenate([model.decode([alone[i]], [ids[i]]) for i in range(count)])
                np.testing.assert_array_equal(batch, single)


def test_prompts_do_not_depend_on_their_company() -> None:
    rng = np.random.default_rng(8)
    behind = [0, 3, 0, 61, 9, 0, 20, 8]  # tokens that each sequence holds already
    lengths = [1, 6, 9, 12, 3, 8, 5, 2]
    for path in bit_variants():
        with engine(path, n_threads=2) as model:
            first = [rng.integers(0, 128, n) for n in behind]
            prompts = [rng.integers(0, 128, n).tolist() for n in lengths]

            def sequences(first=first, model=model):  # type: ignore[no-untyped-def]
                return [seq_with(model, ids) if len(ids) else model.new_sequence() for ids in first]

            alone = [model.prefill(s, ids) for s, ids in zip(sequences(), prompts, strict=True)]
            seqs = sequences()
            together = model.forward([Part(*p) for p in zip(seqs, prompts, strict=True)], "prompt")
            np.testing.assert_array_equal(together, np.array(alone))
            assert [seq.length for seq in seqs] == [a + b for a, b in zip(behind, lengths, strict=True)]
            after = model.decode(seqs, [1] * 8)
            for i, seq in enumerate(sequences()):
                model.prefill(seq, prompts[i])
                np.testing.assert_array_equal(model.decode([seq], [1])[0], after[i])


def test_experts_that_nobody_chose_are_not_read(tmp_path: Path) -> None:
    """Their weights are no numbers here; the bias chooses the three of eight that are."""
    path = tmp_path / "experts.gguf"
    path.write_bytes(build_changed("minimax-m2-moe", "experts").read_bytes())
    for tensor in gguf.GGUFReader(path, "r+").tensors:
        if tensor.name.endswith("exp_probs_b.bias"):
            tensor.data[:] = [0, 9, 0, 0, 9, 0, 0, 9]
        elif "_exps." in tensor.name:
            tensor.data.reshape(8, -1)[[0, 2, 3, 5, 6]] = np.nan
    tokens = list(range(30))
    with engine(path, n_threads=2) as model:
        prompt = model.prefill(model.new_sequence(), tokens, logits="all")
        generated = one_by_one(model, model.new_sequence(), tokens)
    assert np.isfinite(prompt).all()
    assert nmse(generated, prompt) < LIMIT


def test_a_run_is_checked_first() -> None:
    with engine(build_arch("llama-dense"), n_ctx=16) as model:
        seq, other = model.new_sequence(), model.new_sequence()
        with pytest.raises(UsageError, match="same sequence"):
            model.forward([Part(seq, [1]), Part(seq, [2])], "prompt")
        model.forward([Part(seq, [1] * 2), Part(other, [1] * 14)], "prompt")
        with pytest.raises(ContextFullError):
            model.forward([Part(seq, [1] * 2), Part(other, [1] * 3)], "prompt")
        with pytest.raises(UsageError, match="17 tokens"):
            model.forward([Part(seq, [1] * 8), Part(other, [1] * 9)], "prompt")
        with pytest.raises(UsageError, match="9 tokens"):
            model.forward([Part(seq, [1] * 9)], "generated")
        with pytest.raises(UsageError, match="no tokens"):
            model.forward([Part(seq, [])], "prompt")
        with pytest.raises(UsageError, match="0 sequences"):
            model.forward([], "prompt")
        with pytest.raises(UsageError, match="logits of 3 tokens"):
            model.forward([Part(seq, [1, 2], 3)], "generated")
        with pytest.raises(UsageError, match="role is 'other'"):
            model.forward([Part(seq, [1])], "other")  # type: ignore[arg-type]
        assert seq.length == 2


@pytest.mark.parametrize("name", ["llama-dense", "gemma3-dense"])
def test_generated_tokens_of_one_sequence_may_come_together(name: str) -> None:
    """As a guess of several tokens does: the bits are those of one token after another."""
    tokens = np.random.default_rng(9).integers(0, 128, 120)
    with engine(build_arch(name), n_threads=2) as model:
        seq, other = seq_with(model, tokens[:60]), seq_with(model, tokens[:7])
        one = one_by_one(model, seq_with(model, tokens[:60]), tokens[60:])
        for start, n in ((60, 1), (61, 8), (69, 3), (72, 8)):
            rows = model.forward([Part(seq, tokens[start : start + n], n)], "generated")
            np.testing.assert_array_equal(rows, one[start - 60 : start - 60 + n])
        parts = [Part(other, [5, 6]), Part(seq, tokens[80:85], 2)]  # not alone, and not all logits
        rows = model.forward(parts, "generated")
        np.testing.assert_array_equal(rows[1:], one[23:25])
        seq.truncate(82)
        rows = model.forward([Part(seq, tokens[82:90], 8)], "generated")
        np.testing.assert_array_equal(rows, one[22:30])


def seq_with(model, ids):  # type: ignore[no-untyped-def]
    seq = model.new_sequence()
    model.prefill(seq, ids.tolist(), logits="none")
    return seq


@pytest.mark.parametrize("recurrent", [False, True])
def test_a_run_that_a_signal_stopped_is_made_again_only_where_states_can_be_cut(
    recurrent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recurrent state may have been advanced already: a second run would advance it twice."""
    states = [KV(2, 16, 16), Recurrent(8)] if recurrent else [KV(2, 16, 16)]
    with engine(build_arch("llama-dense"), n_ctx=64) as model:
        model.layout = StateLayout(states, 64, model.max_prompt_tokens, KVCacheConfig())
        seq, runs = model.new_sequence(), []

        def advance(*table: int) -> bool:
            """Every state is written; at a signal whose handler raises nothing, the team comes back early."""
            for state in model.layout.states:
                for first, last in state.spans(seq.length, seq.length + 1):
                    seq.memory()[first:last] += 1
            runs.append(table)
            return len(runs) not in (2, 4)

        monkeypatch.setattr(model._team, "run", advance)
        model.prefill(seq, [1, 2])
        seq.checkpoint()
        if not recurrent:
            model.decode([seq], [3])
            assert (seq.length, len(runs)) == (3, 3)
            return
        with pytest.raises(Interrupted, match="by a signal"):
            model.decode([seq], [3])
        [_, state] = model.layout.states
        [(first, last)] = state.spans(0, 2)
        assert (seq.length, len(runs)) == (2, 2)
        assert set(seq.memory()[first:last].tolist()) == {1}
        model.decode([seq], [3])
        assert (seq.length, set(seq.memory()[first:last].tolist())) == (3, {2})


def test_a_profiled_run_is_a_run() -> None:
    tokens, _ = reference("llama-dense")
    with engine(build_arch("llama-dense"), n_threads=2) as model:
        plain, profiled = model.new_sequence(), model.new_sequence()
        expected = one_by_one(model, plain, tokens[:9])
        seconds = model.profile([Part(profiled, tokens[:1], 1)], "generated")
        rest = one_by_one(model, profiled, tokens[1:9])
        assert np.array_equal(rest, expected[1:])
        kernels = {step.kernel for step in model._programs["generated"].plan.steps}
        assert set(seconds) == kernels
        assert sum(seconds.values()) > 0
