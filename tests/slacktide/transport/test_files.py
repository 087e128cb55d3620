"""Certificates and tokens in files: what is read, when it is read again, and what is never said."""

from __future__ import annotations

import os
import shutil

import pytest

from slacktide.errors import SettingsError
from slacktide.transport import CertificateFiles, Pems, TransportError, read_token
from tests.pki import Pki

if shutil.which("openssl") is None:
    pytest.skip("no openssl command", allow_module_level=True)


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    made = Pki(tmp_path_factory.mktemp("pki"))
    made.first = made.issue("first", "/CN=one", "subjectAltName=DNS:one\n")
    made.second = made.issue("second", "/CN=two", "subjectAltName=DNS:two\n")
    return made


def content(path):
    with open(path, "rb") as file:
        return file.read()


class Volume:
    """A mounted Secret: the files are links through `..data`, and a renewal moves that one link."""

    def __init__(self, directory):
        self.directory = directory
        self.version = 0

    def put(self, **files):
        self.version += 1
        version = self.directory / f"..{self.version}"
        version.mkdir()
        for name, source in files.items():
            shutil.copy(source, version / name)
        link = self.directory / "..data_tmp"
        link.symlink_to(version.name)
        link.rename(self.directory / "..data")
        for name in files:
            if not (self.directory / name).is_symlink():
                (self.directory / name).symlink_to(f"..data/{name}")
        return [str(self.directory / name) for name in files]


def test_a_secret_that_moves_its_link_is_read_again_once(tmp_path, pki):
    volume = Volume(tmp_path)
    paths = volume.put(crt=pki.first[0], key=pki.first[1], ca=pki.ca)
    files = CertificateFiles(*paths)
    assert files.load() == Pems(content(pki.first[0]), content(pki.first[1]), content(pki.ca))
    assert files.renewed() is None
    volume.put(crt=pki.second[0], key=pki.second[1], ca=pki.ca)
    renewed = files.renewed()
    assert renewed is not None
    assert renewed.certificate == content(pki.second[0])
    assert files.renewed() is None


def test_a_pair_that_is_half_written_waits_until_it_fits(tmp_path, pki, caplog):
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    shutil.copy(pki.first[0], certificate)
    shutil.copy(pki.first[1], key)
    files = CertificateFiles(str(certificate), str(key))
    files.load()
    shutil.copy(pki.second[0], certificate)
    assert files.renewed() is None
    shutil.copy(pki.second[1], key)
    assert files.renewed() == Pems(content(pki.second[0]), content(pki.second[1]))


@pytest.mark.parametrize(
    ("break_it", "word"),
    [
        (lambda crt, key: os.unlink(key), "No such file"),
        (lambda crt, key: key.write_text("x"), "cannot be used"),
        (lambda crt, key: crt.write_bytes(b"\xff\x00"), "cannot be used"),
    ],
)
def test_files_that_cannot_be_used_are_named_and_leave_the_old_ones_in_force(tmp_path, pki, break_it, word):
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    shutil.copy(pki.first[0], certificate)
    shutil.copy(pki.first[1], key)
    files = CertificateFiles(str(certificate), str(key), setting="tls")
    files.load()
    break_it(certificate, key)
    assert files.renewed() is None
    with pytest.raises(SettingsError, match=word) as caught:
        files.load()
    assert str(key) in str(caught.value)


def test_an_encrypted_key_is_refused_and_nobody_is_asked(tmp_path, pki):
    key = str(tmp_path / "locked.key")
    pki.run("pkey", "-in", pki.first[1], "-aes128", "-passout", "pass:secret", "-out", key)
    with pytest.raises(SettingsError, match="cannot be used"):
        CertificateFiles(pki.first[0], key).load()


def test_a_key_is_in_no_representation(pki):
    pems = CertificateFiles(*pki.first).load()
    assert b"PRIVATE" in pems.key
    assert "PRIVATE" not in repr(pems)


@pytest.mark.parametrize("text", [b"", b"  \n", b"two words", b"\x00\x01", "tok\u20acn".encode(), b"x" * 20_000])
def test_what_is_no_token_is_not_repeated(tmp_path, text):
    path = tmp_path / "token"
    path.write_bytes(text)
    with pytest.raises(TransportError, match="token file") as caught:
        read_token(str(path))
    assert not text.strip() or text.decode("utf-8", "replace").strip() not in str(caught.value)


def test_a_token(tmp_path):
    path = tmp_path / "token"
    path.write_text("abc.def.ghi\n")
    assert read_token(str(path)) == "abc.def.ghi"
    with pytest.raises(TransportError, match="No such file"):
        read_token(str(tmp_path / "none"))
