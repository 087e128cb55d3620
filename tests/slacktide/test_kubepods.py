from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.kernel.kubepods import QOS_CLASSES, container_id, pod_path, pod_uid, qos_parent

UID = "0b9c2b5e-6c56-4b8e-9a43-0e3b9b2b6a11"
UID_ = UID.replace("-", "_")
STATIC = "00112233445566778899aabbccddeeff"
ID = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("name", "uid"),
    [
        (f"pod{UID}", UID),
        (f"kubepods-pod{UID_}.slice", UID),
        (f"kubepods-burstable-pod{UID_}.slice", UID),
        (f"kubepods-besteffort-pod{UID_}.slice", UID),
        (f"kubelet-kubepods-besteffort-pod{UID_}.slice", UID),  # --cgroup-root or kind nest deeper
        (f"pod{STATIC}", STATIC),  # a static pod's UID is a hash of its manifest
        (f"kubepods-burstable-pod{STATIC}.slice", STATIC),
        (f"pod{UID.upper()}", UID),
    ],
)
def test_pod_directories_of_both_drivers(name, uid):
    assert pod_uid(name) == uid


@pytest.mark.parametrize(
    "name",
    [
        "",
        "pod",
        "kubepods",
        "kubepods.slice",
        "kubepods-besteffort.slice",
        "besteffort",
        "podman-1.scope",
        f"mypod{UID}",
        f"pod{UID[:-1]}",
        f"pod{UID}0",
        f"pod{UID}.scope",
        f"pod{UID}\n",
        f"cri-containerd-{ID}.scope",
        UID,
    ],
)
def test_what_is_no_pod_directory(name):
    assert pod_uid(name) is None


@pytest.mark.parametrize(
    "name",
    [
        ID,
        f"cri-containerd-{ID}.scope",
        f"crio-{ID}.scope",
        f"crio-{ID}",
        f"docker-{ID}.scope",
        f"libpod-{ID}.scope",
        f"kubepods-besteffort-pod{UID_}.slice:cri-containerd:{ID}",  # containerd and kubelet on different drivers
        f"system.slice:docker:{ID}",
    ],
)
def test_container_leaves(name):
    assert container_id(name) == ID


@pytest.mark.parametrize(
    "name",
    [
        "",
        f"crio-conmon-{ID}.scope",
        f"crio-conmon-{ID}",
        "init.scope",
        "system.slice",
        ID[:-1],
        ID + "0",
        ID.upper(),
        f"{ID}\n",
        f"-{ID}",
        f"cri-containerd{ID}",
        f"pod{UID}",
        f"pod{STATIC}",
        f"kubepods-pod{UID_}.slice",
        "tasks",
        "cgroup.procs",
    ],
)
def test_what_is_no_container_leaf(name):
    assert container_id(name) is None


def test_paths_of_the_cgroupfs_driver():
    assert pod_path("Guaranteed", UID) == f"kubepods/pod{UID}"
    assert pod_path("Burstable", UID) == f"kubepods/burstable/pod{UID}"
    assert pod_path("BestEffort", UID) == f"kubepods/besteffort/pod{UID}"


@pytest.mark.parametrize("qos", ["", "guaranteed", "BE", "../x"])
def test_an_unknown_class_is_an_error_that_lists_the_known(qos):
    with pytest.raises(ValueError, match="Guaranteed, Burstable, BestEffort"):
        qos_parent(qos)


@pytest.mark.parametrize("uid", ["", "..", "a/b", UID + "/..", UID + "\n", "x" * 36])
def test_a_path_is_never_built_from_a_bad_uid(uid):
    with pytest.raises(ValueError, match="no UUID"):
        pod_path("BestEffort", uid)


@given(st.uuids(), st.sampled_from(QOS_CLASSES))
def test_what_is_built_is_read_back(uid, qos):
    leaf = pod_path(qos, str(uid)).rpartition("/")[2]
    assert pod_uid(leaf) == str(uid)


@given(st.text(max_size=80))
def test_reading_names_never_raises_and_is_never_both(name):
    assert pod_uid(name) is None or container_id(name) is None
