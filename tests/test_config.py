"""Configuration keys: typed values from text, errors that say what would be right, near names, properties files."""

from __future__ import annotations

import pytest

from headrace.config import (
    ConfigDefinition,
    ConfigError,
    ConfigKey,
    ConfigType,
    Password,
    at_least,
    between,
    format_properties,
    format_value,
    list_of,
    one_of,
    parse_properties,
    parse_value,
)

TABLE = ConfigDefinition(
    [
        ConfigKey("num.partitions", ConfigType.INT, 1, at_least(1)),
        ConfigKey("log.dirs", ConfigType.LIST),
        ConfigKey("acks", ConfigType.STRING, "all", one_of("all", "-1", "0", "1")),
        ConfigKey("ratio", ConfigType.DOUBLE, 0.5, between(0, 1)),
        ConfigKey("cleanup.policy", ConfigType.LIST, ("delete",), list_of("compact", "delete")),
        ConfigKey("retention.ms", ConfigType.LONG, 604800000, at_least(-1)),
        ConfigKey("enable", ConfigType.BOOLEAN, True),
        ConfigKey("secret", ConfigType.PASSWORD, None),
        ConfigKey("bootstrap.servers", ConfigType.LIST, (), aliases=("metadata.broker.list",)),
    ]
)


def test_text_and_native_values_parse_to_the_same() -> None:
    as_text = {"log.dirs": "/a, /b", "num.partitions": " 7 ", "ratio": "0.25", "enable": "FALSE", "secret": "s"}
    native = {"log.dirs": ["/a", "/b"], "num.partitions": 7, "ratio": 0.25, "enable": False, "secret": Password("s")}
    assert TABLE.parse(as_text) == TABLE.parse(native)
    values = TABLE.parse(as_text)
    assert values["log.dirs"] == ("/a", "/b")
    assert values["retention.ms"] == 604800000
    assert list(values) == TABLE.names


def test_every_wrong_key_is_named_with_what_would_be_right() -> None:
    with pytest.raises(ConfigError) as caught:
        TABLE.parse({"num.partitions": "0", "ratio": "half", "acks": "2", "cleanup.policy": "compact,forget"})
    problems = caught.value.problems
    assert set(problems) == {"num.partitions", "ratio", "acks", "cleanup.policy", "log.dirs"}
    assert problems["num.partitions"] == "Invalid value 0 for configuration num.partitions: must be at least 1"
    assert "expected a number" in problems["ratio"]
    assert "one of all, -1, 0, 1" in problems["acks"]
    assert "compact, delete" in problems["cleanup.policy"]
    assert "no default" in problems["log.dirs"]
    for sentence in problems.values():
        assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        (ConfigType.INT, "2147483648"),
        (ConfigType.INT, "1_000"),
        (ConfigType.INT, "1.0"),
        (ConfigType.INT, ""),
        (ConfigType.SHORT, "32768"),
        (ConfigType.LONG, "9223372036854775808"),
        (ConfigType.BOOLEAN, "yes"),
        (ConfigType.DOUBLE, "0x10"),
        (ConfigType.DOUBLE, ""),
    ],
)
def test_text_that_is_not_of_the_type_is_refused(type_: ConfigType, text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_value(type_, text)


def test_a_native_value_of_another_type_is_refused() -> None:
    for type_, value in [(ConfigType.INT, True), (ConfigType.BOOLEAN, 1), (ConfigType.LIST, 5), (ConfigType.STRING, 5)]:
        with pytest.raises(ValueError, match="expected"):
            parse_value(type_, value)


def test_an_element_that_comes_twice_in_a_list_counts_once() -> None:
    assert TABLE["cleanup.policy"].parse("delete, compact,delete") == ("delete", "compact")
    assert TABLE["cleanup.policy"].parse(["delete", "delete"]) == ("delete",)


def test_null_is_only_a_value_where_it_is_the_default() -> None:
    assert TABLE["secret"].parse(None) is None
    with pytest.raises(ConfigError):
        TABLE["enable"].parse(None)
    with pytest.raises(ConfigError):
        TABLE["num.partitions"].parse(None)


def test_a_password_never_shows() -> None:
    key = ConfigKey("pw", ConfigType.PASSWORD, None, one_of(Password("x")))  # type: ignore[arg-type]  # refuses all else
    with pytest.raises(ConfigError) as caught:
        key.parse("hunter2")
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(Password("hunter2"))
    assert format_value(Password("hunter2")) == "[hidden]"


def test_an_alias_is_the_same_key_and_both_at_once_are_refused() -> None:
    assert TABLE.parse_given({"metadata.broker.list": "a:1,b:2"}) == {"bootstrap.servers": ("a:1", "b:2")}
    with pytest.raises(ConfigError, match="only one"):
        TABLE.parse_given({"metadata.broker.list": "a:1", "bootstrap.servers": "a:1"})


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("num.partition", "num.partitions"),
        ("num_partitions", "num.partitions"),
        ("retention.MS", "retention.ms"),
        ("retenion.ms", "retention.ms"),
        ("bootstrap_server", "bootstrap.servers"),
        ("zookeeper.connect", None),
    ],
)
def test_an_unknown_name_comes_with_the_nearest_known_one(written: str, meant: str | None) -> None:
    assert TABLE.unknown({written: "1", "acks": "all"}) == {written: meant}


@pytest.mark.parametrize(
    ("value", "printed"),
    [
        (True, "true"),
        (0.5, "0.5"),
        (1.0, "1.0"),
        (1234567.0, "1234567.0"),
        (1e7, "1.0E7"),
        (0.001, "0.001"),
        (0.00012, "1.2E-4"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (-0.25, "-0.25"),
        (0.0, "0.0"),
        (("a", "b"), "a,b"),
        ((), ""),
        (9223372036854775807, "9223372036854775807"),
        (None, None),
    ],
)
def test_values_print_as_java_prints_them(value: object, printed: str | None) -> None:
    assert format_value(value) == printed  # type: ignore[arg-type]  # the cases are values of every type


def test_properties_syntax() -> None:
    text = (
        "# comment\n"
        "   ! another\n"
        "\n"
        "a=1\r\n"
        "b : 2\n"
        "c 3\n"
        "d\n"
        "e = x\\\n"
        "      y\\\n"
        "  # not a comment\n"
        "path=C:\\\\dir\\t\\u00e9\\ud83d\\ude00\n"
        "k\\ ey\\:=v=w\n"
        "a=last wins \n"
        "f=\\\\\n"
        "g=end\\"
    )
    assert parse_properties(text) == {
        "a": "last wins ",
        "b": "2",
        "c": "3",
        "d": "",
        "e": "xy# not a comment",
        "path": "C:\\dir\té😀",
        "k ey:": "v=w",
        "f": "\\",
        "g": "end",
    }


def test_a_malformed_unicode_escape_is_refused_with_its_line() -> None:
    with pytest.raises(ConfigError, match="Line 2"):
        parse_properties("a=1\nb=\\u12x4\n")


def test_properties_written_are_read_back() -> None:
    values = {"a b": " leading", "c=d": "x:y#z", "é": "tab\tnew\nline", "empty": "", "p": "\\", "q": "😀!"}
    assert parse_properties(format_properties(values)) == values
