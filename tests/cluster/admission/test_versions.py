"""What is rendered for older API servers works on one that behaves as they do.

1.33 by --emulated-version. A server of 1.36 cannot be made to emulate 1.34 with the gate on (it watches v1):
the beta version is tried on a server that serves it beside v1.
"""

from __future__ import annotations

import contextlib

import pytest

from cli.converting import Rules, convert
from slacktide.names import BATCH_CPU
from tests.cluster import harness
from tests.cluster.admission.bodies import DRY, WHOLE, asked_of, both, container, pod, pods, refusal
from tests.cluster.admission.conftest import prepare
from tests.cluster.policies import Api, installed, rendered, until
from tests.deploy.tools import ToolsMissing

BETA = "admissionregistration.k8s.io/v1beta1"
EMULATED = {"--emulated-version": "kube=1.33"}
SERVED = {"--runtime-config": f"{BETA}=true"}


@pytest.fixture
def old_api(request, tmp_path):
    """An API server of the version that the test names, with what the chart renders for it."""
    reason = harness.missing()
    if reason is not None:
        pytest.skip(reason)
    version, flags = request.param
    try:
        manifests = rendered(
            "--api-versions", f"{BETA}/MutatingAdmissionPolicy" if flags is SERVED else "v1", version=version
        )
    except ToolsMissing as error:
        pytest.skip(str(error))
    plane = harness.ControlPlane(tmp_path, flags=flags)
    with contextlib.ExitStack() as stack:
        stack.callback(plane.stop)
        plane.start()
        api = stack.enter_context(contextlib.closing(Api(plane)))
        prepare(api)
        stack.enter_context(installed(api, manifests))
        fraction = pod(container(**both(**{BATCH_CPU: "1500m"})))
        until(lambda: WHOLE in (refusal(api, fraction) or ""), "policy in force")
        yield api


ORDINARY = pod(container(requests={"cpu": "1500m"}))


@pytest.mark.parametrize("old_api", [("1.33.0", EMULATED)], indirect=True)
def test_without_mutating_policies_the_command_takes_their_place(old_api):
    assert "slacktide convert" in refusal(old_api, ORDINARY, "batch")
    assert refusal(old_api, convert(ORDINARY, Rules()).manifest, "batch") is None
    assert refusal(old_api, ORDINARY) is None


@pytest.mark.parametrize("old_api", [("1.34.0", SERVED)], indirect=True)
def test_where_mutating_policies_are_beta_they_convert_too(old_api):
    def converted():
        status, said = old_api.call("POST", pods("batch") + DRY, ORDINARY)
        return status == 201 and said

    said = until(converted, "conversion")
    assert asked_of(said) == [both(**{BATCH_CPU: "1500"})]
    assert said["spec"]["priority"] == 5500
