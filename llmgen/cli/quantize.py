"""``llmgen quantize``: the same model in another type."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmgen.cli.common.interrupts import leaving_nothing
from llmgen.cli.common.loading import compiling, open_llm
from llmgen.cli.common.model_options import EngineOptions
from llmgen.cli.common.models import ModelArgument, model_path
from llmgen.cli.common.options import THREADS_VARIABLE, JsonOption
from llmgen.cli.common.perplexity import WINDOW, measure_text, read_text
from llmgen.cli.terminal.output import count, facts, note, print_json, size
from llmgen.cli.terminal.progress import Bar
from llmgen.errors import LLMGenError, UsageError
from llmgen.visible import visible

if TYPE_CHECKING:
    from llmgen.engine.perplexity import Perplexity
    from llmgen.gguf import GGUFFile
    from llmgen.quantize import Mix, Plan, TensorPlan, Written


def command(
    model: ModelArgument,
    kind: Annotated[
        str, typer.Argument(metavar="TYPE", help="Q8_0, Q6_K, Q5_K_M, Q4_K_M ... an unknown one lists all.")
    ],
    out: Annotated[
        Path, typer.Option("-o", "--out", metavar="FILE", help="The new file.", show_default=False)
    ],
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")] = False,
    check: Annotated[
        Path | None,
        typer.Option(
            "--check", metavar="TEXT", help="Say the perplexity of this text before and after; - reads stdin."
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            *("-t", "--threads"),
            metavar="N",
            help="Threads.",
            show_default="usable physical cores",
            envvar=THREADS_VARIABLE,
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Write the same model in another type: smaller and less exact, or for other programs.

    Which tensor gets which type is llama.cpp's choice for the name. The model itself is never
    changed; the new file is there whole or not at all.
    """
    from llmgen.gguf import GGUFFile
    from llmgen.quantize import mix_named
    from llmgen.quantize.writing import check_target

    mix = mix_named(kind)
    if str(out) == "-":
        raise UsageError("a model is not written to stdout; give -o the name of the new file")
    text = _text(check, out) if check is not None else None
    path = model_path(model)
    with GGUFFile.open(path) as file:
        check_target(file, out, force)
        before = _perplexity(path, text, threads, "text, before") if text is not None else None
        started = time.perf_counter()
        written = _write(file, mix, out, force, threads)
        report = _report(file, written, time.perf_counter() - started)
    _warn_of_losses(written)
    trouble: BaseException | None = None
    if text is not None and before is not None:
        try:
            report["perplexity"] = _change(before, _perplexity(out, text, threads, "text, after"))
        except (KeyboardInterrupt, LLMGenError, MemoryError) as error:  # the new file is there all the same
            trouble = error
    if json:
        print_json(report)
    else:
        _print(report)
    if trouble is not None:
        raise trouble


def _text(check: Path, out: Path) -> str:
    """The text to measure, which the new file must not replace."""
    if str(check) != "-" and out.exists() and check.exists() and os.path.samefile(out, check):
        raise UsageError(f"{visible(out)} is the text to --check; choose another name for the new file")
    return read_text(check)


def _write(file: GGUFFile, mix: Mix, out: Path, force: bool, threads: int | None) -> Written:
    from llmgen.quantize import plan, quantize

    planned = plan(file, mix)
    _warn(planned)
    with Bar(f"to {mix.name}", sum(t.tensor.n_elements for t in planned), number=count) as bar:
        with leaving_nothing(), compiling() as progress:
            return quantize(
                file,
                mix,
                out,
                n_threads=threads,
                overwrite=force,
                done=lambda done, _: bar.update(done),
                compiling=progress,
            )


def _warn(plan: Plan) -> None:
    again = [t for t in plan if t.is_requantized]
    if again:
        note(
            f"{plan.share(again):.0%} of the weights are quantized already, and lose exactness a second time; "
            "start from an F16, BF16 or F32 file if there is one"
        )
    if plan.mix.name == "MXFP4_MOE" and not any(t.wanted.name == "MXFP4" for t in plan):
        note("MXFP4_MOE is for the experts of a mixture, of which this model has none: all becomes Q8_0")


def _warn_of_losses(written: Written) -> None:
    """Weights that the new type has no numbers for; the file is usable all the same."""
    if not written.lost:
        return
    name, share = max(written.lost.items(), key=lambda item: item[1])
    tensor = next(t for t in written.plan if t.tensor.name == name)
    kind, others = tensor.type.name, len(written.lost) - 1
    also = f", as are some of {others} other tensor{'s' * (others > 1)} (--json lists them)" if others else ""
    keeping = "F32 keeps" if kind == "BF16" else "BF16 and F32 keep"
    hint = (
        "" if tensor.tensor.type.name == "F64" else f"; {keeping} them"
    )  # F64 goes beyond the range of all others
    note(
        f"{_percent(share)} of the weights of {visible(name)} are too small for {kind}, and are lost{also}{hint}"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%" if share >= 0.0001 else "less than 0.01%"


def _perplexity(path: Path, text: str, threads: int | None, what: str) -> Perplexity:
    """The perplexity of a text, as `llmgen perplexity` measures it without options."""
    from llmgen.engine.perplexity import windows

    with open_llm(path, EngineOptions(WINDOW, threads)) as llm:
        ids = llm.tokenize(text)
        if len(ids) < WINDOW:
            found = f"{len(ids)} token{'s' * (len(ids) != 1)}, fewer than one chunk of {WINDOW}"
            raise UsageError(f"the text to --check has {found}; give a longer text")
        figures, trouble = measure_text(llm, ids, windows(len(ids), WINDOW, None), what)
    if trouble is not None:
        raise trouble
    assert figures is not None  # there is at least one window, or windows() has raised
    return figures


def _change(before: Perplexity, after: Perplexity) -> dict[str, Any]:
    return {
        "before": before.perplexity,
        "before_error": before.error,
        "after": after.perplexity,
        "after_error": after.error,
        "ratio": after.perplexity / before.perplexity,
    }


def _report(file: GGUFFile, written: Written, seconds: float) -> dict[str, Any]:
    plan = written.plan
    fallbacks = [t for t in plan if t.fell_back]
    errors, lost = written.errors, written.lost
    return {
        "file": str(written.path),
        "type": plan.mix.name,
        "size": written.nbytes,
        "size_before": file.file_size,
        "types": _mix(plan),
        "error": written.error,
        "requantized": sum(t.is_requantized for t in plan),
        "fallback_share": plan.share(fallbacks),
        "fallbacks": [
            {**_names(t), "columns": t.tensor.shape[0], "wanted": t.wanted.name} for t in fallbacks
        ],
        "tensors": [
            {**_names(t), "error": errors.get(t.tensor.name), "lost_share": lost.get(t.tensor.name, 0.0)}
            for t in plan
        ],
        "seconds": seconds,
    }


def _names(planned: TensorPlan) -> dict[str, Any]:
    return {"name": planned.tensor.name, "from": planned.tensor.type.name, "to": planned.type.name}


def _mix(plan: Plan) -> dict[str, dict[str, Any]]:
    """Tensors and bytes of each type, the most bytes first."""
    tensors, nbytes = Counter[str](), Counter[str]()
    for t in plan:
        tensors[t.type.name] += 1
        nbytes[t.type.name] += t.nbytes
    return {name: {"tensors": tensors[name], "bytes": n} for name, n in nbytes.most_common()}


def _print(report: dict[str, Any]) -> None:
    total = sum(entry["bytes"] for entry in report["types"].values())
    types = (f"{name} {e['bytes'] / total:.0%} ({e['tensors']})" for name, e in report["types"].items())
    rows: list[tuple[str, object]] = [
        ("file", report["file"]),
        ("size", f"{size(report['size'])}, {size(report['size_before'])} before"),
        ("quantization", f"{report['type']}: {', '.join(types)}"),
    ]
    if report["fallbacks"]:
        rows.append(("fallback", _fallbacks(report)))
    changed = [t for t in report["tensors"] if t["error"] is not None]
    if changed:
        worst = max(changed, key=lambda t: t["error"])
        rows.append(
            (
                "error",
                f"{report['error']:.2%} of the weights (root mean square), "
                f"at most {worst['error']:.2%}, in {visible(worst['name'])}",
            )
        )
    if "perplexity" in report:
        rows.append(("perplexity", _perplexities(report["perplexity"])))
    facts(rows)


def _fallbacks(report: dict[str, Any]) -> str:
    """What got another type because of the length of its rows, and how much that is."""
    pairs = Counter((t["wanted"], t["to"]) for t in report["fallbacks"])
    changes = ", ".join(f"{to} in place of {wanted} ({n})" for (wanted, to), n in pairs.most_common())
    lengths = sorted({t["columns"] for t in report["fallbacks"]})
    return (
        f"{changes}: {report['fallback_share']:.0%} of the weights are in rows of "
        f"{' or '.join(map(str, lengths))}, which are not whole blocks"
    )


def _perplexities(figures: dict[str, Any]) -> str:
    def shown(which: str) -> str:
        error = figures[f"{which}_error"]
        return f"{figures[which]:.4f}" + ("" if error is None else f" \u00b1 {error:.4f}")

    return f"{shown('before')} before, {shown('after')} after: {figures['ratio'] - 1:+.2%}"
