"""A long prompt and what is generated behind it, by llmgen or by llama.cpp: speed by depth, and memory.

    python scripts/long_context.py MODEL.gguf STATE [--kind f16] [--depths 512 4096 16384 32768] [-t 2] [--seconds 90]
    LLAMA_PYTHON scripts/long_context.py MODEL.gguf STATE --llama-cpp ...
    python scripts/long_context.py MODEL.gguf --fill [--llama-cpp] ...

LLAMA_PYTHON: an interpreter with llama-cpp-python, whose llama.cpp runs with flash attention unless told otherwise
(--no-flash-attention; kinds other than f16 for values need it).  At each depth
generated tokens are timed (16, which are cut off again) and the prompt's time so far is noted.  After --seconds of work
the cache is saved to STATE and the figures to STATE.json; the same command goes on from there, and prints a
Markdown table when all depths are done.  Times mean something only on a machine that does nothing else.

--fill: generated tokens alone, after a cache that is not computed but filled, since a step takes as long whatever it
holds; no STATE is needed.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import resource
import time
from pathlib import Path
from typing import Any

from llama_state import fill

CHUNK, STEPS = 512, 16
VOCABULARY = 1000
"""Token ids are below it: every model has so many."""
GGML_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8, "bf16": 30}


class Ours:
    """llmgen; the methods of ``Theirs``."""

    def __init__(self, options: argparse.Namespace, n_ctx: int) -> None:
        from llmgen.backends.cpu.model import Model
        from llmgen.gguf import GGUFFile

        self._model = Model.load(
            GGUFFile.open(options.model), n_ctx=n_ctx, n_threads=options.threads, kv_type=options.kind
        )
        self._model.move_weights()
        self._seq = self._model.new_sequence()

    def prompt(self, ids: list[int]) -> None:
        self._model.prefill(self._seq, ids)

    def generate(self, token: int) -> None:
        self._model.decode([self._seq], [token])

    def cut(self, n: int) -> None:
        self._seq.truncate(n)

    def fill(self, n: int) -> None:
        self._seq.clear()
        self._seq.stand_in(n)

    def save(self, path: Path, ids: list[int]) -> None:
        self._model.save_sequence(path, self._seq, ids, len(ids))

    def load(self, path: Path, ids: list[int]) -> None:
        self._model.load_sequence(path, self._seq)


class Theirs:
    """llama.cpp, through llama-cpp-python's low-level functions."""

    def __init__(self, options: argparse.Namespace, n_ctx: int) -> None:
        import llama_cpp as api

        self._api = api
        self._silent = api.llama_log_callback(lambda level, text, data: None)
        api.llama_log_set(self._silent, None)
        api.llama_backend_init()
        model_params = api.llama_model_default_params()
        model_params.n_gpu_layers = 0
        model = api.llama_model_load_from_file(str(options.model).encode(), model_params)
        params = api.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = n_ctx, CHUNK, CHUNK
        params.n_threads = params.n_threads_batch = options.threads
        params.type_k = params.type_v = GGML_TYPES[options.kind]
        params.flash_attn_type = int(not options.no_flash_attention)
        params.swa_full, params.no_perf = False, True
        self._context = api.llama_init_from_model(model, params)
        if not self._context:
            raise SystemExit("llama.cpp made no context")
        self._memory = api.llama_get_memory(self._context)

    def prompt(self, ids: list[int]) -> None:
        for at in range(0, len(ids), CHUNK):
            part = ids[at : at + CHUNK]
            tokens = (self._api.llama_token * len(part))(*part)
            if self._api.llama_decode(self._context, self._api.llama_batch_get_one(tokens, len(part))) != 0:
                raise SystemExit("llama_decode failed")
            self._api.llama_get_logits_ith(self._context, -1)  # waits for the result

    def generate(self, token: int) -> None:
        self.prompt([token])

    def cut(self, n: int) -> None:
        if not self._api.llama_memory_seq_rm(self._memory, 0, n, -1):
            raise SystemExit("llama.cpp cannot cut its cache back")

    def fill(self, n: int) -> None:
        self.cut(0)
        self.prompt([1] * min(n, CHUNK))
        fill(self._api, self._context, n)

    def save(self, path: Path, ids: list[int]) -> None:
        tokens = (self._api.llama_token * len(ids))(*ids)
        if not self._api.llama_state_seq_save_file(self._context, str(path).encode(), 0, tokens, len(ids)):
            raise SystemExit(f"llama.cpp cannot write {path}")

    def load(self, path: Path, ids: list[int]) -> None:
        tokens, count = (self._api.llama_token * len(ids))(), ctypes.c_size_t()
        found = self._api.llama_state_seq_load_file(
            self._context, str(path).encode(), 0, tokens, len(ids), ctypes.byref(count)
        )
        if not found or count.value != len(ids):
            raise SystemExit(f"llama.cpp cannot read {path}")


def main() -> None:
    options = arguments()
    if options.fill:
        measure_filled(options)
        return
    notes = options.state.with_name(options.state.name + ".json")
    state: dict[str, Any] = {"length": 0, "seconds": 0.0, "rows": []}
    if notes.exists():
        state = json.loads(notes.read_text())
    ids = [n * 7919 % VOCABULARY for n in range(max(options.depths) + STEPS)]
    left = sorted(options.depths)[len(state["rows"]) :]
    if not left:
        print_table(options, state["rows"])
        return
    engine = (Theirs if options.llama_cpp else Ours)(options, len(ids))
    if state["length"]:
        engine.load(options.state, ids[: state["length"]])
    until = time.monotonic() + options.seconds
    for depth in left:
        if not go_to(depth, engine, ids, state, until):
            engine.save(options.state, ids[: state["length"]])
            notes.write_text(json.dumps(state))
            print(f"{state['length']} of {len(ids) - STEPS} tokens; call again to go on")
            return
        state["rows"].append(measure(depth, engine, ids, state["seconds"]))
        print(state["rows"][-1], flush=True)
    notes.write_text(json.dumps(state))
    print_table(options, state["rows"])


def measure_filled(options: argparse.Namespace) -> None:
    """Generated tokens after a cache that is filled at each depth, and the table."""
    ids = [n * 7919 % VOCABULARY for n in range(max(options.depths) + STEPS)]
    engine = (Theirs if options.llama_cpp else Ours)(options, len(ids))
    rows = []
    for depth in sorted(options.depths):
        engine.fill(depth)
        rows.append(measure(depth, engine, ids, 0.0))
    print_table(options, rows)


def go_to(depth: int, engine: Any, ids: list[int], state: dict[str, Any], until: float) -> bool:
    """Compute the prompt up to a depth; False where the time is over before."""
    while state["length"] < depth:
        if time.monotonic() > until:
            return False
        end = min(state["length"] + CHUNK, depth)
        started = time.perf_counter()
        engine.prompt(ids[state["length"] : end])
        state["seconds"] += time.perf_counter() - started
        state["length"] = end
    return True


def measure(depth: int, engine: Any, ids: list[int], seconds: float) -> dict[str, float]:
    """The figures at a depth, which took so long; the generated tokens are cut off again."""
    taken = []
    for token in ids[depth : depth + STEPS]:
        started = time.perf_counter()
        engine.generate(token)
        taken.append(time.perf_counter() - started)
    engine.cut(depth)
    median, best = 1000 * sorted(taken)[STEPS // 2], 1000 * min(taken)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    rate = depth / seconds if seconds else 0.0
    return {"depth": depth, "prompt": rate, "ms": median, "best": best, "mib": used}


def print_table(options: argparse.Namespace, rows: list[dict[str, float]]) -> None:
    who = "llama.cpp" if options.llama_cpp else "llmgen"
    print(f"\n{options.model.name}, {who}, {options.kind}, {options.threads} threads\n")
    head = ["depth", "prompt so far, tokens/s", "ms of a generated token (best)", "largest memory"]
    for cells in (head, ["---"] * len(head)):
        print(f"| {' | '.join(cells)} |")
    for row in rows:
        memory = f"{row['mib']:,.0f} MiB"
        prompt = f"{row['prompt']:.1f}" if row["prompt"] else ""
        print(f"| {row['depth']:.0f} | {prompt} | {row['ms']:.2f} ({row['best']:.2f}) | {memory} |")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("model", type=Path)
    parser.add_argument("state", type=Path, nargs="?")
    parser.add_argument("--kind", default="f16")
    parser.add_argument("--depths", type=int, nargs="+", default=[512, 4096, 16384, 32768])
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=90)
    for name in ("--llama-cpp", "--no-flash-attention", "--fill"):
        parser.add_argument(name, action="store_true")
    options = parser.parse_args()
    if (options.state is None) != options.fill:
        parser.error("give either STATE or --fill")
    return options


if __name__ == "__main__":
    main()
