"""The chart as text: it renders in every combination that matters, and what it makes fits together and the code."""

from __future__ import annotations

import base64
import json
import re
import subprocess

import pytest
import yaml

from agent.settings import AgentSettings
from cli.app import App
from cli.commands.drill import command
from deploy import schema
from predictor.settings import PredictorSettings
from scheduler_plugins.config.load import load as load_configuration
from scheduler_plugins.extender.settings import ExtenderSettings
from scheduler_plugins.plugins import default_registry
from scheduler_plugins.settings import SchedulerSettings
from slacktide import __version__, names
from slacktide.settings import load, options
from tests.deploy.chart import CERTIFICATE, CHART, EVERYTHING, MATRIX, NAMESPACE, ROOT, Refused, key, one, workloads

VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SETTINGS = {
    "agent": AgentSettings,
    "predictor": PredictorSettings,
    "scheduler": SchedulerSettings,
    "extender": ExtenderSettings,
}
RESTRICTED = ("predictor", "scheduler", "extender", "uninstall", "drill")


@pytest.fixture(scope="module")
def rendered(helm):
    """Name of a combination -> its objects."""
    return {name: helm.template(values) for name, values in MATRIX.items()}


@pytest.fixture(scope="module", params=sorted(MATRIX))
def objects(request, rendered):
    return rendered[request.param]


def test_lint_finds_nothing(any_helm):
    assert "0 chart(s) failed" in any_helm.run("lint", "--strict", "--kube-version", "1.36.0", str(CHART))


def test_helm_3_and_4_make_the_same(any_helm, rendered):
    mine = any_helm.template(MATRIX["certificates that exist"])
    assert sorted(map(json.dumps, mine)) == sorted(map(json.dumps, rendered["certificates that exist"]))


def test_versions_are_those_of_the_package():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


def test_a_cluster_that_is_too_old_is_refused(helm):
    with pytest.raises(Refused, match=r"requires kubeVersion: >=1\.33"):
        helm.run("template", "slacktide", str(CHART), "--kube-version", "1.32.9")


def test_every_object_is_there_once_and_is_ours(objects):
    assert len({key(found) for found in objects}) == len(objects)
    for found in objects:
        assert found["metadata"]["labels"]["app.kubernetes.io/name"] == "slacktide", key(found)
        assert found["metadata"]["name"].startswith("slacktide") or found["kind"] in ("Namespace", "Role"), key(found)


def test_what_pods_use_is_there(objects):
    there = {key(found) for found in objects}
    from_outside = {"Secret", "ConfigMap"} if not any(found["kind"] == "Secret" for found in objects) else set()
    for spec in workloads(objects).values():
        used = [("ServiceAccount", NAMESPACE, spec["serviceAccountName"])]
        for volume in spec.get("volumes", []):
            if "configMap" in volume:
                used.append(("ConfigMap", NAMESPACE, volume["configMap"]["name"]))
            if "secret" in volume:
                used.append(("Secret", NAMESPACE, volume["secret"]["secretName"]))
        missing = {one for one in used if one not in there}
        assert {kind for kind, _, name in missing if name != "slacktide-ca" or kind == "Secret"} <= from_outside - {
            "ConfigMap"
        }
        mounts = {mount["name"] for container in spec["containers"] for mount in container.get("volumeMounts", [])}
        claimed = {"history"} & mounts
        assert mounts - claimed <= {volume["name"] for volume in spec.get("volumes", [])}


def test_daemons_take_the_flags_and_settings_that_they_are_given(objects, tmp_path):
    variables = {"POD_IP": "10.1.2.3", "NODE_NAME": "n1", "POD_NAME": "p-0", "POD_UID": "u"}
    for component, spec in workloads(objects).items():
        if component not in SETTINGS:
            continue
        (container,) = spec["containers"]
        assert container["command"] == [f"slacktide-{component}"]
        assert {entry["name"] for entry in container["env"]} <= {
            *variables,
            "NVIDIA_VISIBLE_DEVICES",
            "NVIDIA_DRIVER_CAPABILITIES",
        }
        config = one(objects, "ConfigMap", f"slacktide-{component}")["data"]
        for name, text in config.items():
            (tmp_path / name).write_text(text)
        given = [re.sub(r"\$\((\w+)\)", lambda found: variables[found[1]], flag) for flag in container["args"]]
        given[0] = f"--config={tmp_path / 'settings.yaml'}"
        settings = load(SETTINGS[component], component, given, {}).settings
        assert settings.observe.listen.endswith("10.1.2.3:9464") or settings.observe.listen == "[10.1.2.3]:9464"
        if component == "scheduler" and settings.configuration:
            settings = load(
                SchedulerSettings, component, [*given, f"--configuration={tmp_path / 'scheduler.yaml'}"], {}
            ).settings
            assert load_configuration(settings, default_registry()).profiles


def test_ports_are_those_that_the_daemons_listen_on(objects):
    for component, spec in workloads(objects).items():
        for container in spec["containers"]:
            listened = {
                int(flag.rpartition(":")[2]) for flag in container["args"] if re.search(r"listen=.*:\d+$", flag)
            }
            assert {port["containerPort"] for port in container.get("ports", [])} == listened, component
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                if component in SETTINGS:
                    target = container[probe]["httpGet"]
                    assert (target["port"], target["path"]) == (
                        "metrics",
                        "/readyz" if probe == "readinessProbe" else "/healthz",
                    )


def test_services_budgets_and_policies_select_pods_that_are_there(objects):
    pods = [
        (found["spec"]["template"]["metadata"]["labels"], found["spec"]["template"]["spec"])
        for found in objects
        if found["kind"] in ("DaemonSet", "StatefulSet", "Deployment")
    ]
    for found in objects:
        spec = found.get("spec", {})
        selector = spec.get("podSelector", spec.get("selector", {}))
        wanted = (
            selector.get("matchLabels", selector) if found["kind"] == "NetworkPolicy" or "selector" in spec else None
        )
        if wanted is None:
            continue
        chosen = [spec for labels, spec in pods if wanted.items() <= labels.items()]
        assert len(chosen) == 1, key(found)
        served = {port["name"] for container in chosen[0]["containers"] for port in container["ports"]}
        asked = [port for rule in spec.get("ingress", []) for port in rule["ports"]] or spec.get("ports", [])
        assert {port.get("targetPort", port.get("port")) for port in asked} <= served, key(found)


def test_only_the_agent_has_rights_on_its_host(objects):
    for component, spec in workloads(objects).items():
        paths = [volume["hostPath"]["path"] for volume in spec.get("volumes", []) if "hostPath" in volume]
        assert not spec.get("hostNetwork")
        assert not spec.get("hostIPC")
        for container in spec["containers"]:
            context = container["securityContext"]
            assert not context.get("privileged")
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"]["drop"] == ["ALL"]
            assert container["resources"]["limits"]["memory"]
            assert "cpu" not in container["resources"]["limits"]
        if component in RESTRICTED:
            assert (paths, spec.get("hostPID", False)) == ([], False)
            assert "add" not in spec["containers"][0]["securityContext"]["capabilities"]
            assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}


def test_the_agent_takes_a_seccomp_profile_of_the_nodes(helm):
    """For runtimes whose own profile does not go by CAP_PERFMON."""
    profile = {"type": "Localhost", "localhostProfile": "slacktide/agent.json"}
    specs = workloads(helm.template({"agent": {"seccompProfile": profile}}))
    assert specs["agent"]["securityContext"]["seccompProfile"] == profile
    assert specs["predictor"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for wrong in ({"type": "Localhost"}, {"localhostProfile": "x.json"}, {"type": "Unconfined"}):
        with pytest.raises(Refused, match="seccompProfile"):
            helm.template({"agent": {"seccompProfile": wrong}})


def test_a_predictor_that_follows_under_a_lost_ones_name_has_a_name_of_its_own_in_the_lease(rendered):
    """A StatefulSet's pod is called as the one before it, whose node may be out of reach and go on."""
    (container,) = workloads(rendered["default"])["predictor"]["containers"]
    (identity,) = [argument for argument in container["args"] if argument.startswith("--identity=")]
    fields = {one["name"]: one["valueFrom"]["fieldRef"]["fieldPath"] for one in container["env"] if "valueFrom" in one}
    used = {fields[name] for name in re.findall(r"\$\((\w+)\)", identity)}
    assert used == {"metadata.name", "metadata.uid"}


def test_keys_are_mounted_only_where_they_are_served_with(rendered):
    """What a pod mounts, its node can read: no key of a central component may reach the agents."""
    for component, spec in workloads(rendered["everything"]).items():
        secrets = {volume["secret"]["secretName"] for volume in spec.get("volumes", []) if "secret" in volume}
        assert secrets == ({f"slacktide-{component}-tls"} if component in ("agent", "predictor", "extender") else set())


def test_an_agent_reports_with_a_token_for_the_predictor_alone(rendered):
    spec = workloads(rendered["default"])["agent"]
    (volume,) = [volume for volume in spec["volumes"] if volume["name"] == "token"]
    (source,) = volume["projected"]["sources"]
    settings = yaml.safe_load(one(rendered["default"], "ConfigMap", "slacktide-predictor")["data"]["settings.yaml"])
    assert source["serviceAccountToken"]["audience"] == settings["auth"]["audience"] == "slacktide-predictor"
    assert settings["auth"]["agents"] == [f"system:serviceaccount:{NAMESPACE}:{spec['serviceAccountName']}"]


def test_the_job_that_drills_takes_its_options_and_its_token_is_for_drills_alone(rendered):
    objects = rendered["everything"]
    spec = workloads(objects)["drill"]
    (container,) = spec["containers"]
    assert container["command"] == ["kubectl-slacktide"]
    with command.make_context("drill", container["args"][1:], obj=App(kubectl=True)) as group:
        _, run, words = command.resolve_command(group, group._protected_args + group.args)
        given = run.make_context("run", words, parent=group).params
    assert (given["selector"], given["pick"], given["yes"]) == ("kubernetes.io/os=linux", 1, True)
    (source,) = spec["volumes"][0]["projected"]["sources"]
    assert source["serviceAccountToken"]["audience"] == "slacktide-drill"
    assert given["token_file"] == "/var/run/secrets/slacktide-drill/token"
    assert spec["serviceAccountName"] == "slacktide-operator"
    for name in ("everything", "cert-manager"):
        assert one(rendered[name], "ConfigMap", "slacktide-drill-policy")["data"] == {"at-once": "1"}
        assert one(rendered[name], "Lease", "slacktide-drill-0")
    assert not [found for found in rendered["default"] if "drill" in found["metadata"]["name"]]


def test_rules_and_dashboards_are_those_of_the_repository(rendered):
    objects = rendered["everything"]
    rules = yaml.safe_load((ROOT / "deploy" / "prometheus" / "rules.yaml").read_text())
    assert one(objects, "PrometheusRule", "slacktide")["spec"] == rules
    for path in (ROOT / "deploy" / "grafana" / "json").glob("*.json"):
        assert one(objects, "ConfigMap", f"{path.stem}-dashboard")["data"] == {path.name: path.read_text()}


def test_agents_alone_get_a_label_with_their_node(rendered):
    labelled = [found["metadata"]["name"] for found in rendered["everything"] if "relabelings" in json.dumps(found)]
    assert labelled == ["slacktide-agent"]


def test_names_are_those_of_the_code():
    assert VALUES["scheduler"]["name"] == names.SCHEDULER_NAME
    assert VALUES["resourceNames"] == {"cpu": names.BATCH_CPU, "memory": names.BATCH_MEMORY}


def test_certificates_are_for_the_names_of_the_service(helm, tmp_path):
    objects = helm.template(EVERYTHING)
    authority = tmp_path / "ca.crt"
    authority.write_text(one(objects, "ConfigMap", "slacktide-ca")["data"]["ca.crt"])
    for component in ("predictor", "extender", "agent"):
        data = one(objects, "Secret", f"slacktide-{component}-tls")["data"]
        certificate = tmp_path / f"{component}.crt"
        certificate.write_bytes(base64.b64decode(data["tls.crt"]))
        assert base64.b64decode(data["ca.crt"]).decode() == authority.read_text()
        name = f"slacktide-{component}.{NAMESPACE}.svc"
        command = ["openssl", "verify", "-verify_hostname", name, "-CAfile", str(authority), str(certificate)]
        assert subprocess.run(command, capture_output=True, check=False).returncode == 0, component


@pytest.mark.parametrize("given", [{}, {"peers": [{"namespaceSelector": {}}]}])
def test_a_collector_of_traces_is_named_to_all_and_can_be_reached(helm, given):
    objects = helm.template({"extender": {"enabled": True}, "otel": {"endpoint": "http://[fd00::1]:4317", **given}})
    policies = [found for found in objects if found["kind"] == "NetworkPolicy"]
    assert len(policies) == len(SETTINGS)
    for policy in policies:
        wanted = {"ports": [{"port": 4317}], **({"to": given["peers"]} if given else {})}
        assert policy["spec"]["egress"].count(wanted) == 1, key(policy)
    for component in SETTINGS:
        text = one(objects, "ConfigMap", f"slacktide-{component}")["data"]["settings.yaml"]
        observe = yaml.safe_load(text)["observe"]
        assert (observe["traces"], observe["traces_percent"]) == ("http://[fd00::1]:4317", 10)
    text = helm.text({"extender": {"enabled": True}})
    assert "4317" not in text
    assert "traces_percent" not in text


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"agnet": {}}, "agnet"),
        ({"agent": {"settings": {"evict": {"max_per_hour": -1}}}}, "/agent/settings/evict/max_per_hour"),
        ({"agent": {"settings": {"evict": {"max_per_huor": 1}}}}, "max_per_huor"),
        ({"agent": {"settings": {"node": "n1"}}}, "node"),
        ({"agent": {"settings": {"turn_seconds": "2 seconds"}}}, "/agent/settings/turn_seconds"),
        ({"predictor": {"replicas": 0}}, "/predictor/replicas"),
        ({"predictor": {"settings": {"forecast": {"risk": 2}}}}, "/predictor/settings/forecast/risk"),
        ({"predictor": {"persistence": {"size": "20GB"}}}, "/predictor/persistence/size"),
        ({"priorityClass": {"value": 6000}}, "/priorityClass/value"),
        ({"tls": {"mode": "none"}}, "/tls/mode"),
        ({"tls": {"ca": "MIIB"}}, "/tls/ca"),
        ({"image": {"digest": "sha256:abc"}}, "/image/digest"),
        ({"log": {"level": "loud"}}, "/log/level"),
        ({"otel": {"endpoint": "collector:4317"}}, "/otel/endpoint"),
        ({"scheduler": {"configuration": {"kind": "X"}}}, "/scheduler/configuration"),
        ({"extender": {"enabled": True, "bind": True}}, "extender.clientCa"),
        ({"drills": {"kind": "flood"}}, "/drills/kind"),
        ({"drills": {"duration": "ten"}}, "/drills/duration"),
        ({"drills": {"schedule": "0 10 * * 2"}}, "agent.drills.enabled"),
    ],
)
def test_wrong_values_are_refused_with_the_place(helm, values, said):
    with pytest.raises(Refused, match=re.escape(said)):
        helm.template(values)


def test_the_schema_has_the_settings_of_the_code():
    assert (CHART / "values.schema.json").read_text() == schema.text()


@pytest.mark.parametrize("component", sorted(SETTINGS))
def test_what_the_chart_decides_are_settings(component):
    known = {option.key for option in options(SETTINGS[component])}
    groups = {key.rpartition(".")[0] for key in known}
    assert set(schema.MANAGED[component]) <= known | groups


def leaves(node, path=()):
    """Paths of all values."""
    if isinstance(node, dict) and node:
        return [leaf for name, value in node.items() for leaf in leaves(value, (*path, name))]
    return [path]


def test_every_value_is_in_the_schema_with_a_description():
    whole = json.loads((CHART / "values.schema.json").read_text())
    for path in leaves(VALUES):
        node = whole
        for name in path:
            node = node["properties"][name]
            if "$ref" in node:
                node = whole["$defs"][node["$ref"].rpartition("/")[2]]
            assert node.get("description"), path
            if "properties" not in node:
                break
            assert node["additionalProperties"] is False, path


def test_every_value_is_explained_above_it():
    lines = (CHART / "values.yaml").read_text().splitlines()
    group = []
    for number, line in enumerate(lines):
        if re.match(r"[a-zA-Z]", line):
            group = [number]
            assert lines[number - 1].startswith("#"), line
    assert group


PEER = [{"namespaceSelector": {}}]
CHANGES = {
    ("commonLabels",): {"team": "a"},
    ("image", "repository"): "other",
    ("image", "tag"): "other",
    ("image", "digest"): "sha256:" + "2" * 64,
    ("image", "pullPolicy"): "Always",
    ("imagePullSecrets",): [{"name": "r"}],
    ("ipFamily",): "IPv6",
    ("log", "level"): "debug",
    ("log", "format"): "console",
    ("otel", "endpoint"): "http://other:4318",
    ("otel", "peers"): PEER,
    ("tls", "mode"): "certManager",
    ("tls", "ca"): CERTIFICATE + CERTIFICATE,
    ("priorityClass", "value"): 5600,
    ("agent", "maxUnavailable"): 3,
    ("agent", "seLinuxOptions"): {"type": "spc_t"},
    ("agent", "gpu", "runtimeClassName"): "nvidia",
    ("predictor", "persistence", "storageClass"): "fast",
    ("predictor", "persistence", "size"): "30Gi",
    ("podMonitor", "interval"): "30s",
    ("podMonitor", "labels"): {"release": "prometheus"},
    ("prometheusRule", "labels"): {"release": "prometheus"},
    ("dashboards", "labels", "grafana_dashboard"): "yes",
    ("networkPolicy", "apiServerPorts"): [8443],
    ("scheduler", "configuration"): {"profiles": [{"schedulerName": "slacktide-scheduler"}]},
    ("extender", "clientCa"): CERTIFICATE + CERTIFICATE,
    ("tls", "certManager", "issuerRef", "kind"): "ClusterIssuer",
    ("drills", "kind"): "memory",
    ("drills", "duration"): "2m",
    ("agent", "settings"): {"turn_seconds": 2},
    ("predictor", "settings"): {"ttl_seconds": 30},
    ("scheduler", "settings"): {"bind_workers": 2},
    ("extender", "settings"): {"highest_score": 100},
}


def changed(path, value):
    """Another value than this one, of its kind."""
    if path in CHANGES:
        return CHANGES[path]
    if path[0] == "agentImage":
        return CHANGES["image", path[1]]
    if path[0] == "networkPolicy" and isinstance(value, list):
        return PEER
    by_name = {
        "podAnnotations": {"a": "b"},
        "nodeSelector": {"a": "b"},
        "tolerations": [{"key": "a", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "cpu": "111m",
        "memory": "111Mi",
        "kubernetes.io/os": "other",
    }
    if path[-1] in by_name and not isinstance(value, bool):
        return "other" if path[0] == "resourceNames" else by_name[path[-1]]
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) else "other"


def merged(base, more):
    """`base` with the values of `more`."""
    result = dict(base)
    for name, value in more.items():
        result[name] = (
            merged(base[name], value) if isinstance(value, dict) and isinstance(base.get(name), dict) else value
        )
    return result


def at(tree, path, missing=None):
    """What stands at that path."""
    for name in path:
        if not isinstance(tree, dict) or name not in tree:
            return missing
        tree = tree[name]
    return tree


def nested(path, value):
    """A tree with that value at that path and nothing else."""
    for name in reversed(path):
        value = {name: value}
    return value


# Certificates differ with each rendering; their days, the seccomp profile and admission have tests of their own.
TESTED_ELSEWHERE = (("tls", "validityDays"), ("agent", "seccompProfile", "type"))
ALIVE = [path for path in leaves(VALUES) if path[0] != "admission" and path not in TESTED_ELSEWHERE]


@pytest.mark.parametrize("group", sorted({path[0] for path in ALIVE}))
def test_no_value_is_dead(helm, group):
    """Each value, changed alone, changes what is made."""
    before = {}
    for path in (path for path in ALIVE if path[0] == group):
        mode = "certManager" if "certManager" in path else "existing"
        # A job that drills needs agents that can be drilled.
        drills = {"schedule": ""} if path[:2] == ("agent", "drills") else {}
        start = merged(EVERYTHING, {"tls": {"mode": mode, "ca": CERTIFICATE}, "drills": drills})
        kind = (mode, bool(drills))
        if kind not in before:
            before[kind] = helm.text(start)
        value = at(start, path, at(VALUES, path))
        assert helm.text(merged(start, nested(path, changed(path, value)))) != before[kind], f"{'.'.join(path)}"


def test_days_of_certificates(helm, tmp_path):
    for days, ends in ((1, 1), (400, 0)):
        data = one(helm.template({"tls": {"validityDays": days}}), "Secret", "slacktide-predictor-tls")["data"]
        (tmp_path / "c.crt").write_bytes(base64.b64decode(data["tls.crt"]))
        command = ["openssl", "x509", "-checkend", str(30 * 86_400), "-noout", "-in", str(tmp_path / "c.crt")]
        assert subprocess.run(command, capture_output=True, check=False).returncode == ends
