"""The compiled kernels give what the plain ones give, on good records and on garbage; and they load only when asked."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace.records import (
    Batch,
    Codec,
    Record,
    build_batch,
    build_batch_from_columns,
    build_batch_of,
    bytes_column,
    check,
    cpython,
    decode_columns,
    kernels,
    kernels_plain,
    read_records,
    records_of,
)
from headrace.records.build import BatchOptions, build_batch_of_values
from headrace.records.columns import decode_utf8
from headrace.records.kernels_plain import NO_STAMP, Decoded

kernels_fast: Any = pytest.importorskip("headrace.records.kernels_fast")
kernels_fast_objects: Any = pytest.importorskip("headrace.records.kernels_fast_objects")

reads_lists = pytest.mark.skipif(not cpython.READS_LISTS, reason="CPython's inside is not used")
maybe_bytes = st.none() | st.binary(max_size=200)
header_lists = st.lists(st.tuples(st.text(max_size=5), maybe_bytes), max_size=3)
record_tuples = st.tuples(st.integers(-1, 2**62), maybe_bytes, maybe_bytes, header_lists)
byte_rows = st.lists(st.none() | st.binary(max_size=40), max_size=40)
relaxed = settings(deadline=None, derandomize=True, max_examples=200)


def as_lists(decoded: Decoded) -> list[Any]:
    return [column.tolist() if isinstance(column, memoryview) else column for column in decoded]


@pytest.mark.slow
@settings(relaxed, max_examples=100)
@given(st.lists(record_tuples, min_size=1, max_size=40), st.sampled_from(list(Codec)), st.integers(-1, 2**31 - 1))
def test_records_survive_both_ways_with_the_same_bytes(rows: list[Any], codec: Codec, base_sequence: int) -> None:
    options: dict[str, Any] = {"base_offset": 7, "codec": codec, "base_sequence": base_sequence}
    if base_sequence >= 0:
        options |= {"producer_id": 3, "producer_epoch": 1}
    kernels.use_fast()
    results = []
    for least_rows in (0, 1 << 40):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kernels, "_fast_from_rows", least_rows)
            built = build_batch(rows, **options)
            batch = Batch(built)
            check(batch)
            records = read_records(batch)
            columns = decode_columns(batch)
            assert build_batch_from_columns(columns, **options) == built
            assert [record._replace(sequence=-1) for record in records] == records_of(columns)
            results.append((bytes(built), records))
    assert results[0] == results[1]
    expected = [
        Record(7 + row, stamp, key, value, tuple(headers), (base_sequence + row) % 2**31 if base_sequence >= 0 else -1)
        for row, (stamp, key, value, headers) in enumerate(rows)
    ]
    assert results[0][1] == expected


@relaxed
@given(st.binary(max_size=60), st.integers(-2, 12), st.integers(-(2**63), 2**63 - 1), st.booleans())
def test_garbage_gives_the_same_rows_and_the_same_fault(data: bytes, count: int, base: int, stamped: bool) -> None:
    table = (0, len(data), count, base, base, 5 if stamped else NO_STAMP)
    assert both_decode(data, table) is not None


@pytest.mark.slow
@relaxed
@given(st.data(), st.lists(record_tuples, min_size=1, max_size=6))
def test_damaged_records_give_the_same_rows_and_the_same_fault(data: st.DataObject, rows: list[Any]) -> None:
    payload = bytearray(build_batch(rows)[61:])
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    count = len(rows) + data.draw(st.integers(-1, 1))
    both_decode(bytes(payload), (0, len(payload), count, 2**63 - 3, -(2**63) + 1, NO_STAMP))


def both_decode(data: bytes, table: tuple[int, ...]) -> list[Any]:
    capacity = min(max(table[2], 0), len(data) // 7)
    plain = as_lists(kernels_plain.decode_records(data, table, capacity))
    fast = as_lists(kernels_fast.decode_records(data, table, capacity))
    if plain[-2] == fast[-2] == 0:
        plain[-1] = fast[-1] = 0
    assert plain == fast
    return plain


@relaxed
@given(byte_rows)
def test_byte_columns_give_the_same(rows: list[bytes | None]) -> None:
    column = bytes_column(rows)
    packed = kernels_fast.pack(rows)
    assert packed.starts.tolist() == column.starts.tolist()
    assert packed.lengths.tolist() == column.lengths.tolist()
    assert column.to_list() == packed.to_list() == rows
    plain_data, plain_ends, plain_nulls = kernels_plain.gather(column)
    fast_data, fast_ends, fast_nulls = kernels_fast.gather(column)
    assert bytes(plain_data) == bytes(fast_data)
    assert (plain_ends.tolist(), plain_nulls) == (fast_ends.tolist(), fast_nulls)
    assert kernels_plain.to_list(column) == kernels_fast.to_list(column) == rows
    # Several columns, one of them in the middle of its buffer.
    several = (packed, column.rows(len(rows) // 3, len(rows)), column)
    plain_data, plain_ends, plain_nulls = kernels_plain.gather(*several)
    fast_data, fast_ends, fast_nulls = kernels_fast.gather(*several)
    assert bytes(plain_data) == bytes(fast_data)
    assert (plain_ends.tolist(), plain_nulls) == (fast_ends.tolist(), fast_nulls)
    assert kernels_plain.murmur2_column(column).tolist() == kernels_fast.murmur2_column(column).tolist()


def test_pythons_serialized_form_is_what_the_kernels_write() -> None:
    rows = [b"x" * n for n in (0, 1, 255, 256, 65_536)] + [None] * 3 + [bytes(range(256))] * 100
    assert kernels_fast.to_list(bytes_column(rows)) == rows
    assert kernels_fast.to_list(bytes_column([b"long" * 1000, None])) == [b"long" * 1000, None]
    assert kernels_fast.to_list(bytes_column([])) == []


@pytest.mark.parametrize("can_read", [True, False])
def test_lists_are_read_where_python_keeps_them(can_read: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpython, "READS_LISTS", can_read and cpython.READS_LISTS)
    measure, lay = kernels_fast_objects.measure, kernels_fast_objects.lay
    rows = [b"", b"abc", None, bytes(range(256)) * 300]
    lengths, total, nulls = measure(rows)
    assert (lengths.tolist(), total, nulls) == ([0, 3, -1, 76_800], 76_803, 1)
    assert bytes(lay(rows, lengths, total)) == b"abc" + bytes(range(256)) * 300
    for other in ("text", bytearray(b"abc"), memoryview(b"abc"), 7):
        assert measure([b"abc", other]) is None


@reads_lists
@settings(relaxed, max_examples=50)
@given(st.lists(st.binary(max_size=200), min_size=1, max_size=200), st.integers(0, 20), st.sampled_from(list(Codec)))
def test_values_alone_are_encoded_as_records_are(values: list[bytes], start: int, codec: Codec) -> None:
    start = min(start, len(values) - 1)
    lengths = memoryview(kernels_fast_objects.measure(values).lengths)[start:]
    count = len(lengths)
    built = build_batch_of_values(values, start, lengths, 12345, codec=codec)
    assert bytes(built) == build_batch_of([12345] * count, [None] * count, values[start:], codec=codec)


@pytest.mark.parametrize(
    ("timestamps", "is_in_place"),
    [
        pytest.param([9] * 40, True, id="one time"),
        pytest.param([-1] * 40, True, id="no time"),
        pytest.param([5] * 20 + [68] * 10 + [69] * 10, True, id="later ones"),
        pytest.param([-1] + [7] * 39, True, id="the first without"),
        pytest.param([9] * 39 + [8], False, id="an earlier one"),
        pytest.param([0] * 39 + [2**62 - 1], True, id="one very late"),
        pytest.param([0] * 39 + [2**63 - 1], False, id="one too late"),
    ],
)
def test_values_that_are_read_in_place_are_encoded_as_records_are(
    timestamps: list[int], is_in_place: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kernels.use_fast()
    monkeypatch.setattr(kernels, "_fast_from_rows", 0)
    in_place: list[int] = []
    encode = kernels_fast_objects.encode_values

    def spy(out: Any, at: int, rows: list[bytes], *rest: Any) -> int:
        in_place.append(len(rows))
        return int(encode(out, at, rows, *rest))

    monkeypatch.setattr(kernels_fast_objects, "encode_values", spy)
    options: BatchOptions = {"codec": Codec.LZ4, "producer_id": 3, "producer_epoch": 1, "base_sequence": 5}
    values: list[bytes | None] = [b"v" * (row * row) for row in range(40)]
    no_keys: list[bytes | None] = [None] * 40
    for keys, some in ((no_keys, values), ([*no_keys[1:], b"key"], values), (no_keys, [*values[1:], None])):
        built = build_batch_of(timestamps, keys, some, **options, pooled=True)
        assert bytes(built) == build_batch_of(timestamps, keys, some, **options)
    assert in_place == [40] * (is_in_place and cpython.READS_LISTS)  # only those without keys and nulls


@reads_lists
def test_a_list_of_long_values_is_encoded_as_records_are() -> None:
    values = [b"x" * size for size in (0, 57, 58, 59, 63, 64, 8_180, 8_192, 70_000, 2_100_000)] * 20
    lengths = memoryview(kernels_fast_objects.measure(values).lengths)
    built = build_batch_of_values(values, 0, lengths, 5)
    assert bytes(built) == build_batch_of([5] * len(values), [None] * len(values), values)


@relaxed
@given(st.lists(st.none() | st.binary(max_size=2), max_size=60))
def test_the_last_record_of_each_key_is_found(rows: list[bytes | None]) -> None:
    column = bytes_column(rows)
    mask = kernels_plain.last_per_key(column).tolist()
    assert mask == kernels_fast.last_per_key(column).tolist()
    last = {key: row for row, key in enumerate(rows)}
    assert mask == [int(key is None or last[key] == row) for row, key in enumerate(rows)]


@pytest.mark.slow
@relaxed
@given(st.lists(record_tuples, min_size=1, max_size=20), st.data())
def test_offsets_with_gaps_are_encoded_alike(rows: list[Any], data: st.DataObject) -> None:
    numbers = st.lists(st.integers(-(2**31), 2**31 - 1), min_size=len(rows), max_size=len(rows), unique=True)
    deltas = sorted(data.draw(numbers))
    stamps, keys, values, headers = zip(*rows)
    kernels.use_fast()
    built = []
    for least_rows in (0, 1 << 40):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kernels, "_fast_from_rows", least_rows)
            built.append(build_batch_of(stamps, keys, values, headers, deltas))
    assert built[0] == built[1]


@pytest.mark.parametrize("size", [16_383, 16_384, 70_000])
def test_large_records_and_offsets_go_beyond_the_tables(size: int, either_kernels: str) -> None:
    values: list[bytes | None] = [b"v" * size, None, b""]
    batch = Batch(build_batch_of([5, 3, 2**41], [None, b"k" * size, b""], values, None, [0, 20_000, 2**31 - 1]))
    records = read_records(batch)
    assert [record.value for record in records] == values
    assert [record.offset for record in records] == [0, 20_000, 2**31 - 1]
    assert [record.timestamp for record in records] == [5, 3, 2**41]


@pytest.mark.parametrize(
    ("deltas", "stamps", "what"),
    [
        ([1, 0], [1, 1], "increase"),
        ([0, 0], [1, 1], "increase"),
        ([0, 2**31], [1, 1], "32 bits"),
        ([0, 1], [1, -2], "-2"),
    ],
)
def test_the_builder_refuses_what_java_refuses(
    deltas: list[int], stamps: list[int], what: str, either_kernels: str
) -> None:
    with pytest.raises(ValueError, match=what):
        build_batch_of(stamps, [None, None], [b"", b""], None, deltas)


def test_columns_out_of_order_are_not_taken_for_sequential(either_kernels: str) -> None:
    columns = decode_columns(Batch(build_batch([(0, None, b"%d" % row, ()) for row in range(4)])))
    with pytest.raises(ValueError, match="increase"):
        build_batch_from_columns(columns.take([0, 2, 1, 3]))


@pytest.mark.parametrize(
    "options",
    [{"transactional": True}, {"producer_id": 1}, {"producer_id": 1, "producer_epoch": 0}, {"timestamp_type": 1}],
)
def test_half_said_options_are_refused(options: dict[str, Any]) -> None:
    from headrace.records import TimestampType

    if "timestamp_type" in options:
        options = {"timestamp_type": TimestampType.LOG_APPEND_TIME}
    with pytest.raises(ValueError, match="needs"):
        build_batch([(0, None, None, ())], **options)


def test_header_keys_that_are_not_utf8_read_as_java_reads_them() -> None:
    assert decode_utf8(b"ok\xffx") == "ok\ufffdx"
    assert decode_utf8(b"\xed\xa0\x80x") == "\ufffdx"
    assert decode_utf8(b"\xc0\x80") == "\ufffd\ufffd"
    assert decode_utf8(b"\xe2\x82") == "\ufffd"


def run_python(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **environment}, check=True
    )
    return done.stdout.strip()


HEAVY = "sorted({'numpy', 'numba', 'pyarrow', 'zstandard', 'lz4', 'cramjam', 'crc32c'} & set(sys.modules))"


def test_importing_the_room_loads_nothing_heavy() -> None:
    assert run_python(f"import sys, headrace.records; print({HEAVY})") == "[]"


def test_plain_work_never_loads_numba() -> None:
    code = (
        "import sys; from headrace.records import *; rows = [(0, b'k', b'v', ())] * 1000; "
        "read_records(Batch(build_batch(rows))); print('numba' in sys.modules, 'numpy' in sys.modules)"
    )
    assert run_python(code, HEADRACE_KERNELS="") == "False False"


@pytest.mark.slow
def test_the_environment_forces_either_kernels() -> None:
    code = "from headrace.records import kernels; print(kernels.use_fast(), kernels.choose(1).NAME)"
    assert run_python(code, HEADRACE_KERNELS="plain") == "False plain"
    assert run_python(code, HEADRACE_KERNELS="fast") == "True fast"
    assert run_python(code, HEADRACE_KERNELS="") == "True plain"
    without_asking = "from headrace.records import kernels; print(kernels.choose(1).NAME)"
    assert run_python(without_asking, HEADRACE_KERNELS="fast") == "fast"


@pytest.mark.slow
def test_without_a_place_for_numba_s_cache_the_plain_kernels_serve(tmp_path: Path) -> None:
    package = Path(headrace.__file__).parent
    copy = tmp_path / "headrace"
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
    # A file where numba would make its directory stands for a place that cannot be written, even by root.
    (copy / "records" / "__pycache__").touch()
    (tmp_path / "home").touch()
    places = {name: str(tmp_path / "home") for name in ("HOME", "XDG_CACHE_HOME")}
    code = "from headrace.records import kernels; print(kernels.use_fast(), kernels.choose(1000).NAME)"
    where = {"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1", "HEADRACE_KERNELS": ""}
    assert run_python(code, **where, **places) == "False plain"
    with pytest.raises(subprocess.CalledProcessError) as failed:
        run_python(code, **{**where, "HEADRACE_KERNELS": "fast"}, **places)
    assert "NUMBA_CACHE_DIR" in failed.value.stderr


def test_a_wrong_word_in_the_environment_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(kernels.ENVIRONMENT, "quick")
    with pytest.raises(ValueError, match="'plain' or 'fast'"):
        kernels.use_fast()
