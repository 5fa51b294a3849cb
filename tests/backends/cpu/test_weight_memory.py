"""Where weights lie: in the mapped file, or in a copy in large pages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from llmgen.backends.cpu import sizes, weight_memory
from llmgen.backends.cpu.model import Model
from llmgen.backends.cpu.runtime.library import KernelLibrary
from llmgen.backends.cpu.sizes import default_context
from llmgen.backends.cpu.weight_memory import WeightMemory, check_memory, checked_load
from llmgen.errors import LLMGenError, UsageError
from llmgen.gguf import GGUFFile
from llmgen.gguf.large_pages import supported
from llmgen.model.archs import read_model
from llmgen.model.kv_config import KVCacheConfig
from models import smollm2

GB = 1 << 30


@dataclass
class Pages:
    """Ten pieces of 100 MB whose moving takes ``cost`` seconds of a clock that only they advance."""

    left: int = 10 * (100 << 20)
    faster: float = 2.0
    cost: float = 0.1
    error: OSError | None = None
    now: float = 0.0
    moved: list[int] = field(default_factory=list)

    def move_one(self) -> None:
        self._move(100 << 20)

    def move_all(self, n_threads: int) -> None:
        self._move(self.left)

    def _move(self, nbytes: int) -> None:
        self.now += self.cost
        if self.error:
            self.left = 0
            raise self.error
        self.left -= nbytes
        self.moved.append(nbytes)

    def reading(self) -> tuple[float, float]:
        self.now += 0.001
        return 1.0 / self.faster, 1.0


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> Pages:
    made = Pages()
    monkeypatch.setattr(weight_memory.time, "perf_counter", lambda: made.now)
    monkeypatch.setattr(weight_memory, "free_bytes", lambda: 16 * GB)
    return made


def memory(pages: Pages, load: Any = "auto") -> WeightMemory:
    class File:
        large_pages = pages

    return WeightMemory(File(), load)  # type: ignore[arg-type]


def test_auto_moves_all_in_the_long_run_and_nothing_in_a_short_one(pages: Pages) -> None:
    weights = memory(pages)
    for _ in range(100):
        weights.after(0.1)  # 10 seconds, for 1.05 GB
    assert pages.moved == []
    for _ in range(100):
        weights.after(0.1)
    assert pages.left == 0


def test_auto_spends_a_fifth_of_the_time_on_moving(pages: Pages) -> None:
    weights = memory(pages)
    weights.after(11.0)
    for _ in range(20):
        weights.after(0.1)
    assert 1 < len(pages.moved) <= 1 + 20 * 0.1 * 0.2 / pages.cost


def test_auto_stops_where_large_pages_are_not_read_faster(pages: Pages) -> None:
    pages.faster = 1.01
    weights = memory(pages)
    for _ in range(100):
        weights.after(11.0)
    assert len(pages.moved) == 1


def test_auto_leaves_half_of_the_free_memory(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_memory, "free_bytes", lambda: GB)
    weights = memory(pages)
    for _ in range(100):
        weights.after(11.0)
    weights.move_all(2)
    assert pages.moved == []


def test_auto_goes_on_without_large_pages_if_the_system_refuses_them(pages: Pages) -> None:
    pages.error = OSError("no")
    weights = memory(pages)
    weights.after(11.0)
    weights.after(11.0)
    assert pages.left == 0
    weights = memory(Pages(error=pages.error))
    weights.move_all(2)


def test_a_small_model_stays_in_the_file(pages: Pages) -> None:
    pages.left = 32 << 20
    weights = memory(pages)
    weights.after(1e6)
    weights.move_all(2)
    assert pages.moved == []


def test_mmap_moves_nothing(pages: Pages) -> None:
    weights = memory(pages, "mmap")
    weights.after(1e6)
    weights.move_all(2)
    assert pages.moved == []


def test_memory_is_refused_where_the_weights_do_not_fit(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    class File:
        large_pages = pages

    needed = pages.left + GB // 4
    monkeypatch.setattr(weight_memory, "free_bytes", lambda: needed)
    check_memory(File(), 4096, GB // 4)  # type: ignore[arg-type]
    monkeypatch.setattr(weight_memory, "free_bytes", lambda: needed - 1)
    with pytest.raises(
        LLMGenError, match=r"1,000 MiB and a cache of 4096 tokens 256 MiB.* choose --load mmap or"
    ):
        check_memory(File(), 4096, GB // 4)  # type: ignore[arg-type]
    monkeypatch.setattr(weight_memory, "free_bytes", lambda: None)
    check_memory(File(), 4096, GB // 4)  # type: ignore[arg-type]
    pages.error = OSError("no such luck")
    with pytest.raises(LLMGenError, match=r"no such luck.*--load mmap"):
        memory(pages, "memory").move_all(2)


def test_unknown_ways_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"load \(--load\) is 'disk', expected auto, mmap or memory"):
        checked_load("disk")
    monkeypatch.setattr(weight_memory, "supported", lambda: False)
    assert checked_load("auto") == "auto"
    with pytest.raises(UsageError, match="needs Linux"):
        checked_load("memory")


@pytest.mark.skipif(not supported(), reason="no transparent large pages here")
def test_a_real_model_computes_the_same_before_and_after() -> None:
    with GGUFFile.open(smollm2()) as file:
        model = Model.load(file, n_ctx=64, n_threads=2, load="auto")
        seq = model.new_sequence()
        before = [model.decode([seq], [token]) for token in (5, 6, 7)]
        assert file.large_pages.left > 0
        model.move_weights()
        assert file.large_pages.left == 0
        seq.clear()
        after = [model.decode([seq], [token]) for token in (5, 6, 7)]
        np.testing.assert_array_equal(before, after)
        model.close()


def test_the_default_context_leaves_room_for_the_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    with GGUFFile.open(smollm2()) as file:
        config, kinds = read_model(file), KVCacheConfig.of("f16")
    whole = default_context(config, kinds)
    monkeypatch.setattr(sizes, "available_bytes", lambda: GB)
    monkeypatch.setattr(sizes, "free_bytes", lambda: GB)
    assert default_context(config, kinds) == whole == 8192  # 180 MiB
    assert default_context(config, kinds, copied=GB - (256 << 20)) == 4096


@pytest.mark.skipif(not supported(), reason="no transparent large pages here")
def test_too_little_memory_is_told_before_kernels_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_memory, "free_bytes", lambda: 100 << 20)
    monkeypatch.setattr(KernelLibrary, "require", lambda *_: pytest.fail("kernels were asked for"))
    with GGUFFile.open(smollm2()) as file, pytest.raises(LLMGenError, match="smaller context"):
        Model.load(file, n_ctx=4096, load="memory")
