"""Components that answer what a test says, in place of sockets and proxies."""

from __future__ import annotations

from cli.asking import Told


class Heard:
    """`answers`: (component, route) -> a value, a list of (who, value), or an exception's text where nobody answers.

    `asked` are the calls: component, route, node, query.
    """

    def __init__(self, answers=None):
        self.answers = answers or {}
        self.asked = []

    def ask(self, component, route, answer, *, node="", query=None):
        self.asked.append((component, route, node, dict(query or {})))
        found = self.answers.get((component, route), f"the {component} does not answer")
        if callable(found):
            found = found(node, query)
        many = found if isinstance(found, list) else [(f"the {component}", found)]
        return [
            Told(who=who, value=None, problem=value, node=node)
            if isinstance(value, str)
            else Told(who=who, value=value, node=node)
            for who, value in many
        ]
