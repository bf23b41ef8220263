"""Reading rows of Parquet and JSON lines: each once, bad rows reported, size limits."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clrt.errors import InputError
from clrt.text.jobs import work_units as splitting
from clrt.text.jobs.rows import RowReader, WorkUnitRows, kept_schema
from clrt.text.jobs.work_units import WorkUnit, split
from tests.unit.text.jobs.corpus import write_lines, write_parquet


def read(
    path: Path, rows: int = 3, keep: tuple[str, ...] = ()
) -> list[tuple[WorkUnit, WorkUnitRows]]:
    reader = RowReader("text", kept_schema([str(path)], keep))
    return [(unit, reader.read(unit)) for unit in split(str(path), "text", rows)]


def texts(path: Path, rows: int = 3) -> dict[int, str]:
    """Returns a file's texts by row number."""
    found = [p for _, r in read(path, rows) for p in zip(r.numbers, r.texts, strict=True)]
    assert len(dict(found)) == len(found)
    return dict(found)


def errors(path: Path) -> dict[int, str]:
    return dict(e for _, rows in read(path) for e in rows.errors)


@pytest.mark.parametrize("group", [1, 2, 3, 7, 100])
def test_each_parquet_row_is_read_once(tmp_path: Path, group: int) -> None:
    wanted = [f"text {i}" for i in range(20)]
    path = write_parquet(tmp_path / "a.parquet", {"text": wanted}, group)
    for rows in (1, 3, 50):
        assert texts(path, rows) == dict(enumerate(wanted))
        assert all((u.rows or 0) <= rows for u in split(str(path), "text", rows))


def test_work_units_are_read_in_any_order(tmp_path: Path) -> None:
    wanted = [f"text {i}" for i in range(20)]
    lines = [{"text": t} for t in wanted]
    for path in (
        write_parquet(tmp_path / "a.parquet", {"text": wanted}, 8),
        write_lines(tmp_path / "a.jsonl", lines),
    ):
        units = list(split(str(path), "text", 3))
        reader = RowReader("text", pa.schema([]))
        order = [4, 0, 2, 1, 5, 3, *range(6, len(units))]
        for unit in (units[k] for k in order):
            assert reader.read(unit).texts == wanted[unit.first : unit.first + (unit.rows or 0)]
        assert sum(u.rows or 0 for u in units) == len(wanted)


@pytest.mark.parametrize(
    "kind",
    [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string()), pa.string()],
    ids=str,
)
def test_texts_of_any_arrow_string_type_are_read(tmp_path: Path, kind: Any) -> None:
    column = pa.array(["one", None, "", "zwölf"], pa.string()).cast(kind)
    path = write_parquet(tmp_path / "a.parquet", {"text": column})
    assert texts(path) == {0: "one", 2: "", 3: "zwölf"}
    assert errors(path) == {1: "'text' is null"}


def test_invalid_utf8_affects_only_its_row(tmp_path: Path) -> None:
    raw = pa.array([b"good", b"\xff\xfe", b"too"], pa.binary())
    path = write_parquet(tmp_path / "a.parquet", {"text": raw.view(pa.string())})
    assert texts(path) == {0: "good", 2: "too"}
    assert "not UTF-8 (byte 0)" in errors(path)[1]


def test_bad_json_lines_are_reported_by_row(tmp_path: Path) -> None:
    rows: list[object] = [
        {"text": "zwölf Boxkämpfer 日本"},
        b"",
        {"text": None},
        {"other": 1},
        b"{broken",
        b'{"text": "\xff"}',
        [1],
        {"text": 5},
        b'{"text": "\\ud800"}',
        b"[" * 100_000,
        b'{"text": "crlf"}\r',
    ]
    path = write_lines(tmp_path / "a.jsonl", rows)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes() + b'{"text": "no line break"}')
    assert texts(path) == {0: "zwölf Boxkämpfer 日本", 10: "crlf", 11: "no line break"}
    said = errors(path)
    assert said.keys() == {2, 3, 4, 5, 6, 7, 8, 9}
    for row, words in {
        2: "is null",
        3: "there is no 'text'",
        4: "no JSON",
        5: "not UTF-8",
        6: "no JSON object",
        7: "of type int, not a string",
        8: "surrogate",
        9: "no JSON",
    }.items():
        assert words in said[row], row


def test_gzip_json_lines_are_read(tmp_path: Path) -> None:
    lines = [json.dumps({"text": f"text {i}"}) + "\n" for i in range(20)]
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress("".join(lines).encode()))
    assert texts(path) == {i: f"text {i}" for i in range(20)}
    path.write_bytes(path.read_bytes()[:-20])
    problem = list(split(str(path), "text", 1000))[-1]
    assert problem.rows is None and "cannot be read from row 0 on" in problem.problem


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
def test_work_unit_bytes_are_limited(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A huge row gets a work unit nearly of its own."""
    monkeypatch.setattr(splitting, "_MAX_UNIT_BYTES", 10_000)
    rows = ["x" * 4000] * 8 + ["y" * 50_000] + ["z"] * 3
    path = tmp_path / name
    if name.endswith("parquet"):
        pq.write_table(pa.table({"text": rows}), path, use_dictionary=False)
    else:
        write_lines(path, [{"text": r} for r in rows])
    found = read(path, 100)
    assert [t for _, r in found for t in r.texts] == rows
    assert all(sum(map(len, r.texts)) < 60_000 for _, r in found)
    assert len(found) >= 5


def test_empty_files_have_no_rows(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"")
    write_lines(tmp_path / "b.jsonl", [b"", b" "])
    write_parquet(tmp_path / "c.parquet", {"text": pa.array([], pa.string())})
    for name in ("a.jsonl", "b.jsonl", "c.parquet"):
        assert texts(tmp_path / name) == {} and errors(tmp_path / name) == {}


def test_unreadable_parquet_files_are_reported(tmp_path: Path) -> None:
    (tmp_path / "damaged.parquet").write_bytes(b"PAR1 nonsense")
    (tmp_path / "empty.parquet").write_bytes(b"")
    write_parquet(tmp_path / "other.parquet", {"body": ["a"]})
    write_parquet(tmp_path / "numbers.parquet", {"text": [1, 2]})
    for name, rows, words in (
        ("damaged", None, "is no Parquet"),
        ("empty", None, "is no Parquet"),
        ("other", 1, "has no column 'text'; there are: 'body'"),
        ("numbers", 2, "holds int64, not strings"),
    ):
        ((unit, found),) = read(tmp_path / f"{name}.parquet")
        assert unit.rows == rows and words in unit.problem
        assert found.problem == unit.problem and not found.texts


def test_damaged_row_group_affects_only_its_unit(tmp_path: Path) -> None:
    wanted = [f"text number {i:05}" for i in range(4000)]
    path = tmp_path / "a.parquet"
    table = pa.table({"text": wanted})
    pq.write_table(table, path, row_group_size=1000, compression="zstd", use_dictionary=False)
    raw = bytearray(path.read_bytes())
    chunk = pq.ParquetFile(path).metadata.row_group(1).column(0)
    middle = chunk.data_page_offset + chunk.total_compressed_size // 2
    raw[middle : middle + 64] = bytes(64)
    path.write_bytes(raw)
    found = read(path, 1000)
    assert [bool(rows.problem) for _, rows in found] == [False, True, False, False]
    assert "is damaged" in found[1][1].problem
    assert [t for _, r in found for t in r.texts] == wanted[:1000] + wanted[2000:]


def test_shrunk_or_deleted_file_ends_job(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{"text": "a"}] * 9)
    units = list(split(str(path), "text", 5))
    write_lines(path, [{"text": "a"}] * 6)
    reader = RowReader("text", pa.schema([]))
    with pytest.raises(InputError, match="lost rows"):
        reader.read(units[1])
    path.unlink()
    with pytest.raises(InputError, match=r"cannot be read: No such file"):
        RowReader("text", pa.schema([])).read(units[0])


def test_kept_columns_have_parquet_types(tmp_path: Path) -> None:
    columns = {
        "text": ["a", None, "c"],
        "id": pa.array([1, 2, 3], pa.int16()),
        "at": pa.array([datetime(2020, 1, d) for d in (1, 2, 3)], pa.timestamp("ns")),
        "tags": [["x"], [], ["y", "z"]],
    }
    path = write_parquet(tmp_path / "a.parquet", columns)
    ((_, rows),) = read(path, 10, ("id", "at", "tags", "text"))
    assert {n: a.type for n, a in rows.kept.items()} == {
        "id": pa.int16(),
        "at": pa.timestamp("ns"),
        "tags": pa.list_(pa.string()),
        "text": pa.string(),
    }
    assert rows.kept["id"].to_pylist() == [1, 3]
    assert rows.kept["tags"].to_pylist() == [["x"], ["y", "z"]]


@pytest.mark.parametrize(
    ("values", "kind", "kept"),
    [
        ([1, 2, None], pa.int64(), [1, 2, None]),
        ([1, 2.5], pa.float64(), [1.0, 2.5]),
        ([True, False], pa.bool_(), [True, False]),
        (["x", None], pa.string(), ["x", None]),
        (["x", 1, {"y": []}], pa.string(), ["x", "1", '{"y": []}']),
        ([1 << 70], pa.string(), [str(1 << 70)]),
        ([None], pa.string(), [None]),
    ],
)
def test_kept_json_columns_have_type_of_values(
    tmp_path: Path, values: list[Any], kind: Any, kept: list[Any]
) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{"text": "a", "id": v} for v in values])
    ((_, rows),) = read(path, 10, ("id",))
    assert rows.kept["id"].type == kind
    assert rows.kept["id"].to_pylist() == kept


def test_kept_column_value_of_wrong_type_is_row_error(tmp_path: Path) -> None:
    ids: list[Any] = [*range(1000), "x", 1001, 2.5, 1003]
    rows = [{"text": f"text {i}", "id": x} for i, x in enumerate(ids)]
    path = write_lines(tmp_path / "a.jsonl", rows)
    found = [r for _, r in read(path, 400, ("id",))]
    kept = [x for r in found for x in r.kept["id"].to_pylist()]
    assert kept == [*range(1000), 1001, 1003]
    assert [t for r in found for t in r.texts] == [f"text {i}" for i in kept]
    assert [e for r in found for e in r.errors] == [
        (1000, "'id' is no int64"),
        (1002, "'id' is no int64"),
    ]


def test_unknown_kept_column_is_refused(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", {"text": ["a"]})
    with pytest.raises(InputError, match="No file has a column 'id'"):
        kept_schema([str(path)], ["id"])


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_lines_over_row_limit_are_skipped(tmp_path: Path, name: str) -> None:
    limits = splitting.ReadLimits(row_bytes=100)
    lines = [
        json.dumps({"text": t}).encode() for t in ("a", "x" * 3_000_000, "b", "c" * 87, "y" * 89)
    ]
    data = b"\n".join(lines)
    path = tmp_path / name
    path.write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    for rows in (1, 2, 9):
        reader = RowReader("text", pa.schema([]), limits)
        found = [reader.read(u) for u in split(str(path), "text", rows, limits)]
        assert [t for r in found for t in r.texts] == ["a", "b", "c" * 87]
        assert [n for r in found for n in r.numbers] == [0, 2, 3]
        errors = dict(e for r in found for e in r.errors)
        assert errors.keys() == {1, 4} and "more than 100; raise --max-row-mb" in errors[1]


def test_gzip_file_is_read_up_to_file_limit(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"text": "a"}\n' * 1000))
    units = list(split(str(path), "text", 30, splitting.ReadLimits(file_bytes=14 * 100)))
    assert [u.rows for u in units] == [30, 30, 30, 10, None]
    assert "--max-file-gb" in units[-1].problem and units[-1].first == 100


def test_gzip_blank_line_uses_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    with gzip.open(path, "wb") as stream:
        for _ in range(100):
            stream.write(b" " * (1 << 20))
    tracemalloc.start()
    units = list(split(str(path), "text", 30))
    rows = RowReader("text", pa.schema([])).read(units[0])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(units) == 1 and peak < 80 << 20 and rows.errors[0][0] == 0


def test_parquet_cells_over_row_limit_are_skipped(tmp_path: Path) -> None:
    limits = splitting.ReadLimits(row_bytes=100)
    path = write_parquet(tmp_path / "a.parquet", {"text": ["a", "x" * 101, None, "y" * 100]}, 4)
    (unit,) = split(str(path), "text", 9, limits)
    rows = RowReader("text", pa.schema([]), limits).read(unit)
    assert rows.texts == ["a", "y" * 100] and [n for n, _ in rows.errors] == [1, 2]
    path = write_parquet(tmp_path / "b.parquet", {"text": ["x" * 1000, "a"]}, 1)
    first, second = split(str(path), "text", 9, limits)
    assert "raise --max-row-mb" in first.problem and not second.problem
    assert (
        "--max-file-gb"
        in next(split(str(path), "text", 9, splitting.ReadLimits(file_bytes=9))).problem
    )


def test_repeated_parquet_texts_are_shared(tmp_path: Path) -> None:
    """Dictionary encoding: one 100 KB text in 3,000 rows."""
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 3000), pa.array(["x" * 100_000]))
    pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet", store_schema=False)
    (unit,) = split(str(tmp_path / "a.parquet"), "text", 3000)
    before = pa.total_allocated_bytes()
    rows = RowReader("text", pa.schema([])).read(unit)
    assert len(rows.texts) == 3000 and rows.texts[0] is rows.texts[-1]
    assert pa.total_allocated_bytes() - before < 50 << 20
