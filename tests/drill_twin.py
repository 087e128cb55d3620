"""The drill service of an agent without the agent: a board that a test moves on, on a node that stands as it says."""

from __future__ import annotations

from agent.drill_plan import Standing
from agent.drill_server import DrillServer
from agent.drill_service import DrillService
from agent.policy.base import Plan
from agent.settings import AgentSettings
from tests.agent.nodes import node

CALM = Standing(snapshot=node(), plan=Plan(), held="", watchdog="", load="", reports=True)
"""A node on which a drill may start."""


def drill_server(board, drill, *, node="n1", standing=CALM, reviews=None, records=list, **more):
    """A server of `drill` (DrillSettings), not started; `standing` is one, or makes one for a kind."""
    settings = AgentSettings(drill=drill, **more)
    stands = standing if callable(standing) else lambda _kind: standing
    return DrillServer(drill, DrillService(node, board, lambda: settings, stands, records, reviews))
