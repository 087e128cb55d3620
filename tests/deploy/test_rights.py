"""Least privilege: chart, page and code name the same rights, and nothing that would make others of them."""

from __future__ import annotations

import pytest

from agent import permissions as of_agent
from predictor import permissions as of_predictor
from scheduler_plugins import permissions as of_scheduler
from scheduler_plugins.config.load import load
from scheduler_plugins.plugins import default_registry
from scheduler_plugins.settings import SchedulerSettings
from scheduler_plugins.simulation.run import kinds_of
from tests.deploy.chart import EVERYTHING, one, workloads
from tests.deploy.rights import Right, expanded, explained, granted, plain, rights_of, table

PEOPLE = ("operator", "uninstall")
WITH = {
    "": {},
    "agent.observeOnly: false": {},
    "scheduler.enabled": {},
    "agent.gpu.enabled": {"agent": {"gpu": {"enabled": True}}},
    "agent.drills.enabled": {"agent": {"drills": {"enabled": True}}},
    "extender.enabled": {"extender": {"enabled": True}},
    "extender.bind": {"extender": EVERYTHING["extender"]},
}
WITHOUT = {
    "agent.observeOnly: false": {"agent": {"observeOnly": True}},
    "scheduler.enabled": {"scheduler": {"enabled": False}},
}


@pytest.fixture(scope="module")
def objects(helm):
    return helm.template(EVERYTHING)


def of_code(component, found):
    return {Right(component, one.verb, one.group, joined(one), one.namespace, one.name) for one in found}


def joined(one):
    return f"{one.resource}/{one.subresource}" if one.subresource else one.resource


def test_the_page_has_what_the_chart_grants(objects):
    assert {right for right in granted(objects) if right.component not in PEOPLE} == set(explained())


def test_the_code_asks_for_what_the_page_has():
    plugins = default_registry()
    scheduler = of_scheduler.SCHEDULER_PERMISSIONS + of_scheduler.of_lease("slacktide-scheduler", "kube-system")
    asked = {
        "agent": (
            *of_agent.PERMISSIONS,
            *of_agent.GPU_PERMISSIONS,
            *of_agent.DRILL_PERMISSIONS,
            *of_agent.FORECAST_PERMISSIONS,
        ),
        "predictor": of_predictor.PERMISSIONS + of_predictor.AUTH_PERMISSIONS,
        "scheduler": scheduler + of_scheduler.of_kinds(kinds_of(load(SchedulerSettings(), plugins), plugins)),
        "extender": of_scheduler.EXTENDER_PERMISSIONS + of_scheduler.BINDING_PERMISSIONS,
    }
    assert set().union(*(of_code(name, found) for name, found in asked.items())) == set(explained())


@pytest.mark.parametrize("condition", sorted(WITH))
def test_a_right_is_there_only_with_what_needs_it(helm, condition):
    have = granted(helm.template(WITH[condition]))
    here = {right for right, row in explained().items() if plain(row["only with"]) == condition}
    assert here
    assert here <= have
    lacks = granted(helm.template(WITHOUT.get(condition, {})))
    if condition:
        assert not here & lacks


def test_nothing_that_would_lead_to_more(objects):
    for component, verb, group, resource, _namespace, name in granted(objects):
        assert "*" not in (verb, group, resource)
        assert verb not in ("impersonate", "escalate", "bind")
        assert resource != "configmaps" or (component == "operator" and name.startswith("slacktide-"))
        assert resource not in (
            "secrets",
            "nodes/proxy",
            "pods/exec",
            "pods/attach",
            "pods/ephemeralcontainers",
        )
        assert (group, verb) != ("rbac.authorization.k8s.io", "create")


def test_the_job_after_uninstallation_may_only_clean_nodes(objects):
    assert {right for right in granted(objects) if right.component == "uninstall"} == {
        Right("uninstall", "list", "", "nodes"),
        Right("uninstall", "patch", "", "nodes/status"),
    }


def of_people(objects, title):
    """Rights by role of a table of the page about people; each role of the chart has those and no more."""
    page = {}
    for row in table(title):
        kind, name = plain(row["given by"]).split()
        for right in rights_of(row, "person"):
            page.setdefault((kind, name), set()).add(right)
    for (kind, name), rights in page.items():
        role = one(objects, kind, name)
        namespace = role["metadata"].get("namespace", "")
        assert {Right("person", *rule) for found in role["rules"] for rule in expanded(found, namespace)} == rights
    return page


def test_those_who_ask_may_read_what_the_page_says_and_change_nothing(objects):
    page = of_people(objects, "to ask")
    assert {right.verb for rights in page.values() for right in rights} <= {"get", "list", "watch"}
    bound = {found["roleRef"]["name"] for found in objects if found["kind"] in ("RoleBinding", "ClusterRoleBinding")}
    assert not bound & {name for _, name in page}


def test_those_who_drill_may_do_what_the_page_says_and_no_more(objects, helm):
    page = of_people(objects, "to drill")
    # The account of the job has what is for planning, and the drills themselves.
    planned = {right._replace(component="operator") for right in page["ClusterRole", "slacktide-drill-plan"]}
    planned |= {right._replace(component="operator") for right in page["Role", "slacktide-drill-plan"]}
    drills = {Right("operator", verb, "slacktide.io", "drills") for verb in ("create", "get")}
    assert {right for right in granted(objects) if right.component == "operator"} == planned | drills
    without = granted(helm.template({"agent": {"drills": {"enabled": True}}}))
    assert {right for right in without if right.component == "operator"} == drills


def test_roles_for_people(objects):
    for row in table("ClusterRole"):
        (role,) = [
            found
            for found in objects
            if found["kind"] == "ClusterRole" and found["metadata"]["name"] == plain(row["ClusterRole"])
        ]
        (rule,) = role["rules"]
        resource, _, group = plain(row["resource"]).partition(".")
        assert rule == {"apiGroups": [group], "resources": [resource], "verbs": row["verbs"].split(", ")}


def test_capabilities_are_those_of_the_page(helm):
    switches = {
        "agent.observeOnly: false": {"observeOnly": False},
        "agent.perf": {"perf": True},
        "agent.coreScheduling": {"coreScheduling": True},
    }
    off = {"perf": False, "coreScheduling": False, "observeOnly": True}
    for row in table("capability"):
        wanted = switches[plain(row["only with"])]
        base = {**off, "observeOnly": False} if "coreScheduling" in wanted else off
        assert plain(row["capability"]) in added(helm, {**base, **wanted})
        assert plain(row["capability"]) not in added(helm, base if "coreScheduling" in wanted else off)
    assert added(helm, {"perf": True, "coreScheduling": True}) == {
        plain(row["capability"]) for row in table("capability")
    }


def added(helm, agent):
    (container,) = workloads(helm.template({"agent": agent}))["agent"]["containers"]
    return set(container["securityContext"]["capabilities"].get("add", []))


def test_host_paths_are_those_of_the_page(objects, helm):
    rows = {plain(row["host"]): row for row in table("host")}
    for made, everything in ((objects, True), (helm.template(), False)):
        spec = workloads(made)["agent"]
        (container,) = spec["containers"]
        paths = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"] if "hostPath" in volume}
        mounts = {
            paths[mount["name"]]: mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] in paths
        }
        wanted = {
            path: plain(row["mounted at"])
            for path, row in rows.items()
            if path.startswith("/") and (everything or not row["only with"])
        }
        assert mounts == wanted
        assert spec["hostPID"] is True
    assert "process ids (hostPID)" in rows
