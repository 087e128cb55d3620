"""Typed settings of a daemon: one YAML file, environment and flags over it, every value checked with its unit.

```python
class AgentSettings(DaemonSettings, frozen=True):
    turn_seconds: Annotated[float, Meta(ge=0.1, le=60, description="...", extra={"reloadable": True})] = 1.0

loaded = load(AgentSettings, "agent", argv, environ)
```

Flag wins over environment, environment over file, file over default. All problems are reported at once.
"""

from slacktide.settings.load import Loaded, Reload, load, reloaded, rendered
from slacktide.settings.schema import Option, Row, Settings, describe, options
from slacktide.settings.shared import ClusterSettings, DaemonSettings, ObserveSettings, ResourceNames

__all__ = [
    "ClusterSettings",
    "DaemonSettings",
    "Loaded",
    "ObserveSettings",
    "Option",
    "Reload",
    "ResourceNames",
    "Row",
    "Settings",
    "describe",
    "load",
    "options",
    "reloaded",
    "rendered",
]
