"""The program around the commands: help, versions, wrong usage, streams and exit codes."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import tiny
from llmgen.backends.cpu.runtime.cpu import target
from llmgen.cli.app import COMMANDS
from program import HANGS_S, PROGRAM, environment, llmgen, refused


def modules_after(*arguments: str) -> set[str]:
    """The modules that a run of the program imports."""
    code = (
        "import sys\n"
        "from llmgen.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(*sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=environment()
    )
    return set(done.stderr.split())


@pytest.mark.parametrize(
    "arguments", [["--help"], [], ["run", "--help"], ["bench", "--help"], ["list", "--help"]]
)
def test_help_loads_no_engine(arguments: list[str]) -> None:
    if arguments and arguments[0] in ("run", "bench") and arguments[0] not in COMMANDS:
        pytest.skip("not there yet")
    loaded = modules_after(*arguments)
    assert "llmgen.cli.app" in loaded
    assert not loaded & {"numpy", "numba", "llvmlite", "rich", "jinja2", "tokenizers", "prompt_toolkit"}


def test_importing_the_package_loads_no_engine() -> None:
    code = "import sys, llmgen; dir(llmgen); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & {"numpy", "numba", "typer", "rich"}


def test_help_names_every_command() -> None:
    done = llmgen("--help")
    assert done.returncode == 0
    assert done.stderr == ""
    for name, line in COMMANDS.items():
        assert name in done.stdout
        assert line.split()[0] in done.stdout
    assert llmgen().stdout == done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str) -> None:
    done = llmgen(name, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(f"Usage: llmgen {name} ")
    assert "MODEL" in done.stdout or name in ("list", "ps", "pull", "warmup")


def test_version_names_what_computes() -> None:
    done = llmgen("--version")
    assert done.returncode == 0
    first, *rest = done.stdout.splitlines()
    assert first.startswith("llmgen ")
    assert [line.split()[0] for line in rest] == ["numba", "numpy", "python", "kernel"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["lst"], "no such command 'lst'. Did you mean 'list'?"),
        (["--nope"], "no such option: --nope"),
        (["list", "--nope"], "no such option: --nope"),
        (["pull"], "missing argument 'MODEL...' (see `llmgen pull --help`)"),
        (["list", "extra"], "unexpected extra argument"),
        (["run", "m", "--temp"], "option '--temp' requires an argument (see `llmgen run --help`)"),
        (
            ["run", "m", "--kv-type", "auto", "--kv-plan", ""],
            "--kv-plan is empty, expected the name of a file",
        ),
        (["run", "m", "-f", "a", "-f", ""], "--file is empty, expected the name of a file"),
        (["batch", "m", ""], "IN.jsonl is empty, expected the name of a file"),
        (["run", "m", "--beams", "0"], "'--beams': it should be greater than or equal to 1, not '0' (see"),
        (["run", "m", "-n", "many"], "it should be a valid integer, not 'many' (see"),
        (["chat", "m", "--think", "so"], "'--think': 'so' is not one of 'show', 'fold', 'hide', 'off' (see"),
        (["run", "m", "-n", "x" * 1000], f", not '{'x' * 120}...' (see `llmgen run --help`)"),
    ],
)
def test_wrong_usage(arguments: list[str], says: str) -> None:
    assert says in refused(llmgen(*arguments), code=2)


def test_an_unexpected_exception_is_one_sentence_and_a_traceback_on_request(tmp_path: Path) -> None:
    code = "from llmgen.cli.common.exits import reporting\nwith reporting(): {}['missing']\n"

    def run(**changes: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=environment(**changes)
        )

    assert "unexpected KeyError: 'missing'" in refused(run())
    assert "LLMGEN_DEBUG=1" in run().stderr
    assert "Traceback" in run(LLMGEN_DEBUG="1").stderr
    assert "Traceback" not in run(LLMGEN_DEBUG="0").stderr


@pytest.mark.parametrize(
    ("error", "says"),
    [
        ("OSError(24, 'Too many open files')", "the system refused a request: Too many open files"),
        ("OSError(12, 'Cannot allocate memory')", "out of memory; try a smaller context"),
        ('RuntimeError("can\'t start new thread")', "the system gives no further thread"),
        ("OSError(13, 'Permission denied', 'a.gguf')", "a.gguf: Permission denied"),
    ],
)
def test_an_error_of_the_system_is_blamed_on_the_output_only_where_it_is_its_own(
    error: str, says: str
) -> None:
    code = f"from llmgen.cli.common.exits import reporting\nwith reporting(): raise {error}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment())
    assert refused(done).startswith(says)


def test_ctrl_c_that_became_another_error_is_still_ctrl_c() -> None:
    """As Python 3.11 makes a RuntimeError of what a class body's descriptors raise."""
    code = (
        "from llmgen.cli.common.exits import reporting\n"
        "with reporting():\n"
        "    try: raise KeyboardInterrupt\n"
        "    except KeyboardInterrupt as error: raise RuntimeError('in an import') from error\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment())
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_ctrl_c_in_the_import_of_numpy_waits_for_its_end(tmp_path: Path) -> None:
    """Its compiled modules print a KeyboardInterrupt and raise an ImportError in its place."""
    package = tmp_path / "numpy"
    package.mkdir()
    (package / "__init__.py").write_text(
        "import signal\n"
        "try: signal.raise_signal(signal.SIGINT)\n"
        "except BaseException: raise ImportError('numpy failed to import') from None\n"
        "print('imported', flush=True)\n"
    )
    code = (
        f"import sys, time; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from llmgen.cli.common.exits import reporting\n"
        "with reporting():\n"
        "    import numpy\n"
        f"    time.sleep({2 * HANGS_S})\n"
        "    print('too late')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(), timeout=HANGS_S
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "imported\n", "")


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_ctrl_c_after_the_command_ends_quietly_and_one_that_is_ignored_stays_so() -> None:
    code = (
        "import atexit, os, signal, sys\n"
        "from llmgen.cli import main\n"
        "sys.argv = ['llmgen', '--help']\n"
        "atexit.register(os.kill, os.getpid(), signal.SIGINT)\n"
        "main()\n"
    )

    def run(first: str = "") -> int:
        done = subprocess.run([sys.executable, "-c", first + code], capture_output=True, env=environment())
        assert done.stderr == b""
        return done.returncode

    assert run() == -signal.SIGINT
    assert run("import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n") == 0


def test_a_warning_is_one_sentence() -> None:
    code = (
        "import warnings; from llmgen.cli.common.exits import reporting\n"
        "with reporting(): warnings.warn('the cache\\x1b[2J is full')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment())
    assert done.stderr == "warning: the cache\\x1b[2J is full\n"
    assert done.returncode == 0


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX shells")
class TestStreams:
    """What the shell does to stdout."""

    def shell(self, command: str) -> subprocess.CompletedProcess[str]:
        program = " ".join(PROGRAM)
        return subprocess.run(
            ["bash", "-c", command.replace("LLMGEN", program)],
            capture_output=True,
            text=True,
            env=environment(),
        )

    def test_a_closed_pipe_is_quiet(self) -> None:
        done = self.shell("{ LLMGEN list --json; echo $? >&3; } 3>&2 | true")
        assert done.stderr in ("0\n", "")

    def test_stdout_that_is_closed(self) -> None:
        done = self.shell("LLMGEN --help >&-; LLMGEN list >&- 2>&- <&- && echo fine")
        assert done.stderr == ""
        assert done.stdout == "fine\n"

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
    def test_a_full_disk_behind_stdout(self) -> None:
        done = self.shell("LLMGEN --help > /dev/full")
        assert done.returncode == 1
        full = "error: cannot write the output: No space left on device\n"
        assert done.stderr == full
        code = "from llmgen.cli.common.exits import reporting\nwith reporting(): print(1, flush=True)"
        with open("/dev/full", "w") as nowhere:
            early = subprocess.run(
                [sys.executable, "-c", code], stdout=nowhere, stderr=subprocess.PIPE, text=True
            )
        assert (early.returncode, early.stderr) == (1, full)

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
    @pytest.mark.parametrize("stderr", ["2> /dev/full", "2>&-", "2< /dev/null", "2> >(:)"])
    def test_notes_that_cannot_be_written_change_nothing(self, stderr: str, tmp_path: Path) -> None:
        """The answer stands whole on stdout, and an error keeps its exit code."""
        script = tmp_path / "script.py"
        script.write_text(
            "import sys\n"
            "from llmgen.cli.common.exits import reporting\n"
            "from llmgen.cli.terminal.output import note\n"
            "with reporting():\n"
            "    for _ in range(3): note('x' * 100_000); print('answer')\n"
            "    print('unfinished', end='', file=sys.stderr)\n"
            "    if len(sys.argv) > 1: raise FileNotFoundError(2, 'not there', 'model')\n"
        )
        for arguments, code in (([], 0), (["fail"], 1)):
            shell = ["bash", "-c", f'"$0" "$@" {stderr}', sys.executable, str(script), *arguments]
            done = subprocess.run(shell, capture_output=True, text=True, env=environment())
            assert (done.returncode, done.stdout, done.stderr) == (code, "answer\n" * 3, "")

    def test_notes_go_on_once_there_is_room_again(self) -> None:
        code = (
            "import os, sys\n"
            "from llmgen.cli.common.exits import reporting\n"
            "from llmgen.cli.terminal.output import note\n"
            "with reporting():\n"
            "    kept = os.dup(2)\n"
            "    os.dup2(os.open(os.devnull, os.O_RDONLY), 2); note('lost')\n"
            "    os.dup2(kept, 2); note('seen')\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment())
        assert (done.returncode, done.stderr) == (0, "seen\n")

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
    def test_a_command_whose_stderr_is_full(self) -> None:
        done = self.shell("LLMGEN list 2> /dev/full")
        assert (done.returncode, done.stdout) == (0, llmgen("list").stdout)

    def test_a_terminal_that_speaks_ascii(self, tmp_path: Path) -> None:
        (tmp_path / "modèle.gguf").write_bytes(b"GGUF")
        done = llmgen("list", LLMGEN_MODELS=str(tmp_path), PYTHONIOENCODING="ascii", PYTHONUTF8="0")
        assert done.returncode == 0
        assert "mod?le" in done.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="bash")
def test_completion_scripts() -> None:
    done = llmgen("--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert done.returncode == 0
    assert "_LLMGEN_COMPLETE" in done.stdout


def complete(line: str, **changes: str) -> set[str]:
    """What bash would offer after ``line``."""
    done = llmgen(
        _LLMGEN_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(line.split(" ")) - 1), **changes
    )
    assert done.returncode == 0, done
    return set(done.stdout.split())


def test_completion_offers_commands_names_and_options(tmp_path: Path) -> None:
    (tmp_path / "mine.gguf").write_bytes(b"")
    assert complete("llmgen ") >= {"list", "pull", "inspect"}
    assert complete("llmgen pull sm") == {"smollm2"}
    assert complete("llmgen inspect m", LLMGEN_MODELS=str(tmp_path)) == {"mine"}
    assert complete("llmgen list --js") == {"--json"}


def test_a_kernel_level_that_is_not_there_names_the_variable(tmp_path: Path) -> None:
    path = str(tiny.write(tmp_path / "m.gguf"))
    wrong = refused(llmgen("run", path, "a", LLMGEN_KERNEL_LEVEL="AVX2\x1b[1m"))
    assert wrong.startswith(r"the kernel level (LLMGEN_KERNEL_LEVEL) is 'AVX2\x1b[1m', expected one of amx, ")
    foreign = "neon" if target("generic").is_x86 else "avx2"
    lacking = refused(llmgen("run", path, "a", LLMGEN_KERNEL_LEVEL=foreign))
    assert f"(LLMGEN_KERNEL_LEVEL) {foreign} needs instructions that this CPU lacks" in lacking
