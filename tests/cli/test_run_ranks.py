"""``precomp run --capture`` in several ranks that write one file. Nothing is compiled here."""

from __future__ import annotations

import socket
import subprocess

import pytest
from processes import Place

import precomp
from precomp.cli.ranks import KeptGroup, capture_target
from precomp.errors import PrecompError

SCRIPT = """\
import torch
import torch.distributed as dist
from torch.distributed import destroy_process_group

dist.init_process_group("gloo")
dist.barrier()
destroy_process_group()
"""


def ranks(place: Place) -> list[subprocess.CompletedProcess[str]]:
    """What two ranks say that capture into all.precomp."""
    place.write("script.py", SCRIPT)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    env = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    command = ("-m", "precomp", "run", "--capture", "all.precomp", "script.py")
    started = [place.start(*command, env=env | {"RANK": rank}) for rank in "01"]
    done = []
    for process in started:
        out, err = process.communicate(timeout=300)
        done.append(subprocess.CompletedProcess(command, process.returncode, out, err))
    return done


def test_ranks_of_a_group_write_one_file_although_they_destroyed_the_group(tmp_path):
    place = Place(tmp_path)
    done = ranks(place)
    assert [each.returncode for each in done] == [0, 0], done
    with precomp.Artifact.open(place.work / "all.precomp") as artifact:
        assert [entry.kind for entry in artifact.entries] == ["rules"]


def test_ranks_without_a_group_are_refused(monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert capture_target("all.precomp")[1] and not capture_target("a{rank}.precomp")[1]
    with pytest.raises(PrecompError, match=r"all.precomp was not written: 2 processes .*\{rank\}"):
        KeptGroup().require("all.precomp")
