"""Amounts of a resource in words."""

from __future__ import annotations

from slacktide.quantity import format_bytes, format_millis

_BYTES = ("memory", "ephemeral-storage")


def in_words(resource: str, amount: int, millis: frozenset[str], in_bytes: frozenset[str]) -> str:
    """`amount` of `resource` for people; `millis` and `in_bytes` name what is counted so beside the stock ones."""
    if resource in millis:
        return f"{amount}m"
    if resource == "cpu":
        return format_millis(amount)
    if resource in _BYTES or resource in in_bytes or resource.startswith("hugepages-"):
        return format_bytes(amount)
    return str(amount)
