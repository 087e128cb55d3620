"""Certificates for tests, made by the openssl command."""

from __future__ import annotations

import subprocess


class Pki:
    """A certificate authority without keyUsage, as many clusters have, and what it signed."""

    def __init__(self, directory, ca_extension="basicConstraints=critical,CA:TRUE"):
        self.directory = directory
        self.ca, ca_key = self.path("ca.crt"), self.path("ca.key")
        config = self.write(
            "ca.cnf",
            f"[req]\ndistinguished_name=dn\nprompt=no\nx509_extensions=v3\n[dn]\nCN=test-ca\n[v3]\n{ca_extension}\n",
        )
        self.run(
            "req", "-x509", *self.ec(), "-nodes", "-keyout", ca_key, "-out", self.ca, "-days", "2", "-config", config
        )

    def path(self, name):
        return f"{self.directory}/{name}"

    def write(self, name, text):
        with open(self.path(name), "w") as file:
            file.write(text)
        return self.path(name)

    @staticmethod
    def ec():
        return ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")

    def run(self, *arguments):
        subprocess.run(["openssl", *arguments], check=True, capture_output=True)

    def issue(self, name, subject, extension, days=2):
        """Certificate and key; with negative `days` it has expired already."""
        key, request, certificate = (self.path(f"{name}.{end}") for end in ("key", "csr", "crt"))
        self.run("req", *self.ec(), "-nodes", "-keyout", key, "-out", request, "-subj", subject)
        extensions = self.write(f"{name}.ext", extension)
        self.run("x509", "-req", "-in", request, "-CA", self.ca, "-CAkey", self.path("ca.key"), "-CAcreateserial",
                 "-days", str(days), "-out", certificate, "-extfile", extensions)  # fmt: skip
        return certificate, key
