"""A model's forward pass, recorded once for each role, and the programs that come of it."""

from __future__ import annotations

from llmgen.backends.cpu.binding import Binding
from llmgen.backends.cpu.decode_recorder import DecodeRecorder
from llmgen.backends.cpu.prefill_recorder import PrefillRecorder
from llmgen.backends.cpu.program import Program
from llmgen.backends.cpu.runtime.thread_policy import ThreadPolicy
from llmgen.backends.cpu.states import StateLayout
from llmgen.model.decoder import Decoder
from llmgen.model.runs import GUESSABLE, Role
from llmgen.model.weights import Weights

RoleRecorder = DecodeRecorder | PrefillRecorder


def record(
    config: Decoder,
    weights: Weights,
    layout: StateLayout,
    binding: Binding,
    control: int,
    chunk: int,
    max_outputs: int,
    drafts: bool,
) -> dict[Role, RoleRecorder]:
    """What each role computes; roles that compute the same share a recorder.

    control: the address of the control block; chunk, max_outputs: the most tokens of a prompt in one run, and the
    most of these whose logits are wanted; drafts: whether the model guesses tokens for another one.
    """
    recorders: dict[Role, RoleRecorder] = {}
    if drafts and config.vocab_size > GUESSABLE:
        recorders["guess"] = DecodeRecorder(binding, control)
        recorders["guess"].most_logits = GUESSABLE
    recorders["generated"] = DecodeRecorder(binding, control)
    recorders["prompt"] = prompt = PrefillRecorder(binding, control, chunk, max_outputs)
    for recorder in recorders.values():
        config.forward(recorder, weights, layout.states)
    prompt.fuse_residuals()
    recorders.setdefault("guess", recorders["generated"])
    return recorders


def programs_of(recorders: dict[Role, RoleRecorder], n_threads: int) -> dict[Role, Program]:
    """The program of each role, planned; roles that share a recorder share a program."""
    programs: dict[Role, Program] = {
        "generated": Program(recorders["generated"], ThreadPolicy(n_threads, per_run=True)),
        "prompt": Program(recorders["prompt"], ThreadPolicy(n_threads)),
    }
    programs["guess"] = programs["generated"]
    if recorders["guess"] is not recorders["generated"]:
        programs["guess"] = Program(recorders["guess"], ThreadPolicy(n_threads, per_run=True))
    return programs
