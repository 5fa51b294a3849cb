"""Which file of a repository is taken."""

from __future__ import annotations

import pytest

from llmgen.errors import DownloadError
from llmgen.hub.choice import choose
from llmgen.hub.contents import File, candidates, companion, type_in
from llmgen.hub.references import HubReference

GB = 10**9


def chosen(*paths: str, tag: str | None = None, file: str | None = None, memory: int | None = None) -> str:
    """The path of the model that is taken; a path may end in its size in GB after a blank."""
    files = [File(path, int(float(size or 1) * GB)) for path, _, size in (p.partition(" ") for p in paths)]
    return choose(candidates(files), HubReference("o", "r", tag, file), memory).model.path


@pytest.mark.parametrize(
    ("path", "type_"),
    [
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"),
        ("qwen2.5-0.5b-instruct-q4_k_m.gguf", "Q4_K_M"),
        ("model-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("m-IQ2_XXS.gguf", "IQ2_XXS"),
        ("gemma-3-4b-it-q4_0.gguf", "Q4_0"),
        ("m.fp16.gguf", "F16"),
        ("m-BF16-00001-of-00003.gguf", "BF16"),
        ("Q8_0/m-00001-of-00003.gguf", "Q8_0"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("m-TQ1_0.gguf", "TQ1_0"),
        ("Qwen3-8B.gguf", ""),
        ("Q4.gguf", "Q4"),
        ("FAQ4_K.gguf", ""),
    ],
)
def test_types_in_names(path: str, type_: str) -> None:
    assert type_in(path) == type_


@pytest.mark.parametrize(
    "path",
    [
        "mmproj-model-f16.gguf",
        "x/m-mmproj-Q8_0.gguf",
        "imatrix.gguf",
        "m.imatrix.gguf",
        "m-lora-f16.gguf",
        "LoRA_x.gguf",
        "ggml-vocab-llama.gguf",
    ],
)
def test_companions_are_no_models(path: str) -> None:
    assert companion(path)
    assert candidates([File(path), File("exploration.gguf")]) == candidates([File("exploration.gguf")])


def test_without_a_type_it_is_q4_k_m_or_the_nearest() -> None:
    assert chosen("m-Q8_0.gguf", "m-Q4_K_M.gguf", "m-Q4_0.gguf") == "m-Q4_K_M.gguf"
    order = ["m-Q4_K_S.gguf", "m-Q5_K_M.gguf", "m-Q6_K.gguf", "m-Q8_0.gguf 2", "m-Q3_K_M.gguf", "m-Q2_K.gguf"]
    order += ["m-F16.gguf 2", "m-F32.gguf", "m.gguf"]
    for i in range(len(order)):
        assert chosen(*reversed(order[i:])) == order[i].partition(" ")[0]
    assert chosen("only.gguf") == "only.gguf"


def test_it_fits_into_the_memory_that_is_free() -> None:
    files = ["m-Q8_0.gguf 8", "m-Q4_K_M.gguf 5", "m-Q3_K_M.gguf 4", "m-Q2_K.gguf 3"]
    assert chosen(*files, memory=6 * GB) == "m-Q4_K_M.gguf"
    assert chosen(*files, memory=int(4.5 * GB)) == "m-Q3_K_M.gguf"
    assert chosen(*files, memory=4 * GB) == "m-Q2_K.gguf"
    with pytest.raises(
        DownloadError,
        match=r"3\.0 GB of memory.*less a tenth.*the smallest, hf\.co/o/r/m-Q2_K\.gguf, has 3\.0 GB",
    ):
        chosen(*files, memory=3 * GB)
    assert chosen(*files, tag="Q8_0", memory=GB) == "m-Q8_0.gguf"


def test_why_is_said_where_it_is_not_q4_k_m() -> None:
    models = candidates([File("m-Q4_K_M.gguf", 5 * GB), File("m-Q3_K_M.gguf", 4 * GB)])
    name = HubReference("o", "r")
    assert choose(models, name, 9 * GB).why == ""
    assert choose(models, name, 5 * GB).why == (
        "Q4_K_M does not fit into the 5.0 GB of memory that are free, less a tenth for the KV cache; "
        "Q3_K_M is the nearest"
    )
    models = candidates([File("m-Q8_0.gguf", 5), File("m-F16.gguf", 4)])
    assert choose(models, name).why == "o/r has no Q4_K_M; Q8_0 is the nearest"
    assert choose(models[:1], name).why == ""


def test_a_type() -> None:
    files = ["m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "m-Q8_0.gguf", "m-UD-Q2_K_XL.gguf"]
    assert chosen(*files, tag="q4_k_s") == "m-Q4_K_S.gguf"
    assert chosen(*files, tag="Q8") == "m-Q8_0.gguf"
    assert chosen(*files, tag="Q2_K_XL") == "m-UD-Q2_K_XL.gguf"
    with pytest.raises(DownloadError, match=r"hf\.co/o/r:Q4 fits several files: Q4_K_M, Q4_K_S; name one"):
        chosen(*files, tag="Q4")
    with pytest.raises(
        DownloadError, match=r"no file of the type Q6_K; it has Q4_K_M, Q4_K_S, Q8_0, UD-Q2_K_XL"
    ):
        chosen(*files, tag="Q6_K")


def test_two_models_of_one_type_are_told_by_their_files() -> None:
    for tag in (None, "Q4_K_M"):
        with pytest.raises(DownloadError, match=r"a-Q4_K_M\.gguf, b-Q4_K_M\.gguf; name one"):
            chosen("a-Q4_K_M.gguf", "b-Q4_K_M.gguf", tag=tag)
    assert chosen("a-Q4_K_M.gguf", "b-Q4_K_M.gguf", file="b-Q4_K_M.gguf") == "b-Q4_K_M.gguf"


def test_a_split_model_is_one_and_is_whole() -> None:
    parts = [f"Q4_K_M/m-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    assert chosen(*parts, "m-Q8_0.gguf") == parts[0]
    with pytest.raises(
        DownloadError, match="one of 3 parts, of which the repository lacks '.*00002-of-00003.gguf'"
    ):
        chosen(parts[0], parts[2], tag="Q4_K_M")
    with pytest.raises(DownloadError, match="lacks '.*00001-of-00003.gguf'"):
        chosen(*parts[1:], file=parts[0])
    assert chosen(*parts[1:], "m-Q8_0.gguf") == "m-Q8_0.gguf"


def test_types_that_ggml_has_removed_are_not_taken() -> None:
    assert chosen("m-Q4_0_4_4.gguf", "m-Q8_0.gguf") == "m-Q8_0.gguf"
    with pytest.raises(DownloadError, match="Q4_0_8_8.*ggml has removed"):
        chosen("m-Q4_0_8_8.gguf")


@pytest.mark.parametrize(
    ("file", "says"),
    [
        ("mmproj-F16.gguf", "reads images or sound .mmproj., not a model; it has Q8_0"),
        ("x.gguf", "o/r has no file 'x.gguf'; it has Q8_0"),
    ],
)
def test_a_file_that_is_no_model_or_not_there(file: str, says: str) -> None:
    with pytest.raises(DownloadError, match=says):
        chosen("mmproj-F16.gguf", "m-Q8_0.gguf", file=file)


def test_a_repository_without_a_model() -> None:
    for paths in ((), ("model.safetensors",), ("mmproj.gguf",), ("../m.gguf",), ("/m.gguf", "a\x1b.gguf")):
        with pytest.raises(DownloadError, match="has no GGUF model in it"):
            chosen(*paths)
