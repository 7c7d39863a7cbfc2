"""The server that runs each program of the gate tests in a process of its own."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("triggers.py")


class Server:
    def __init__(self, folder):
        self.folder = folder
        self.log = open(folder / "log", "w")
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env=os.environ | runpy.run_path(str(SCRIPT))["ENVIRONMENT"],
        )

    def ask(self, name, mode):
        folder = self.folder / f"{name.replace(':', '_')}-{mode}"
        request = {"name": name, "mode": mode, "tmp": str(folder)}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, (self.folder / "log").read_text()[-4000:]
        answer = json.loads(line)
        assert "error" not in answer, answer["traceback"] if "traceback" in answer else answer
        return answer

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(60)
        self.log.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """Its processes have torch imported, with much of the compiler."""
    server = Server(tmp_path_factory.mktemp("gate"))
    yield server
    server.close()


@pytest.fixture(scope="session")
def bare_server(tmp_path_factory):
    """Its processes start without torch."""
    server = Server(tmp_path_factory.mktemp("gate-bare"))
    yield server
    server.close()
