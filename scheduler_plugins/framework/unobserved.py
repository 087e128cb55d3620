"""Unobserved: for a profile whose cycles nobody measures, such as one that answers a question of a person."""

from __future__ import annotations

from collections.abc import Sequence


class Unobserved:
    """A FrameworkObserver that keeps nothing."""

    def extension_point(self, profile: str, point: str, status: str, seconds: float) -> None:
        """Nobody measures."""

    def evaluated(self, profile: str, plugins: Sequence[str], point: str) -> None:
        """Nobody counts."""

    def plugin_took(self, plugin: str, point: str, status: str, seconds: float) -> None:
        """Nobody measures."""

    def over_budget(self, plugin: str, point: str, seconds: float) -> None:
        """Nobody is told."""
