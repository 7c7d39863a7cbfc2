"""Which torch the tests run on."""

from importlib.metadata import version

OLD = tuple(map(int, version("torch").split(".")[:2])) < (2, 13)
"""torch 2.11: some of what is expected here is what later versions do."""
