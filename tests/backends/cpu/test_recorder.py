"""What a recorder makes of the arguments it is given, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from llmgen.backends.cpu.binding import Binding
from llmgen.backends.cpu.decode_recorder import DecodeRecorder
from llmgen.backends.cpu.kernels.arguments import TABLES, Binary, places
from llmgen.backends.cpu.kernels.layout import MAX_COLUMNS, STEP_ARGS
from llmgen.backends.cpu.plan import EVERYTHING, At, Value
from llmgen.backends.cpu.prefill_recorder import PrefillRecorder
from llmgen.backends.cpu.states import PlacedKV
from llmgen.model.kv_config import KVCacheConfig
from llmgen.model.runs import MAX_PARTS
from llmgen.model.states import KV
from llmgen.model.weights import Vector

RUN = 4096  # the address of a control block that nobody reads here


def recorders() -> list[Any]:
    binding = Binding(64)
    return [DecodeRecorder(binding, RUN), PrefillRecorder(binding, RUN, 16, 1)]


@pytest.mark.parametrize("recorder", recorders())
def test_arguments_are_put_in_order(recorder: Any) -> None:
    x, out = Value(16, 64, 1, False), Value(32, 128, 1, False)
    shifted = At(out, lambda t, n: t)
    recorder.emit("pointwise:add", [], n=16, out=shifted, y=9, y_stride=0, x=x)
    assert recorder.steps[-1].args == Binary(x, 64, 9, 0, shifted, 128, 16, recorder.split_tokens, RUN)


def test_missing_and_unknown_arguments_are_refused() -> None:
    recorder = recorders()[0]
    x = Value(16, 64, 1, False)
    with pytest.raises(TypeError, match="'n'"):
        recorder.emit("pointwise:add", [], x=x, y=x, out=x)
    with pytest.raises(TypeError, match="'value'"):
        recorder.emit("pointwise:add", [], x=x, y=x, out=x, n=16, value=1)
    assert not recorder.steps


@pytest.mark.parametrize("recorder", recorders())
def test_a_quantized_value_is_not_changed(recorder: Any) -> None:
    x = Value(32, 128, 16, False, EVERYTHING)
    x.copies["tiles"] = Value(32, 64, 16, False)
    with pytest.raises(AssertionError, match="changes a copied value"):
        recorder.head_rms_norm(x, Vector("norm", np.ones(16, np.float32)), 2, 1e-5)


@pytest.mark.parametrize("recorder", recorders())
def test_keys_and_values_are_stored_by_one_step(recorder: Any) -> None:
    state = PlacedKV.place(KV(2, 16, 32), 0, 64, 64, KVCacheConfig("q8_0", "f16"))
    k, v = Value(32, 128, 16, False), Value(64, 256, 16, False)
    for rows, kernel in (((k, v), "rows_q8_0_f16"), ((k, None), "keys_q8_0"), ((None, v), "values_f16")):
        recorder.store(*rows, state)
        step = recorder.steps.pop()
        assert not recorder.steps
        assert step.kernel == f"cache:{kernel}"
        assert (step.args.k or None, step.args.v or None) == rows
        assert (step.args.key_dim, step.args.value_dim) == (16, 32)
        assert (step.args.k_at, step.args.v_at) == (state.key_offset, state.value_offset)
        assert {x for x, _, writes in step.accesses if not writes} == {x for x in rows if x is not None}


@pytest.mark.parametrize("kernel", TABLES)
def test_tables_fit_into_a_step(kernel: str) -> None:
    table = TABLES[kernel]
    assert len(table._fields) <= STEP_ARGS
    assert places(table)._asdict() == {name: i for i, name in enumerate(table._fields)}


def test_a_kernel_has_a_column_for_each_part_of_a_run() -> None:
    assert MAX_COLUMNS == MAX_PARTS
