"""Serves a test inside the guest, over TCP: one JSON request a line, one JSON answer. Of the standard library only.

Each request carries the secret of this guest as "secret": from here all files of the machine outside can be read.

{"do": "read", "path": PATH}              -> {"text": TEXT}
{"do": "write", "path": PATH, "text": T}  -> {}
{"do": "run", "script": SH, "seconds": S} -> {"status": N, "text": OUTPUT}
{"do": "get", "url": URL}                 -> {"text": BODY}
{"do": "times", "paths": [P...]}          -> {"times": {PATH: mtime or null}}
anything that fails                       -> {"error": "NAME: words"}
"""

import glob
import hmac
import json
import os
import socketserver
import subprocess
import sys


def read(request):
    with open(request["path"]) as file:
        return {"text": file.read()}


def reads(request):
    return {"texts": [text_of(path) for path in request["paths"]]}


def text_of(path):
    try:
        return read({"path": path})["text"]
    except OSError:
        return None


def write(request):
    with open(request["path"], "w") as file:
        file.write(request["text"])
    return {}


def run(request):
    done = subprocess.run(
        ["/bin/sh", "-c", request["script"]],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=request["seconds"],
        check=False,
    )
    return {"status": done.returncode, "text": done.stdout.decode("utf-8", "replace")}


def find(request):
    return {"paths": sorted(glob.glob(request["pattern"], recursive=True))}


def get(request):
    # It takes an emulated machine seconds to import.
    import urllib.request

    with urllib.request.urlopen(request["url"], timeout=request["seconds"]) as answer:
        return {"text": answer.read().decode("utf-8", "replace")}


ACTS = {"read": read, "reads": reads, "write": write, "run": run, "find": find, "get": get}


class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            request = json.loads(line)
            if not hmac.compare_digest(request.get("secret", ""), os.environ["SECRET"]):
                return
            try:
                answer = ACTS[request["do"]](request)
            except Exception as error:  # noqa: BLE001 - whatever it is, the test out there is told
                answer = {"error": f"{type(error).__name__}: {error}"}
            self.wfile.write(json.dumps(answer).encode() + b"\n")


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


if __name__ == "__main__":
    os.environ["PATH"] = "/run/node:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    Server(("0.0.0.0", int(sys.argv[1])), Handler).serve_forever()
