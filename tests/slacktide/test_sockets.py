from __future__ import annotations

import os
import socket

import pytest

from slacktide.errors import SettingsError
from slacktide.sockets import (
    MAX_SOCKET_PATH,
    Listen,
    check_socket_path,
    is_loopback,
    parse_listen,
    private_files,
    remove_socket,
    remove_stale_socket,
)


@pytest.fixture
def serve():
    """Makes listening sockets and closes them at the end."""
    made = []

    def listen(path: str) -> socket.socket:
        server = socket.socket(socket.AF_UNIX)
        made.append(server)
        server.bind(path)
        server.listen()
        return server

    yield listen
    for server in made:
        server.close()


@pytest.mark.parametrize(
    ("text", "listen"),
    [
        ("unix:/run/a.sock", Listen(path="/run/a.sock")),
        ("127.0.0.1:9090", Listen(host="127.0.0.1", port=9090)),
        ("localhost:0", Listen(host="localhost", port=0)),
        (":9090", Listen(port=9090)),
        ("[::1]:9090", Listen(host="::1", port=9090)),
    ],
)
def test_addresses(text, listen):
    assert parse_listen(text) == listen


@pytest.mark.parametrize(
    "text",
    ["", "9090", "host", "host:", "host:http", "host:65536", "host:-1", "::1:9090", "a:\u0661", "unix:", "unix:a"],
)
def test_what_is_no_address(text):
    with pytest.raises(SettingsError, match=r"observe\.listen = "):
        parse_listen(text, "observe.listen")


def test_the_longest_path_is_the_kernels(tmp_path, serve):
    room = MAX_SOCKET_PATH - len(os.fsencode(tmp_path)) - 1
    path = str(tmp_path / ("a" * room))
    serve(check_socket_path(path))
    with pytest.raises(SettingsError, match="108 bytes long, and a socket path holds 107"):
        check_socket_path(path + "a")
    with pytest.raises(OSError, match="too long"):
        serve(path + "a")


def test_length_is_counted_in_bytes():
    with pytest.raises(SettingsError, match="121 bytes"):
        check_socket_path("/" + "\N{EURO SIGN}" * 40)


def test_a_stale_socket_is_removed(tmp_path, serve):
    path = str(tmp_path / "a.sock")
    remove_stale_socket(path)
    serve(path).close()
    assert os.path.exists(path)
    remove_stale_socket(path)
    assert not os.path.exists(path)


def test_a_socket_in_use_is_left_alone(tmp_path, serve):
    path = str(tmp_path / "a.sock")
    serve(path)
    with pytest.raises(SettingsError, match="another process listens there"):
        remove_stale_socket(path)
    assert os.path.exists(path)


def test_a_file_is_left_alone(tmp_path):
    path = tmp_path / "a.sock"
    path.write_text("mine")
    with pytest.raises(SettingsError, match="no socket"):
        remove_stale_socket(str(path))
    assert path.read_text() == "mine"


def test_removing_twice_is_fine(tmp_path, serve):
    path = str(tmp_path / "a.sock")
    serve(path)
    remove_socket(path)
    remove_socket(path)


@pytest.mark.parametrize(
    ("host", "own"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("", False),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.example", False),
        ("127.0.0.1.example", False),
    ],
)
def test_what_is_this_machine_alone(host, own):
    assert is_loopback(host) is own


def test_a_private_socket_is_its_owners_alone_and_the_next_file_is_as_ever(tmp_path, serve):
    path, other = str(tmp_path / "a.sock"), tmp_path / "b"
    usual = os.umask(0o022)
    try:
        with private_files():
            serve(path)
        other.write_text("")
    finally:
        os.umask(usual)
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert other.stat().st_mode & 0o777 == 0o644
