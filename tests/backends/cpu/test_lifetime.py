"""Models in whole processes: exits, forks, Ctrl-C, cancelling, being forgotten."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from archs import build_variant
from engines import engine
from llmgen.backends.cpu.model import Model
from llmgen.errors import Interrupted
from llmgen.gguf import GGUFFile
from program import HANGS_S

posix = pytest.mark.skipif(os.name != "posix", reason="POSIX signals")

PRELUDE = """
import os, signal, sys, threading, time
import numpy as np
from llmgen.errors import Interrupted
from llmgen.gguf import GGUFFile
from llmgen.backends.cpu.model import Model
from llmgen.backends.cpu.runtime import thread_policy

thread_policy._other_running_threads = lambda own: 0  # on a busy machine fewer threads would run

def load(n_threads=2):
    return Model.load(GGUFFile.open(sys.argv[1]), n_ctx=60000, n_threads=n_threads)
"""


def long_model(name: str = "llama-dense") -> Path:
    return build_variant(name, "longest", set_keys={"context_length": ("UINT32", 65536)})


def run(script: str) -> str:
    """What the script prints; it must end by itself, with status 0 and no complaints."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", PRELUDE + script, str(long_model())],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
        timeout=HANGS_S,  # it hangs
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


# --- exits ---


def test_exit_with_models_left_open() -> None:
    out = run("""
models = [load(), load(), load(1)]
for m in models:
    m.prefill(m.new_sequence(), [1, 2, 3])
print(len([t for t in threading.enumerate() if t.name in ("llmgen-1", "llmgen-2")]))
""")
    assert out.split() == ["2"]


@pytest.mark.parametrize("daemon", [False, True])
def test_exit_while_another_thread_generates(daemon: bool) -> None:
    """The interpreter must not wait for ever: the call ends with Interrupted."""
    run(f"""
m = load()
seq = m.new_sequence()
m.prefill(seq, [1, 2, 3])
def generate():
    try:
        while True:
            m.decode([seq], [1])
            if seq.length > 50000: seq.truncate(3)
    except Interrupted:
        pass
threading.Thread(target=generate, daemon={daemon}).start()
time.sleep(0.3)
""")


def test_sys_exit_and_errors_in_the_middle() -> None:
    run("""
m = load()
seq = m.new_sequence()
m.prefill(seq, [1] * 600)
raise SystemExit(0)
""")


# --- Ctrl-C ---

INTERRUPTED = """
m = load({n_threads})
seq = m.new_sequence()
m.prefill(seq, [1, 2, 3, 4])
for delay in (0.05, 0.2, 0.4):
    before = seq.length
    try:
        threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT)).start()
        m.prefill(seq, [5] * 40000)
        print("not interrupted")
    except KeyboardInterrupt:
        print("interrupted")
    assert before <= seq.length < 40000
    tokens = [1, 2, 3, 4] + [5] * (seq.length - 4)
    after = m.decode([seq], [9]).copy()
    seq.truncate(4)
fresh = m.new_sequence()
m.prefill(fresh, tokens)
print(np.array_equal(after, m.decode([fresh], [9])))
"""


@posix
@pytest.mark.parametrize("n_threads", [1, 2])
def test_ctrl_c_in_a_long_prefill(n_threads: int) -> None:
    """It ends this call, which would take minutes otherwise, at a place from which the sequence goes on."""
    assert run(INTERRUPTED.format(n_threads=n_threads)).split() == ["interrupted"] * 3 + ["True"]


@posix
def test_ctrl_c_while_generating_ends_this_call_and_not_the_next() -> None:
    out = run("""
m = load()
seq = m.new_sequence()
m.prefill(seq, [1, 2, 3])
ended = 0
for i in range(40):
    try:
        threading.Timer(0.02 + 0.001 * (i % 7), os.kill, (os.getpid(), signal.SIGINT)).start()
        while True:
            m.decode([seq], [1])
    except KeyboardInterrupt:
        length = seq.length
    m.decode([seq], [1])
    ended += seq.length == length + 1
    seq.truncate(3)
print(ended)
""")
    assert out.split() == ["40"]


# presses Ctrl-C eight times; the application's handler, which raises nothing, has to be called each time
PRESSED = """
handled = threading.Event()
signal.signal(signal.SIGINT, lambda *_: handled.set())

def press():
    for _ in range(8):
        os.kill(os.getpid(), signal.SIGINT)
        handled.wait()
        handled.clear()

def work():
    presser.start()
    tokens = []
    while presser.is_alive():
        part = [len(tokens) % 100] * 300
        m.prefill(seq, part)
        m.decode([seq], [5])
        tokens += [*part, 5]
    return tokens

m = load()
seq = m.new_sequence()
presser = threading.Thread(target=press)
"""


@posix
def test_a_handler_that_raises_nothing_is_called_and_the_call_goes_on() -> None:
    out = run(
        PRESSED
        + """
tokens = work()
fresh = m.new_sequence()
for at in range(0, len(tokens), 301):
    m.prefill(fresh, tokens[at : at + 300])
    m.decode([fresh], [5])
print(np.array_equal(m.decode([seq], [7]).copy(), m.decode([fresh], [7])))
"""
    )
    assert out.split() == ["True"]


@posix
def test_ctrl_c_leaves_the_calls_of_other_threads_alone() -> None:
    out = run(
        PRESSED
        + """
worker = threading.Thread(target=lambda: print(len(work()) == seq.length))
worker.start()
while worker.is_alive():
    worker.join(0.05)  # a signal may come just before it begins to wait
"""
    )
    assert out.split() == ["True"]


# --- fork ---


@posix
def test_a_forked_child_computes_the_same() -> None:
    out = run("""
import warnings
warnings.simplefilter("ignore")
m = load()
seq = m.new_sequence()
m.prefill(seq, [1, 2, 3])
fork = seq.fork()
expected = m.decode([fork], [7]).copy()
child = os.fork()
if child == 0:
    same = np.array_equal(m.decode([seq], [7]), expected)
    m.close()
    os._exit(0 if same else 1)
_, status = os.waitpid(child, 0)
print(status, np.array_equal(m.decode([seq], [7]), expected))
""")
    assert out.split() == ["0", "True"]


@posix
def test_ctrl_c_in_a_child_leaves_the_parent_alone() -> None:
    out = run("""
import warnings
warnings.simplefilter("ignore")
m = load()
seq = m.new_sequence()
m.prefill(seq, [1, 2, 3])
ready, begun = os.pipe()
child = os.fork()
if child == 0:
    try:
        os.write(begun, b"!")
        while True:
            m.prefill(seq, [1] * 20000)
            seq.truncate(3)
    except KeyboardInterrupt:
        os._exit(7)
    os._exit(1)
os.read(ready, 1)
threading.Timer(0.2, os.kill, (child, signal.SIGINT)).start()
while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
    m.prefill(seq, [1] * 2000)
    seq.truncate(3)
print(os.waitstatus_to_exitcode(ended[1]))
""")
    assert out.split() == ["7"]


# --- cancelling, closing, forgetting ---


@pytest.mark.parametrize("n_threads", [1, 2])
def test_cancelled_at_any_moment(n_threads: int) -> None:
    """What is left is a whole number of chunks, and every later result is right."""
    rng = random.Random(n_threads)
    with engine(long_model("gemma3-dense"), n_ctx=8192, n_threads=n_threads) as model:
        whole, seq = model.new_sequence(), model.new_sequence()
        prompt = np.random.default_rng(1).integers(0, 128, 5000).tolist()
        for _ in range(15):
            start = rng.randrange(1, 600)
            seq.clear()
            model.prefill(seq, prompt[:start], logits="none")
            timer = threading.Timer(rng.random() * 0.1, model.cancel)
            timer.start()
            try:
                model.prefill(seq, prompt[start:], logits="none")
            except Interrupted:
                pass
            timer.join()
            reached = seq.length
            assert start <= reached <= len(prompt)
            ours = model.decode([seq], [3]).copy()
            whole.clear()
            model.prefill(whole, prompt[:reached], logits="none")
            np.testing.assert_array_equal(ours, model.decode([whole], [3]))


def test_a_cancel_between_two_chunks_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    with engine(long_model(), n_ctx=4096) as model:
        seq, fill, calls = model.new_sequence(), model._binding.fill_rope, []

        def cancelling(*arguments: object) -> None:
            calls.append(arguments)
            if len(calls) == 3:
                model.cancel()
            fill(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(model._binding, "fill_rope", cancelling)
        with pytest.raises(Interrupted):
            model.prefill(seq, [1] * 3000)
        assert seq.length < 2000
        monkeypatch.undo()
        model.decode([seq], [1])  # the next call starts afresh


def test_a_cancel_with_nothing_running_does_nothing() -> None:
    with engine(long_model()) as model:
        seq = model.new_sequence()
        model.cancel()
        model.prefill(seq, [1, 2, 3])
        model.cancel()
        model.decode([seq], [1])


def workers() -> set[threading.Thread]:
    """The workers of all models; those of an earlier test's may end at any moment."""
    return {t for t in threading.enumerate() if t.name.startswith("llmgen-") and t.name[7:].isdigit()}


def test_closing_while_another_thread_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    before = workers()
    with GGUFFile.open(long_model()) as file:
        model = Model.load(file, n_ctx=60000, n_threads=2)
        seq, ended, begun = model.new_sequence(), [], threading.Event()
        fill = model._binding.fill_rope
        monkeypatch.setattr(model._binding, "fill_rope", lambda *a: (begun.set(), fill(*a))[1])

        def prefill() -> None:
            try:
                model.prefill(seq, [1] * 50000, logits="none")
                ended.append("finished")
            except Interrupted:
                ended.append("stopped")

        thread = threading.Thread(target=prefill)
        thread.start()
        assert begun.wait(HANGS_S)
        model.close()  # waits for no more than the step under way, where the whole takes minutes
        thread.join(HANGS_S)
        assert ended == ["stopped"]
    assert workers() <= before


def test_a_forgotten_model_leaves_no_thread() -> None:
    before = workers()
    with GGUFFile.open(long_model()) as file:
        for _ in range(3):
            model = Model.load(file, n_ctx=256, n_threads=2)
            model.prefill(model.new_sequence(), [1, 2, 3])
            del model
            gc.collect()
        assert workers() <= before


def test_models_side_by_side_in_threads() -> None:
    with (
        engine(long_model(), n_threads=2) as first,
        engine(long_model("gemma3-dense"), n_threads=2) as second,
    ):
        results: dict[int, list[np.ndarray]] = {0: [], 1: []}

        def work(i: int, model: Model) -> None:
            for _ in range(5):
                seq = model.new_sequence()
                model.prefill(seq, list(range(40)), logits="none")
                results[i].append(model.decode([seq], [i]).copy())
                seq.close()

        threads = [threading.Thread(target=work, args=(i, m)) for i, m in enumerate((first, second))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for rows in results.values():
            assert len(rows) == 5
            for row in rows[1:]:
                np.testing.assert_array_equal(row, rows[0])


def test_one_model_from_many_threads() -> None:
    """Calls take turns; each thread has its own sequence."""
    with engine(long_model(), n_threads=2) as model:
        alone = model.new_sequence()
        model.prefill(alone, list(range(30)), logits="none")
        expected = model.decode([alone], [5]).copy()
        wrong = []

        def work() -> None:
            for _ in range(5):
                seq = model.new_sequence()
                last = model.prefill(seq, list(range(30)) + [5])
                if np.argmax(last) != np.argmax(expected):
                    wrong.append(last)
                seq.close()

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
