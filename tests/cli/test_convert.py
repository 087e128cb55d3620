"""What `slacktide convert` makes of manifests. That a cluster makes the same of pods: tests/cluster/admission/."""

import copy
import io
import json
import sys

import pytest
import yaml

from cli.converting import TEMPLATES, Rules, convert
from cli.manifests import documents, dump
from slacktide.errors import ManifestError
from slacktide.names import BATCH_CPU, BATCH_MEMORY, PRIORITY_CLASS, SCHEDULER_NAME, TIER_LABEL

GI = 1 << 30


def container(name="main", **resources):
    return {"name": name, "image": "work", "resources": resources} if resources else {"name": name, "image": "work"}


def template(*containers, labels=None, **spec):
    labels = {TIER_LABEL: "BE"} if labels is None else labels
    return {"metadata": {"labels": labels}, "spec": {"containers": list(containers), **spec}}


def workload(kind, pod):
    body = copy.deepcopy(pod)
    for key in reversed(TEMPLATES[kind]):
        body = {key: body}
    head = {"apiVersion": "v1", "kind": kind}
    return {**head, **body, "metadata": {**body.get("metadata", {}), "name": "nightly"}}


def inside(manifest):
    for key in TEMPLATES[manifest["kind"]]:
        manifest = manifest[key]
    return manifest


def converted(*containers, rules=None, **more):
    done = convert(workload("Pod", template(*containers, **more)), rules or Rules())
    return done.manifest["spec"]


def resources(**given):
    """Of one container after conversion."""
    return converted(container(**given))["containers"][0]["resources"]


def both(**amounts):
    return {"requests": amounts, "limits": amounts}


@pytest.mark.parametrize("kind", TEMPLATES)
def test_every_kind_that_holds_a_pod(kind):
    before = workload(kind, template(container(requests={"cpu": "1500m", "memory": "1Gi"})))
    kept = copy.deepcopy(before)
    done = convert(before, Rules())
    assert before == kept
    assert done.changed
    assert done.remarks == (f"{kind}/nightly: converted",)
    spec = inside(done.manifest)["spec"]
    assert spec["containers"][0]["resources"] == both(**{BATCH_CPU: "1500", BATCH_MEMORY: str(GI)})
    assert (spec["schedulerName"], spec["priorityClassName"]) == (SCHEDULER_NAME, PRIORITY_CLASS)
    again = convert(done.manifest, Rules())
    assert not again.changed
    assert again.manifest == done.manifest


@pytest.mark.parametrize(
    ("given", "amount"),
    [("500m", "500"), ("0.5", "500"), (0.5, "500"), (2, "2000"), ("2", "2000"), ("1k", "1000000"), ("1e3", "1000000"),
     ("0.0001", "1"), ("1500.5m", "1501"), (None, "0")],
)  # fmt: skip
def test_cpu_becomes_whole_millicores(given, amount):
    assert resources(requests={"cpu": given}) == both(**{BATCH_CPU: amount})


@pytest.mark.parametrize(
    ("given", "amount"),
    [("1Gi", GI), ("1.5Gi", 3 * GI // 2), ("100M", 100_000_000), (1024, 1024), ("1500m", 2),
     ("100000000Ki", 102_400_000_000)],
)  # fmt: skip
def test_memory_becomes_whole_bytes(given, amount):
    assert resources(limits={"memory": given}) == both(**{BATCH_MEMORY: str(amount)})


def test_the_larger_of_request_and_limit_becomes_both():
    # Less would starve or kill what ran well before; and what it may use has to be asked for.
    given = {"requests": {"cpu": "100m", "memory": "1Gi"}, "limits": {"cpu": "4", "memory": "2Gi"}}
    assert resources(**given) == both(**{BATCH_CPU: "4000", BATCH_MEMORY: str(2 * GI)})


def test_other_resources_stay_where_they_are():
    got = resources(
        requests={"ephemeral-storage": "1Gi", "cpu": "1", "nvidia.com/gpu": 1}, limits={"nvidia.com/gpu": 1}
    )
    assert list(got["requests"].items()) == [("ephemeral-storage", "1Gi"), (BATCH_CPU, "1000"), ("nvidia.com/gpu", 1)]
    assert got["limits"] == {"nvidia.com/gpu": 1, BATCH_CPU: "1000"}


def test_what_was_asked_for_in_batch_resources_stays_and_native_ones_go():
    assert resources(requests={BATCH_CPU: 250, "cpu": "1"}, limits={BATCH_CPU: 250}) == both(**{BATCH_CPU: 250})


def test_koordinator_2915_2960_init_containers_and_sidecars_are_converted_too():
    sidecar = {**container("sidecar", requests={"cpu": "50m"}), "restartPolicy": "Always"}
    init = [container("init", limits={"memory": "2Gi"}), sidecar]
    spec = converted(container(requests={"cpu": 1}), initContainers=init)
    assert spec["initContainers"][0]["resources"] == both(**{BATCH_MEMORY: str(2 * GI)})
    assert spec["initContainers"][1]["resources"] == both(**{BATCH_CPU: "50"})
    assert spec["initContainers"][1]["restartPolicy"] == "Always"


def test_overhead_is_of_the_runtime_class_and_stays():
    assert converted(container(), overhead={"cpu": "250m"})["overhead"] == {"cpu": "250m"}


@pytest.mark.parametrize(
    ("labels", "is_batch"),
    [({TIER_LABEL: "be"}, True), ({TIER_LABEL: "Be"}, True), ({TIER_LABEL: "ls"}, False),
     ({TIER_LABEL: "system"}, False),
     ({"koordinator.sh/qosClass": "BE"}, True), ({"koordinator.sh/qosClass": "LS"}, False),
     ({TIER_LABEL: "ls", "koordinator.sh/qosClass": "BE"}, False),
     ({TIER_LABEL: "?", "koordinator.sh/qosClass": "BE"}, True),
     ({}, False), ({TIER_LABEL: None}, False)],
)  # fmt: skip
def test_only_what_is_labelled_best_effort_is_touched(labels, is_batch):
    before = workload("Deployment", template(container(requests={"cpu": 1}), labels=labels))
    done = convert(before, Rules())
    assert done.changed is is_batch
    assert is_batch or done.manifest == before
    assert is_batch or "left alone" in done.remarks[0]


@pytest.mark.parametrize(
    ("labels", "after"), [(None, "be"), ({}, "be"), ({"app": "x"}, "be"), ({TIER_LABEL: "ls"}, "ls")]
)
def test_all_labels_what_no_label_speaks_for(labels, after):
    before = workload("Deployment", template(container(requests={"cpu": 1}), labels=labels))
    before["spec"]["template"]["metadata"]["labels"] = labels
    done = convert(before, Rules(unlabelled=True))
    assert inside(done.manifest)["metadata"]["labels"] == {**(labels or {}), TIER_LABEL: after}
    assert done.changed is (after == "be")


def test_scheduler_and_priority_class_that_somebody_chose():
    assert converted(container(), schedulerName="volcano")["schedulerName"] == "volcano"
    assert converted(container(), schedulerName="default-scheduler")["schedulerName"] == SCHEDULER_NAME
    assert "schedulerName" not in converted(container(), rules=Rules(scheduler=""))
    replaced = converted(container(), priorityClassName="high", priority=9, preemptionPolicy="Never")
    assert replaced["priorityClassName"] == PRIORITY_CLASS
    assert not replaced.keys() & {"priority", "preemptionPolicy"}
    rules = Rules(priority_classes=("night", "day"))
    assert converted(container(), rules=rules)["priorityClassName"] == "night"
    kept = converted(container(), rules=rules, priorityClassName="day", priority=5100)
    assert (kept["priorityClassName"], kept["priority"]) == ("day", 5100)


REFUSED = [
    ({"requests": {"cpu": "1.5.2"}}, {}, "is no quantity"),
    ({"requests": {"cpu": "-1"}}, {}, "is negative"),
    ({"requests": {"memory": "16Pi"}}, {}, "more than any machine has"),
    # volcano 4625: 200m of an integer resource was counted as 1.
    ({"requests": {BATCH_CPU: "200m"}, "limits": {BATCH_CPU: "200m"}}, {}, "is a fraction"),
    ({"requests": {BATCH_CPU: 100}, "limits": {BATCH_CPU: 200}}, {}, "must both be there and be equal"),
    ({"requests": {BATCH_CPU: 100}}, {}, "must both be there and be equal"),
    ({"limits": {BATCH_MEMORY: 100}}, {}, "must both be there and be equal"),
    ({"requests": {"cpu": 1, "hugepages-2Mi": "4Mi"}}, {}, "huge pages"),
    ({"requests": {"cpu": 1}}, {"resources": {"requests": {"cpu": 2}}}, "resources of the whole pod"),
    ({"requests": ["cpu"]}, {}, "must be a mapping"),
]


@pytest.mark.parametrize(("asked", "spec", "words"), REFUSED)
def test_what_cannot_become_a_batch_workload_is_refused_in_words(asked, spec, words):
    with pytest.raises(ManifestError, match=words) as caught:
        converted(container(**asked), **spec)
    assert "Pod/nightly" in str(caught.value)


def test_lists_are_converted_item_by_item():
    be, other = workload("Job", template(container(requests={"cpu": 1}))), {"kind": "Secret", "data": {}}
    done = convert({"kind": "List", "apiVersion": "v1", "items": [be, other]}, Rules())
    assert done.changed
    assert done.manifest["items"] == [convert(be, Rules()).manifest, other]


STREAM = """\
# a remark that stays
apiVersion: v1
kind: ConfigMap
metadata: {name: scripts}
data:
  ports: 22:22   # no sexagesimal number
  run: |
    echo hello
---
# one that is lost
apiVersion: batch/v1
kind: CronJob
metadata:
  name: nightly
spec:
  schedule: "0 3 * * *"
  startDate: 2026-01-01
  jobTemplate:
    spec:
      template:
        metadata:
          labels: {slacktide.io/tier: be}
        spec:
          containers:
          - name: main
            command: ["sh", "-c", "one\\ntwo\\n"]
            resources: &same
              requests: {cpu: 0.5}
          - name: second
            resources: *same
---
# empty
---
"""


def test_documents_that_do_not_change_stand_as_they_were(command, out, err, tmp_path):
    (tmp_path / "a.yaml").write_text(STREAM)
    assert command("convert", "-f", str(tmp_path / "a.yaml")) == 0
    first, second = out.text.split("---\n")[1:]
    assert first.strip() == STREAM.split("---\n")[0].strip()
    assert "one that is lost" not in second
    made = yaml.safe_load(second.replace("2026-01-01", "day"))["spec"]
    assert second.count("2026-01-01") == 1
    spec = made["jobTemplate"]["spec"]["template"]["spec"]
    assert [one["resources"] for one in spec["containers"]] == [both(**{BATCH_CPU: "500"})] * 2
    assert spec["containers"][0]["command"] == ["sh", "-c", "one\ntwo\n"]
    assert "&" not in second
    assert err.text == "slacktide: CronJob/nightly: converted\n"


def test_standard_input_directories_and_json(command, out, err, tmp_path, monkeypatch):
    pod = workload("Pod", template(container(requests={"cpu": 1})))
    (tmp_path / "b.json").write_text(json.dumps(pod) + json.dumps({"kind": "Secret"}))
    (tmp_path / "a.yml").write_text("kind: Namespace\n")
    (tmp_path / "notes.txt").write_text("not: [read")
    monkeypatch.setattr(sys, "stdin", io.StringIO("kind: Service\n"))
    assert command("convert", "-f", str(tmp_path), "-f", "-", "-o", "json") == 0
    said = json.loads(out.text)
    assert [one["kind"] for one in said["items"]] == ["Namespace", "Pod", "Secret", "Service"]
    assert said["items"][1] == convert(pod, Rules()).manifest


def test_options_reach_the_rules(command, out, err, tmp_path):
    (tmp_path / "a.yaml").write_text(dump(workload("Job", template(container(requests={"cpu": 1}), labels={}))))
    options = ("--all", "--scheduler", "", "--priority-class", "night", "--priority-class", "day")
    assert command("convert", "-f", str(tmp_path), *options) == 0
    pod = inside(yaml.safe_load(out.text))
    assert pod["metadata"]["labels"] == {TIER_LABEL: "be"}
    assert pod["spec"]["priorityClassName"] == "night"
    assert "schedulerName" not in pod["spec"]


@pytest.mark.parametrize(
    ("text", "words"),
    [("kind: Pod\nmetadata: {a: 1, a: 2}\n", "a.yaml, line 2: the key 'a' stands twice"),
     ("kind: A\n---\nkind: [\n", "a.yaml, line 4"),
     ("- a list\n", "a.yaml, line 1: a manifest is a mapping"),
     ("a: &a [*a]\n", "a.yaml, document at line 1: it contains itself"),
     ('{"kind": ', "a.yaml"),
     ("kind: !!python/object:os.system x\n", "a.yaml, line 1")],
)  # fmt: skip
def test_bad_files_are_named_with_their_line_and_nothing_is_printed(command, out, err, tmp_path, text, words):
    (tmp_path / "a.yaml").write_text(text)
    assert command("convert", "-f", str(tmp_path / "a.yaml")) == 2
    assert words in err.text
    assert out.text == ""


def test_a_file_that_is_not_there(command, out, err, tmp_path):
    assert command("convert", "-f", str(tmp_path / "none.yaml")) == 2
    assert "cannot be read: No such file or directory" in err.text
    assert command("convert", "-f", str(tmp_path)) == 2
    assert "has no manifests" in err.text


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e3", 1000.0), ("0.5", 0.5), ("22:22", "22:22"), ("2026-01-01", "2026-01-01"), ("010", 8), ("0x10", 16),
     ("1_000", 1000), ("yes", True), ("~", None), (".5", 0.5), ("1.", 1.0), ("-3", -3), ("1Gi", "1Gi"),
     ("1.2.3", "1.2.3")],
)  # fmt: skip
def test_scalars_are_read_as_kubernetes_reads_them_and_survive_a_round(text, value):
    (read,) = documents(f"a: {text}\n", "here")
    assert read.value == {"a": value}
    (again,) = documents(dump(read.value), "here")
    assert again.value == read.value
