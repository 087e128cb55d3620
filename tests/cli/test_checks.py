import json
import os

import pytest

from cli import checks
from cli.main import main
from slacktide.kernel.hierarchy import Hierarchy, Mount, Version
from standalone.state import create


def named(found, name):
    (check,) = [check for check in found if check.name == name]
    return check


def v2(tmp_path, *files):
    mount = Mount(str(tmp_path), Version.V2)
    for file in files:
        (tmp_path / file).write_text("cpu memory\n")
    return Hierarchy({"cpu": mount, "memory": mount}, str(tmp_path))


def test_bare_machine_skips_and_never_raises(tmp_path):
    found = checks.all_checks(str(tmp_path / "s"), Hierarchy({}, None), proc=str(tmp_path), sys_root=str(tmp_path))
    skipped = {check.name for check in found if check.verdict == "skipped"}
    assert {"cgroups", "cgroup cpu", "cgroup memory", "cpu.idle", "node psi", "run delay", "resctrl", "perf"} <= skipped
    assert all(check.consequence for check in found if check.verdict != "ok")


def test_every_mount_is_tried_and_left_as_it_was(tmp_path):
    hierarchy = v2(tmp_path)
    with checks.own_groups(hierarchy) as groups:
        assert os.path.isdir(groups[str(tmp_path)])
        assert checks.writable(hierarchy.controllers["cpu"], groups[str(tmp_path)]).verdict == "ok"
    assert os.listdir(tmp_path) == []


def test_a_mount_that_cannot_be_written_says_why(tmp_path):
    mount = Mount(str(tmp_path / "gone"), Version.V1)
    with checks.own_groups(Hierarchy({"cpu": mount}, None)) as groups:
        check = checks.writable(mount, groups[mount.path])
    assert check.verdict == "skipped"
    assert check.found == "No such file or directory"


def test_knobs_are_looked_for_in_a_group_of_our_own(tmp_path):
    hierarchy = v2(tmp_path, "cgroup.subtree_control")
    with checks.own_groups(hierarchy) as groups:
        own = groups[str(tmp_path)]
        try:
            with open(os.path.join(own, "cpu.max.burst"), "w"):
                pass
            found = checks.knobs(hierarchy, groups)
        finally:
            os.unlink(os.path.join(own, "cpu.max.burst"))
    assert named(found, "cpu burst").found == "cpu.max.burst"
    assert named(found, "cpu.idle").found == "this kernel has none (cgroup v2)"


def test_v2_without_delegation_is_not_called_missing(tmp_path):
    hierarchy = v2(tmp_path)
    with checks.own_groups(hierarchy) as groups:
        found = checks.knobs(hierarchy, groups)
    assert "not known before `up`" in named(found, "cpu.idle").found


def proc(tmp_path, **files):
    for name, text in files.items():
        path = tmp_path / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(tmp_path)


def test_processors(tmp_path):
    root = proc(tmp_path, stat="cpu  1\ncpu0 1\ncpu1 1\n", devices__system__cpu__smt__active="1\n")
    os.makedirs(tmp_path / "devices/system/node/node0")
    assert checks.processors(root, root).found == "2 CPUs, SMT on, 1 NUMA node"
    proc(tmp_path, stat="cpu  1\ncpu0 1\n")
    assert checks.processors(root, root).verdict == "skipped"


def test_memory_is_not_zero_where_it_is_not_known(tmp_path):
    root = proc(tmp_path, meminfo="MemTotal:       2048 kB\nMemAvailable:   1024 kB\n")
    assert checks.memory(root).found == "2Mi, 1Mi available"
    proc(tmp_path, meminfo="MemTotal:       2048 kB\n")
    assert checks.memory(root).found == "not known"


@pytest.mark.parametrize(("text", "verdict"), [("1 2 3", "ok"), ("0 5 0", "ok"), ("0 0 0", "skipped"), ("", "skipped")])
def test_run_delay(tmp_path, text, verdict):
    assert checks.run_delay(proc(tmp_path, self__schedstat=text)).verdict == verdict


def test_resctrl_step_by_step(tmp_path):
    root = proc(tmp_path, cpuinfo="flags : fpu\n", filesystems="nodev\tproc\n")
    assert "not in this kernel" in checks.resctrl(root, root).found
    proc(tmp_path, filesystems="nodev\tresctrl\n")
    assert "no RDT" in checks.resctrl(root, root).found
    proc(tmp_path, cpuinfo="flags : fpu rdt_a cat_l3 mba\n")
    assert "not mounted" in checks.resctrl(root, root).found
    proc(tmp_path, fs__resctrl__schemata="L3:0=f\n")
    assert checks.resctrl(root, root).verdict == "ok"


def test_missing_package_is_a_problem_that_says_what_to_do():
    (check,) = checks.packages({"duckdb": "the history", "os": "all"}, lambda name: name == "os")
    assert (check.name, check.verdict) == ("package duckdb", "problem")
    assert "pip install 'slacktide[all]'" in check.consequence


def test_user():
    assert checks.user(0).verdict == "ok"
    assert checks.user(1000).verdict == "skipped"


def test_state_directory_is_judged_and_not_made(tmp_path):
    root = str(tmp_path / "s")
    found = checks.directory(root)
    assert {check.verdict for check in found} == {"ok"}
    assert "not made yet" in named(found, "state").found
    assert not os.path.exists(root)


def test_unusable_state_directories_are_problems(tmp_path):
    assert named(checks.directory("/" + "x" * 120), "socket path").verdict == "problem"
    root = str(tmp_path)
    create(root)
    (tmp_path / "state.json").write_text(json.dumps({"format": 99, "instance": "00000000"}))
    assert "format 99" in named(checks.directory(root), "state").found


def test_doctor_exits_1_on_a_problem_and_prints_json(command, app, out, err):
    app.state_option = "/" + "x" * 120
    assert command("doctor", "--output", "json") == 1
    report = json.loads(out.text)
    assert report["problems"] == 1
    assert {check["verdict"] for check in report["checks"]} <= {"ok", "skipped", "problem"}


def test_doctor_on_this_machine_leaves_no_group_behind(capsys, tmp_path):
    before = {path for path in _groups() if "doctor" in path}
    assert main(["doctor", "--state", str(tmp_path / "s")]) in {0, 1}
    assert {path for path in _groups() if "doctor" in path} == before
    assert "python" in capsys.readouterr().out


def _groups():
    for top in ("/sys/fs/cgroup", *(os.path.join("/sys/fs/cgroup", name) for name in _listed("/sys/fs/cgroup"))):
        yield from (os.path.join(top, name) for name in _listed(top))


def _listed(path):
    try:
        return os.listdir(path)
    except OSError:
        return []
