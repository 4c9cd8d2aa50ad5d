import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from passhat.runner.errors import ExitCode, InvalidFile, PasshatError
from passhat.runner.files import Document, read_csv, read_json, read_jsonl, read_text, read_yaml, validate

BOM = b"\xef\xbb\xbf"


def forms(lines: list[str]) -> dict[str, bytes]:
    """The same lines saved in every way of case C29, and packed."""
    plain = "".join(f"{line}\n" for line in lines).encode()
    crlf = plain.replace(b"\n", b"\r\n")
    return {
        "plain": plain,
        "bom": BOM + plain,
        "crlf": crlf,
        "bom, crlf, blank last line, no final newline": BOM + crlf + b"  ",
        "blank lines between": plain.replace(b"\n", b"\n\n"),
        "gzip": gzip.compress(BOM + crlf),
    }


def write(folder: Path, content: str | bytes, name: str = "file.txt") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def message(read: Any, path: Path) -> str:
    with pytest.raises(InvalidFile) as caught:
        list(read(path))
    return str(caught.value).replace(str(path), "FILE")


# Text


def test_text_is_the_same_with_a_byte_order_mark_other_line_ends_or_packed(tmp_path: Path) -> None:
    for content in (b"a\nb\n", BOM + b"a\r\nb\r\n", b"a\r\nb", gzip.compress(b"a\nb")):
        assert read_text(write(tmp_path, content)) == "a\nb\n"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("read", [read_text, read_json, read_jsonl, read_csv, read_yaml])
def test_utf_16_is_refused_with_a_clear_message(tmp_path: Path, read: Any, encoding: str) -> None:
    text = message(read, write(tmp_path, '{"id": "a"}\n'.encode(encoding)))
    assert "UTF-16" in text
    assert "expected UTF-8" in text


def test_a_byte_that_is_not_utf_8_is_named_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, '{"a": 1}\n{"a": "é"}\n'.encode("latin-1"))
    assert message(read_jsonl, path) == "FILE:2  found byte 0xe9, expected UTF-8; save it as UTF-8"


def test_a_file_that_is_absent_cut_off_or_a_folder_is_refused(tmp_path: Path) -> None:
    assert message(read_text, tmp_path / "absent") == "FILE: no such file"
    assert message(read_text, write(tmp_path, gzip.compress(b"text" * 100)[:-10])).startswith("FILE: cannot be read")
    assert message(read_text, tmp_path).startswith("FILE: cannot be read")


# JSON


def test_all_forms_of_a_jsonl_file_give_the_same_records(tmp_path: Path) -> None:
    lines = ['{"id": "a", "n": 1}', '{"id": "b", "n": 2.5}']
    for form, content in forms(lines).items():
        records = [record for _, record in read_jsonl(write(tmp_path, content))]
        assert records == [{"id": "a", "n": 1}, {"id": "b", "n": 2.5}], form


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\u0085", "\x0b", "\x0c", "\x1c"])
def test_only_a_line_feed_ends_a_line(tmp_path: Path, separator: str) -> None:
    escaped = separator if separator > "\x1f" else json.dumps(separator)[1:-1]
    content = f'{{"text": "a{escaped}b"}}\n{{"text": "c"}}\n'
    assert list(read_jsonl(write(tmp_path, content))) == [(1, {"text": f"a{separator}b"}), (2, {"text": "c"})]


def test_line_numbers_count_blank_lines(tmp_path: Path) -> None:
    assert list(read_jsonl(write(tmp_path, '\n\n{"a": 1}\n \n{"a": 2}'))) == [(3, {"a": 1}), (5, {"a": 2})]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"a": 1, "b": {"c": 1, "c": 1}}', 'key "c" is given twice'),
        ('{"a": NaN}', "found NaN, expected a finite number"),
        ('{"a": -Infinity}', "found -Infinity, expected a finite number"),
        ('{"a": 1e999}', "found 1e999, expected a finite number"),
        ('{"a": "\\ud800"}', "found half of a surrogate pair in a \\u escape"),
        ("[1]", "found [1], expected an object"),
        ('{"a": 1', "not JSON: Expecting ',' delimiter at column 8"),
        ("{'a': 1}", "not JSON: Expecting property name enclosed in double quotes at column 2"),
        ('{"a": ' + "[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_record_is_refused_with_its_line(tmp_path: Path, text: str, problem: str) -> None:
    assert message(read_jsonl, write(tmp_path, f'{{"a": 0}}\n{text}\n')) == f"FILE:2  {problem}"


def test_an_error_inside_a_json_file_names_the_line_within_it(tmp_path: Path) -> None:
    path = write(tmp_path, '{\n  "a": 1,\n  "b": oops\n}\n')
    assert message(read_json, path) == "FILE:3  not JSON: Expecting value at column 8"
    assert read_json(write(tmp_path, BOM + b'[1,\r\n{"a": "b"}]')) == [1, {"a": "b"}]


# CSV


def test_all_forms_of_a_csv_file_give_the_same_rows(tmp_path: Path) -> None:
    for form, content in forms(["id,prompt", "a,first", 'b,"second, quoted"']).items():
        rows = [row for _, row in read_csv(write(tmp_path, content.removesuffix(b"  ")))]
        assert rows == [{"id": "a", "prompt": "first"}, {"id": "b", "prompt": "second, quoted"}], form
        assert list(rows[0]) == ["id", "prompt"], form


def test_a_quoted_value_may_hold_line_ends_and_rows_are_numbered_by_their_first_line(tmp_path: Path) -> None:
    path = write(tmp_path, 'id,text\r\na,"two\r\nlines"\r\nb,"x\u2028y"\r\n')
    assert list(read_csv(path)) == [(2, {"id": "a", "text": "two\nlines"}), (4, {"id": "b", "text": "x\u2028y"})]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a,b\n1,2\n3\n", "FILE:3  found 1 values, expected 2 as in the header"),
        ('a,b\n"1\n",2\n1,2,3\n', "FILE:4  found 3 values, expected 2 as in the header"),
        ("a,a\n", 'FILE:1  found column "a", expected names that differ, none empty'),
        ("a,\n", 'FILE:1  found column "", expected names that differ, none empty'),
        ("", "FILE: found nothing, expected a header"),
        ('a\n"b"c\n', "FILE:2  not CSV: ',' expected after '\"'"),
        ('a\n"b\n', "FILE:2  not CSV: unexpected end of data"),
    ],
)
def test_a_ragged_or_broken_csv_is_refused_with_its_line(tmp_path: Path, text: str, problem: str) -> None:
    assert message(read_csv, write(tmp_path, text)) == problem


# YAML


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("false", False),
        *[(word, word) for word in ("no", "yes", "on", "off", "n", "True", "FALSE")],
        ("null", None),
        ("~", None),
        ("", None),
        ("0", 0),
        ("-12", -12),
        ("1e3", 1000.0),
        ("1.5e-3", 0.0015),
        (".06", 0.06),
        ("1.", 1.0),
        *[(text, text) for text in ("12:30", "12:30:45", "2026-11-30", "2026-11-30 12:00:00Z")],
        *[(text, text) for text in ("007", "0x1F", "0o17", "1_000", "1.2.3", "=", "<<")],
        ("'1'", "1"),
    ],
)
def test_yaml_values_are_what_they_look_like(tmp_path: Path, text: str, value: Any) -> None:
    found = read_yaml(write(tmp_path, f"key: {text}\n")).data["key"]
    assert (type(found), found) == (type(value), value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1\nb:\n  c: 1\n  c: 2\n", 'FILE:4  key "c" is given twice'),
        ("a: .inf\n", "FILE:1  found inf, expected a finite number"),
        ("a: .nan\n", "FILE:1  found nan, expected a finite number"),
        ("a: 1\n2: x\n", "FILE:2  found key 2, expected a string: put it in quotes"),
        ("a: !!python/name:os.system\n", "FILE:1  found tag:yaml.org,2002:python/name:os.system"),
        ("a: !!binary aGk=\n", "FILE:1  found tag:yaml.org,2002:binary"),
        ("a: !!set {b}\n", "FILE:1  found tag:yaml.org,2002:set"),
        ("a: &x [*x]\n", "FILE: nested too deeply"),
        ("a: 1\nb: [\n", "FILE:3  not YAML: while parsing a flow node, expected the node content"),
        ("a: 1\n---\nb: 1\n", "FILE:2  not YAML: expected a single document in the stream, but found another"),
        ('a: "\\ud800"\n', "FILE:1  found half of a surrogate pair in a \\u escape"),
        ("a: \x07\n", "FILE  not YAML: unacceptable character #x0007"),
    ],
)
def test_what_yaml_must_not_hold_is_refused_with_its_line(tmp_path: Path, text: str, problem: str) -> None:
    assert message(lambda path: [read_yaml(path)], write(tmp_path, text)).startswith(problem)


def test_aliases_of_aliases_end_before_memory_does(tmp_path: Path) -> None:
    levels = "".join(f"k{i}: &k{i} [{', '.join([f'*k{i - 1}'] * 9)}]\n" for i in range(1, 12))
    found = message(read_yaml, write(tmp_path, f"k0: &k0 [1]\n{levels}"))
    assert "found more than 100,000 values" in found


def test_yaml_keeps_the_line_of_every_value(tmp_path: Path) -> None:
    document = read_yaml(write(tmp_path, "# note\r\na: 1\r\nb:\r\n  - x\r\n  - c: y\r\n"))
    assert document.data == {"a": 1, "b": ["x", {"c": "y"}]}
    assert document.lines == {(): 2, ("a",): 2, ("b",): 3, ("b", 0): 4, ("b", 1): 5, ("b", 1, "c"): 5}
    assert document.problem(("b", 1, "d"), "missing") == f"{document.path}:5  b.1.d: missing"


# Validation


@dataclass(frozen=True)
class Part:
    size: int = 0
    ratio: float = 0.0
    flag: bool = False
    names: tuple[str, ...] = ()
    pair: tuple[str, str] = ("", "")


class Whole(BaseModel):
    model_config = ConfigDict(extra="forbid")

    title: str
    environment: str = ""
    part: Part = Part()
    parts: dict[str, float | Part] = {}
    anything: Any = None


def validated(data: Any) -> Whole:
    return validate(Whole, Document(Path("f.yaml"), data, {}))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(json_values)
def test_a_value_that_may_be_anything_comes_through_unchanged(value: Any) -> None:
    assert repr(validated({"title": "t", "anything": value}).anything) == repr(value)


def test_lists_fill_tuples_and_whole_numbers_fill_floats() -> None:
    part = validated({"title": "t", "part": {"ratio": 1, "names": ["a"], "pair": ["b", "c"]}}).part
    assert part == Part(ratio=1.0, names=("a",), pair=("b", "c"))


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({"title": 1}, 'title: found 1, expected a string; write "1"'),
        ({"title": 1.5}, "title: found 1.5, expected a string; put it in quotes"),
        ({"title": True}, "title: found true, expected a string; put it in quotes"),
        ({"title": None}, "title: found null, expected a string"),
        ({"title": "t", "part": {"size": "1"}}, 'part.size: found "1", expected a whole number'),
        ({"title": "t", "part": {"size": 1.0}}, "part.size: found 1.0, expected a whole number"),
        ({"title": "t", "part": {"size": True}}, "part.size: found true, expected a whole number"),
        ({"title": "t", "part": {"ratio": "1"}}, 'part.ratio: found "1", expected a number'),
        ({"title": "t", "part": {"flag": 1}}, "part.flag: found 1, expected true or false"),
        ({"title": "t", "part": {"names": "ab"}}, 'part.names: found "ab", expected a list'),
        ({"title": "t", "part": [1]}, "part: found [1], expected a mapping"),
        ({"title": "t", "part": {"pair": ["a"]}}, "part.pair.1: missing"),
        ({}, "title: missing"),
        ({"title": "t", "enviroment": "x"}, "enviroment: unknown key; did you mean environment?"),
        ({"title": "t", "zzz": 1}, "zzz: unknown key; allowed are anything, environment, part, parts, title"),
        ({"title": "t", "parts": {"x": "y"}}, 'parts.x: found "y", expected a number or a mapping'),
        ({"title": "t", "parts": {"x": {"size": "y"}}}, 'parts.x.size: found "y", expected a whole number'),
    ],
)
def test_nothing_is_converted_and_each_problem_says_what_is_allowed(data: Any, problem: str) -> None:
    with pytest.raises(InvalidFile) as caught:
        validated(data)
    assert str(caught.value) == f"f.yaml  {problem}"


def test_all_problems_are_listed_in_the_order_of_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "enviroment: desk\npart:\n  size: no\ntitle: 3\n")
    with pytest.raises(InvalidFile) as caught:
        validate(Whole, read_yaml(path))
    assert str(caught.value).replace(str(path), "FILE").split("\n") == [
        "FILE:1  enviroment: unknown key; did you mean environment?",
        'FILE:3  part.size: found "no", expected a whole number',
        'FILE:4  title: found 3, expected a string; write "3"',
    ]


def test_a_long_value_is_cut_and_a_long_list_of_problems_too() -> None:
    with pytest.raises(InvalidFile) as caught:
        validated({"title": "t", "part": "x" * 1000, **{f"key{i}": 1 for i in range(30)}})
    lines = str(caught.value).split("\n")
    assert lines[0] == f'f.yaml  part: found "{"x" * 78}…, expected a mapping'
    assert lines[-1] == "… and 11 more"
    assert len(lines) == 21


def test_values_nested_too_deeply_are_refused() -> None:
    value: Any = 0
    for _ in range(300):
        value = [value]
    with pytest.raises(InvalidFile, match=r"^f\.yaml  recursion limit exceeded"):
        validated({"title": "t", "anything": value})


# Errors


def test_every_error_has_the_public_exit_code_of_its_kind() -> None:
    codes = {kind.__name__: int(kind.exit_code) for kind in PasshatError.__subclasses__()}
    assert codes == {
        "InvalidFile": 1,
        "UsageError": 2,
        "NotAcceptable": 4,
        "NothingMatched": 5,
        "Incomplete": 6,
        "InternalError": 70,
        "Interrupted": 130,
    }
    assert [int(code) for code in ExitCode] == [0, 1, 2, 3, 4, 5, 6, 70, 130]
