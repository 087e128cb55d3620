"""The rights that the chart grants, that docs/security.md explains and that the code asks for, in one form."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from tests.deploy.chart import ROOT

PAGE = ROOT / "docs" / "security.md"


class Right(NamedTuple):
    """One verb on one resource, of one component. `namespace` and `name` are empty where all are meant."""

    component: str
    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""


def table(title: str) -> list[dict[str, str]]:
    """Rows of the first table of the page whose head begins with the cell `title`."""
    found: list[dict[str, str]] = []
    head: list[str] = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            if head:
                break
        elif head:
            found += [dict(zip(head, cells, strict=True))] if not set(cells[0]) <= {"-"} or not cells[0] else []
        elif cells[0] == title:
            head = cells
    assert found, f"no table {title!r} in {PAGE.name}"
    return found


def plain(cell: str) -> str:
    """Text of a cell without the marks of code."""
    return cell.replace("`", "")


def explained() -> dict[Right, dict[str, str]]:
    """Right -> its row on the page."""
    rights: dict[Right, dict[str, str]] = {}
    for row in table("component"):
        for right in rights_of(row, row["component"]):
            assert right not in rights, f"{right} stands twice"
            rights[right] = row
    return rights


def rights_of(row: dict[str, str], component: str) -> list[Right]:
    """The rights that a row with verbs, resource and where stands for."""
    what, _, names = row["resource"].partition(" named ")
    namespace = "" if row["where"] == "cluster" else row["where"]
    return [
        Right(component, verb, group, kind, namespace, name)
        for verb in row["verbs"].split(", ")
        for kind, _, group in (resource.partition(".") for resource in plain(what).split(", "))
        for name in plain(names).split(", ")
    ]


def granted(objects: list[dict[str, Any]]) -> set[Right]:
    """What the service accounts of the chart get."""
    roles = {
        (found["kind"], found["metadata"].get("namespace", ""), found["metadata"]["name"]): found["rules"]
        for found in objects
        if found["kind"] in ("Role", "ClusterRole")
    }
    rights = set()
    for found in objects:
        if found["kind"] not in ("RoleBinding", "ClusterRoleBinding"):
            continue
        namespace = found["metadata"].get("namespace", "")
        reference = found["roleRef"]
        rules = roles[reference["kind"], namespace if reference["kind"] == "Role" else "", reference["name"]]
        for subject in found["subjects"]:
            component = re.sub("^slacktide-", "", subject["name"])
            rights |= {Right(component, *rule) for one in rules for rule in expanded(one, namespace)}
    return rights


def expanded(rule: dict[str, Any], namespace: str) -> set[tuple[str, str, str, str, str]]:
    """Each verb, group, resource, namespace and name of one rule of a role."""
    return {
        (verb, group, resource, namespace, name)
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [""])
    }
