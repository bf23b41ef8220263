"""Embedding jobs: each row once after any crash; restarts resume or are refused."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

import clrt
from clrt.cli import app
from clrt.errors import InputError
from clrt.text.jobs.inputs import find_inputs
from tests.unit.pages import run as run_python
from tests.unit.text.jobs.corpus import (
    HIDDEN,
    make_model,
    make_texts,
    read_errors,
    read_vectors,
    write_lines,
    write_parquet,
)

ROWS = 60
# Runs a command in forks that die one after another: when the given method is called for the k-th
# time, before or after that, or amid it, when a file is about to get its name. They are forks, as
# to import clrt takes longer than their work.
DYING = """
import json, os, pathlib, signal, sys
from clrt.text.jobs import job, shards
from clrt.cli import embed, main

METHODS = {"part": (shards.ShardWriter, "_write"), "record": (job.EmbedJob, "finish_unit"),
           "job": (job.EmbedJob, "write"), "errors": (job.EmbedJob, "write_errors")}

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def run(place, count, when, args):
    owner, name = METHODS[place]
    real, calls = getattr(owner, name), []

    def dying(*values):
        calls.append(1)
        if len(calls) == int(count):
            if when == "amid":
                os.replace = die
            if when != "before":
                real(*values)
            die()
        return real(*values)

    setattr(owner, name, dying)
    main.app(args)

deaths, *args = sys.argv[1:]
for death in deaths.split(","):
    child = os.fork()
    if not child:
        run(*death.split(), args)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL, death
    output = pathlib.Path(args[args.index("--output") + 1])
    done = [output / f"part-{p.stem}.parquet" for p in output.glob("_units/0*.json")]
    print(json.dumps({p.name: p.stat().st_mtime_ns for p in done}))
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Folder with rows 0 to 59 in Parquet and JSON lines files with non-ASCII names."""
    folder = tmp_path / "ein Ordner 日本"
    folder.mkdir()
    texts = make_texts(ROWS)
    columns = {"id": list(range(40)), "text": texts[:40], "lang": ["de"] * 40}
    write_parquet(folder / "a b.parquet", columns, group=17)
    rows = [{"id": i, "text": texts[i], "lang": "ja"} for i in range(40, ROWS)]
    write_lines(folder / "Ä.jsonl", rows)
    return folder


def command(model: Path, corpus: Path, output: Path, *more: str) -> list[str]:
    return [
        *("embed", "--model", str(model), "--device", "cpu", "--output", str(output)),
        *("--inputs", str(corpus / "*.parquet"), "--inputs", str(corpus / "*.jsonl")),
        *("--keep", "id", "--rows-per-part", "7", *more),
    ]


def run(*args: str) -> Result:
    result = CliRunner().invoke(app, args, catch_exceptions=False)
    assert "Traceback" not in result.output
    return result


def encoded(model: Path) -> np.ndarray:
    with clrt.SentenceEncoder(model, device="cpu") as encoder:
        return encoder.encode(make_texts(ROWS), normalize_embeddings=True)


def check(output: Path, model: Path) -> None:
    found = read_vectors(output)
    assert found.keys() == set(range(ROWS))
    vectors = np.stack([found[i] for i in range(ROWS)])
    np.testing.assert_allclose(vectors, encoded(model), atol=1e-6)
    hidden = [p.name for p in output.rglob(".*")]
    assert hidden == []


def test_job_vectors_match_encode(model: Path, corpus: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    result = run(*command(model, corpus, output))
    assert result.exit_code == 0, result.output
    assert f"{ROWS} vectors in 10 parts" in result.stderr
    check(output, model)
    assert not (output / "_errors.jsonl").exists()
    kind = pq.read_schema(output / "part-000000.parquet").field("vector").type
    assert str(kind) == f"fixed_size_list<element: float>[{HIDDEN}]"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork, and signals that kill")
def test_killed_job_resumes(model: Path, corpus: Path, tmp_path: Path) -> None:
    """Kills the job repeatedly around each change on disk."""
    output = tmp_path / "out"
    args = command(model, corpus, output)
    deaths = {
        "job 1 before": 0,
        "job 1 amid": 0,
        "job 1 after": 0,
        "part 1 amid": 0,
        "record 3 before": 2,
        "record 1 amid": 2,
        "record 2 after": 4,
        "errors 1 before": 10,
    }
    died = run_python(tmp_path, "-c", DYING, ",".join(deaths), *args)
    states = [json.loads(line) for line in died.splitlines()]
    assert list(map(len, states)) == [*deaths.values()]
    result = run(*args)
    assert result.exit_code == 0, result.output
    check(output, model)
    last = {p.name: p.stat().st_mtime_ns for p in output.glob("part-*")}
    for state in states:  # what is recorded is not made again
        assert state.items() <= last.items()


def test_restarted_job_redoes_only_missing_parts(model: Path, corpus: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    run(*command(model, corpus, output))
    times = {p: p.stat().st_mtime_ns for p in output.rglob("*.parquet")}
    result = run(*command(model, corpus, output, "--batch-size", "3"))
    assert result.exit_code == 0 and f"{ROWS} vectors" in result.stderr
    assert {p: p.stat().st_mtime_ns for p in output.rglob("*.parquet")} == times
    (output / "part-000003.parquet").unlink()
    (output / "_units" / "000005.json").write_text("{")
    result = run(*command(model, corpus, output))
    assert "8 parts of 10 are done" in result.stderr
    check(output, model)


def test_restart_with_other_options_or_files_is_refused(
    model: Path, corpus: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    run(*command(model, corpus, output))
    for more, words in (
        (["--no-normalize"], "normalize=True, not False"),
        (["--prompt", "a"], "prompt=None, not 'a'"),
        (["--keep", "lang"], "keep=['id'], not ['id', 'lang']"),
        (["--rows-per-part", "8"], "rows_per_part=7, not 8"),
        (["--column", "lang"], "column='text', not 'lang'"),
        (["--model", str(make_model(tmp_path / "other", seed=1))], "vectors of another model"),
    ):
        result = run(*command(model, corpus, output, *more))
        assert result.exit_code == 1 and words in result.stderr
        assert "give another --output" in result.stderr and result.stderr.count("\n") == 1
    copy = make_model(tmp_path / "copy")  # the same model elsewhere is no other model
    assert run(*command(copy, corpus, output)).exit_code == 0
    new = write_lines(corpus / "new.jsonl", [])
    assert "is new since" in run(*command(model, corpus, output)).stderr
    new.unlink()
    with open(corpus / "Ä.jsonl", "a", encoding="utf-8") as stream:
        stream.write("{}\n")
    assert "has changed since" in run(*command(model, corpus, output)).stderr
    (corpus / "Ä.jsonl").rename(corpus / "b.jsonl")
    assert "is new since" in run(*command(model, corpus, output)).stderr
    check(output, model)


def test_job_reports_bad_rows(model: Path, tmp_path: Path) -> None:
    folder, output = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    write_parquet(folder / "a.parquet", {"text": ["a b", None, "c"]})
    write_parquet(folder / "b.parquet", {"body": ["a b", "c"]})
    (folder / "c.parquet").write_bytes(b"nonsense")
    write_lines(folder / "d.jsonl", [{"text": "d"}, b"{", {"text": 5}])
    args = ["embed", "-m", str(model), "-i", str(folder), "-o", str(output), "--device", "cpu"]
    result = run(*args)
    assert result.exit_code == 0, result.output
    assert "3 vectors in 2 parts" in result.stderr and "5 rows left out, see" in result.stderr
    table = pq.read_table(output)
    places = zip(table["file"].to_pylist(), table["row"].to_pylist(), strict=True)
    assert [(Path(f).name, r) for f, r in places] == [
        ("a.parquet", 0),
        ("a.parquet", 2),
        ("d.jsonl", 0),
    ]
    said = [(Path(e["file"]).name, e["row"], e["rows"]) for e in read_errors(output)]
    assert said == [
        ("a.parquet", 1, 1),
        ("b.parquet", 0, 2),
        ("c.parquet", None, None),
        ("d.jsonl", 1, 1),
        ("d.jsonl", 2, 1),
    ]
    before = (output / "_errors.jsonl").read_bytes()
    assert "5 rows left out" in run(*args).stderr
    assert (output / "_errors.jsonl").read_bytes() == before


def test_job_without_vectors_is_an_error(model: Path, tmp_path: Path) -> None:
    lines = write_lines(tmp_path / "a.jsonl", [{"body": "a"}])
    args = ["embed", "-m", str(model), "--device", "cpu", "-o", str(tmp_path / "out"), "-i"]
    result = run(*args, str(lines))
    assert result.exit_code == 1 and "No row has a text that can be encoded" in result.stderr
    parquet = write_parquet(tmp_path / "a.parquet", {"body": ["a"]})
    args[args.index(str(tmp_path / "out"))] = str(tmp_path / "other")
    result = run(*args, str(parquet))
    assert result.exit_code == 1 and "has no column 'text'" in result.stderr
    assert not (tmp_path / "other").exists()


def test_empty_files_make_no_parts(model: Path, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"")
    output = tmp_path / "out"
    result = run("embed", "-m", str(model), "-i", str(tmp_path / "a.jsonl"), "-o", str(output))
    assert result.exit_code == 0 and "0 vectors in 0 parts" in result.stderr


def test_nonempty_output_folder_is_refused(model: Path, corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    result = run(*command(model, corpus, tmp_path / "out"))
    assert result.exit_code == 1 and "is not empty and contains no job" in result.stderr
    (tmp_path / "file").write_text("mine")
    result = run(*command(model, corpus, tmp_path / "file"))
    assert result.exit_code == 1 and "with --inputs --output is a folder" in result.stderr


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--json"], "--json cannot be combined with --inputs"),
        (["--file", "x.txt"], "--file cannot be combined with --inputs"),
        (["--output", "-"], "--inputs needs a folder"),
        (["--keep", "vector"], "none may be called 'vector'"),
        (["--keep", "id"], "each may occur once"),
        (["--rows-per-part", "0"], "expected at least 1"),
        (["--inputs", "nothing*.parquet"], "matches no Parquet or JSON lines"),
        (["--inputs", __file__], "is neither Parquet nor JSON lines"),
    ],
)
def test_invalid_job_options_are_refused(
    model: Path, corpus: Path, tmp_path: Path, more: list[str], words: str
) -> None:
    result = run(*command(model, corpus, tmp_path / "out", *more))
    assert result.exit_code == 1 and words in result.stderr
    assert result.stderr.startswith("Error: ") and not (tmp_path / "out").exists()


def test_ray_option_requires_input_files(model: Path) -> None:
    result = run("embed", "-m", str(model), "--ray", "auto", "a")
    assert result.exit_code == 1 and "--ray needs files" in result.stderr


def test_input_patterns_and_folders_find_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shell-style patterns and folders; skips hidden files and the output folder."""
    names = ["a.parquet", "b.PQ", "deep/er/c.ndjson", "d.jsonl.gz", "out/part-000000.parquet"]
    others = ["_job/e.parquet", ".f.parquet", "g.csv", "[h].jsonl"]
    for name in names + others:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    wanted = {os.path.abspath(n) for n in (*names[:-1], "[h].jsonl")}
    assert set(find_inputs(["."], Path("out"))) == wanted
    assert set(find_inputs(["**/*"], Path("out"))) == wanted | {os.path.abspath("_job/e.parquet")}
    assert find_inputs(["[h].jsonl"], Path("out")) == [os.path.abspath("[h].jsonl")]
    some = ["a.parquet", "./a.parquet", "*.parquet", "out/part-000000.parquet"]
    assert find_inputs(some, Path("elsewhere")) == [
        os.path.abspath(n) for n in ("a.parquet", "out/part-000000.parquet")
    ]
    with pytest.raises(InputError, match="neither Parquet nor JSON lines"):
        find_inputs(["g.csv"], Path("out"))


def test_shell_expanded_inputs_are_accepted(model: Path, corpus: Path, tmp_path: Path) -> None:
    files = sorted(map(str, corpus.iterdir()))
    args = ["embed", "-m", str(model), "--inputs", *files, "--column", "text", "--device", "cpu"]
    result = run(*args, "--output", str(tmp_path / "out"))
    assert result.exit_code == 0 and f"{ROWS} vectors" in result.stderr
    plan = json.loads((tmp_path / "out" / "_job.json").read_text())
    assert [f[0] for f in plan["files"]] == files


@pytest.mark.parametrize(
    ("module", "more", "extra"),
    [
        ("pyarrow.parquet", [], "parquet"),
        ("pyarrow", [], "parquet"),
        ("ray", ["--ray", "x"], "ray"),
    ],
)
def test_missing_package_error_names_extra(
    model: Path,
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: str,
    more: list[str],
    extra: str,
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    result = run(*command(model, corpus, tmp_path / "out", *more))
    assert result.exit_code == 1 and result.stderr.count("\n") == 1
    assert f"its extra '{extra}'" in result.stderr
