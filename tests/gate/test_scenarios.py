"""Nesting, threads, tasks, generators, what is refused and what is left behind."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("scenarios.py").read_text()
HELPERS = {"wave", "fresh", "raises", "swallowing", "generator_fresh", "work", "_late_module"}
SCENES = [
    node.name
    for node in ast.parse(SOURCE).body
    if isinstance(node, ast.FunctionDef) and node.name not in HELPERS
]


@pytest.mark.parametrize("scene", SCENES)
def test_scene(server, scene):
    server.ask(scene, "scenario")
