import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.podspec import REQUEST_ANNOTATION, Wish, dns_label, environment, manifest, stem
from slacktide.errors import ManifestError, QuantityError
from slacktide.names import BATCH_CPU, BATCH_MEMORY, HOST_PROCESS_IMAGE, SCHEDULER_NAME
from slacktide.objects import Pod
from slacktide.resources import batch_request, limits_of, qos_class, requests_of
from slacktide.settings import ResourceNames
from slacktide.tier import Tier, tier_of

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def made(**wish):
    body = manifest(Wish(**{"command": ["make", "-j8"], "env": {}, **wish}), "cafe0123")
    return body, msgspec.convert(body, Pod)


def test_best_effort_pod_asks_for_batch_resources_alone():
    body, pod = made(cpu="1500m", memory="1Gi")
    assert tier_of(pod) is Tier.BE
    amount = batch_request(pod, ResourceNames())
    assert (amount.cpu_millis, amount.memory_bytes) == (1500, 1 << 30)
    assert "cpu" not in requests_of(pod)
    assert body["spec"]["schedulerName"] == SCHEDULER_NAME
    assert body["spec"]["restartPolicy"] == "Never"
    assert body["spec"]["containers"][0]["image"] == HOST_PROCESS_IMAGE


def test_latency_sensitive_pod_asks_for_plain_resources_alone():
    _, pod = made(tier="ls", cpu="500m", memory="64Mi")
    assert tier_of(pod) is Tier.LS
    assert requests_of(pod) == {"cpu": 500, "memory": 64 << 20}


def test_limits_of_best_effort_do_not_become_requests():
    body, pod = made(limit_cpu="3", limit_memory="1Gi")
    assert limits_of(pod) == {BATCH_CPU: 3000, BATCH_MEMORY: 1 << 30}
    assert body["spec"]["containers"][0]["resources"] == {
        "requests": {BATCH_CPU: "1000", BATCH_MEMORY: str(256 << 20)},
        "limits": {BATCH_CPU: "3000", BATCH_MEMORY: str(1 << 30)},
    }
    assert tier_of(pod) is Tier.BE
    assert qos_class(pod) == "BestEffort"


def test_one_limit_leaves_the_other_resource_alone():
    body, _ = made(tier="ls", limit_memory="1Gi")
    assert body["spec"]["containers"][0]["resources"]["limits"] == {"memory": str(1 << 30)}


@given(st.integers(min_value=1, max_value=10**6))
def test_any_millicores_arrive_exactly(millis):
    _, pod = made(cpu=f"{millis}m")
    assert batch_request(pod, ResourceNames()).cpu_millis == millis
    _, pod = made(tier="ls", cpu=f"{millis}m")
    assert requests_of(pod)["cpu"] == millis


@given(st.text(max_size=200))
def test_any_program_gives_a_name_that_the_api_takes(program):
    body, _ = made(command=[program])
    name = body["metadata"]["name"]
    assert LABEL.fullmatch(name)
    assert len(name) <= 63


@pytest.mark.parametrize(
    ("program", "name"),
    [("/usr/bin/Make", "make"), ("./a.out", "a-out"), ("...", "pod"), ("_x_", "x"), ("y" * 99, "y" * 40)],
)
def test_names_after_programs(program, name):
    assert stem(program) == name


@given(st.text(alphabet="$()A", max_size=12))
def test_any_word_survives_the_expansion_that_kubernetes_does(word):
    variables = {"A": "expanded", "": "expanded", "$A": "expanded"}

    def expand(text):
        # The rule of the API reference for container.command, written down a second time.
        result, position = "", 0
        while position < len(text):
            rest = text[position:]
            end = rest.find(")")
            if rest.startswith("$$"):
                result, position = result + "$", position + 2
            elif rest.startswith("$(") and end > 0:
                name = rest[2:end]
                result, position = result + variables.get(name, rest[: end + 1]), position + end + 1
            else:
                result, position = result + text[position], position + 1
        return result

    body, _ = made(command=[word or "x"], env={"V": word})
    container = body["spec"]["containers"][0]
    assert expand(container["command"][0]) == (word or "x")
    assert expand(container["env"][0]["value"]) == word


def test_plain_shell_variables_stay_readable():
    body, _ = made(command=["sh", "-c", "echo $HOME $1"])
    assert body["spec"]["containers"][0]["command"][2] == "echo $HOME $1"


def test_the_request_is_written_on_the_pod():
    body, _ = made(name="n")
    assert body["metadata"]["name"] == "n"
    assert body["metadata"]["annotations"] == {REQUEST_ANNOTATION: "cafe0123"}


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a_b", "a.b", "a" * 64, "\N{SNOWMAN}", "a\n"])
def test_no_dns_label(name):
    with pytest.raises(ManifestError, match=r"--name .* is no DNS label"):
        dns_label(name, "--name")


@pytest.mark.parametrize("text", ["1.5.2", "1e", "-1", "", " 1", "1 ", "0x1", "1e400", "NaN", "0"])
def test_bad_cpu_names_the_option(text):
    with pytest.raises(QuantityError, match="--cpu"):
        made(cpu=text)


def test_limit_below_request():
    with pytest.raises(QuantityError, match="--limit-cpu '1' is too little: --cpu is 2"):
        made(cpu="2", limit_cpu="1")
    with pytest.raises(QuantityError, match="--limit-memory 1Gi is below --memory 2Gi"):
        made(memory="2Gi", limit_memory="1Gi")


def test_environment_is_what_tools_need_and_what_was_asked_for():
    caller = {"PATH": "/bin", "LC_ALL": "C", "TOKEN": "t", "AWS_SECRET_ACCESS_KEY": "s"}
    assert environment(caller, []) == {"PATH": "/bin", "LC_ALL": "C"}
    assert environment(caller, ["TOKEN", "PATH=/usr", "E="]) == {"PATH": "/usr", "LC_ALL": "C", "TOKEN": "t", "E": ""}


@pytest.mark.parametrize("assignment", ["=x", "1A=x", "A-B=x", "", "GONE"])
def test_bad_environment(assignment):
    with pytest.raises(ManifestError, match="--env"):
        environment({}, [assignment])
