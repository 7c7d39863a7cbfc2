"""Runs as the main program of a child of ``precomp run``: see ``precomp.cli.children``."""

from precomp.cli.children import main_content

globals().update(main_content())
