"""``python -m precomp``: the command line."""

from precomp.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
