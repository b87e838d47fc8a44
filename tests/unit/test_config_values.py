"""The text of a setting becomes exactly its value, or says what was expected."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.config import urls
from tidegate.config import values as v


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (v.parse_duration, "250ms", 0.25),
        (v.parse_duration, "15s", 15.0),
        (v.parse_duration, "30min", 1800.0),
        (v.parse_duration, "24h", 86400.0),
        (v.parse_duration, "7d", 604800.0),
        (v.parse_duration, "1.5 s", 1.5),
        (v.parse_duration, "0", 0.0),
        (v.parse_duration, 2, 2.0),
        (v.parse_duration, 0.25, 0.25),
        (v.parse_duration, "36500d", 3153600000.0),
        (v.parse_size, "32MiB", 33554432),
        (v.parse_size, "1GB", 10**9),
        (v.parse_size, "512 KiB", 524288),
        (v.parse_size, "1.5kB", 1500),
        (v.parse_size, "4096", 4096),
        (v.parse_part, "0.05", Fraction(1, 20)),
        (v.parse_part, 0.05, Fraction(1, 20)),
        (v.parse_part, "5%", Fraction(1, 20)),
        (v.parse_part, "1/20", Fraction(1, 20)),
        (v.parse_part, "1.0", Fraction(1)),
        (v.parse_part, Fraction(3, 20), Fraction(3, 20)),
        (v.parse_whole, "20_000", 20000),
        (v.parse_number, "1_000.5", 1000.5),
        (v.parse_whole, "0", 0),
        (v.parse_number, "1e3", 1000.0),
        (v.parse_number, "0.005", 0.005),
        (v.parse_switch, "on", True),
        (v.parse_switch, "No", False),
        (v.parse_switch, True, True),
        (v.parse_text, "no", "no"),
        (v.parse_address, "127.0.0.1:8400", v.Address("127.0.0.1", 8400)),
        (v.parse_address, "[::1]:0", v.Address("::1", 0)),
        (urls.parse_root_url, "http://10.0.0.1:8000/", "http://10.0.0.1:8000"),
        (urls.parse_root_url, "http://[::1]:80", "http://[::1]:80"),
        (urls.parse_root_url, "https://api.example.com", "https://api.example.com"),
        (v.parse_digest, "sha256:" + "AB" * 32, "sha256:" + "ab" * 32),
    ],
)
def test_text_becomes_exactly_its_value(parse: Callable[[object], object], text: object, value: object) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "texts"),
    [
        (v.parse_duration, ["", "-1s", "5m", "1h30min", "soon", "1e9999999s", "nan", "inf", None, [], True]),
        (v.parse_duration, ["36501d", "99999999999h", f"{'9' * 400}h", 10**400]),
        (v.parse_positive_duration, ["0", "0ms", "-1s"]),
        (v.parse_size, ["", "32Mi", "32 mb", "-1", "0", "0.1B", "1e9", None]),
        (v.parse_part, ["", "1.1", "-0.1", "101%", "1/0", "2/1", "1e999999999", ".5.", "half", "1/٠", "٠", None]),
        (v.parse_whole, ["", "-1", "1.0", "0755", "0x10", "1e3", "12:30", "9" * 40, "1_", "1__0", "_1", "١", None]),
        (v.parse_positive_whole, ["0"]),
        (v.parse_number, ["", "-1", "nan", "inf", "1e999", "ten", "1__0", "1_.5", "1_e3", None]),
        (v.parse_positive_number, ["0", "0.0"]),
        (v.parse_switch, ["1", "0", "y", "maybe", "", None]),
        (v.parse_text, ["", "a\0b", "\x1b[31m", "x" * 5000, None]),
        (v.parse_name, ["", "a/b", "a b", "ä", "x" * 129, None]),
        (
            v.parse_address,
            [
                "8400",
                ":8400",
                "localhost",
                "a:b",
                "a:99999",
                "[x]:1",
                "a b:1",
                "a:٣",
                "[a]:1",
                "::1:80",
                "[1.2.3.4]:1",
                None,
            ],
        ),
        (
            urls.parse_root_url,
            [
                "",
                "10.0.0.1:8000",
                "ftp://a",
                "http://",
                "http://a/v1",
                "http://a?x=1",
                "http://a b",
                "http://a*b",
                "http://[::1%25lo]",
            ],
        ),
        (urls.parse_root_url, ["http://user:pw@a", "http://a:99999", "http://[::1", "http://ä"]),
        (v.parse_digest, ["sk-plain", "sha256:12", "sha256:" + "g" * 64, "md5:" + "a" * 32, None]),
    ],
)
def test_what_cannot_be_read_says_what_was_expected(parse: Callable[[object], object], texts: list[object]) -> None:
    for text in texts:
        with pytest.raises(v.ExpectedError, match=r"^expected "):
            parse(text)


def test_a_key_in_place_of_its_digest_is_secret_and_a_wrong_root_is_corrected() -> None:
    with pytest.raises(v.ExpectedError) as key:
        v.parse_digest("sk-plain")
    with pytest.raises(v.ExpectedError) as url:
        urls.parse_root_url("http://a:8000/v1")
    assert key.value.secret
    assert "sk-plain" not in str(key.value)
    assert (url.value.secret, url.value.nearest) == (False, "http://a:8000")


@pytest.mark.parametrize(
    ("text", "loopback"),
    [
        ("127.0.0.1:1", True),
        ("127.9.9.9:1", True),
        ("[::1]:1", True),
        ("localhost:1", True),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("10.0.0.1:1", False),
        ("example.com:1", False),
    ],
)
def test_only_loopback_addresses_are_loopback(text: str, loopback: bool) -> None:
    address = v.parse_address(text)
    assert address.is_loopback is loopback
    assert str(address) == text


@given(st.decimals(min_value=0, max_value=1, places=6))
def test_a_written_part_is_exact(part: object) -> None:
    assert v.parse_part(f"{part}") == Fraction(str(part))


@given(st.text(max_size=40) | st.text("01_./%e٠", max_size=4))
def test_no_text_makes_a_parser_fail_in_another_way(text: str) -> None:
    for parse in (v.parse_duration, v.parse_size, v.parse_part, v.parse_whole, v.parse_number, v.parse_switch):
        try:
            parse(text)
        except v.ExpectedError:
            continue
