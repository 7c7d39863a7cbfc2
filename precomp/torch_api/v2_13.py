"""What torch 2.13 has of its own."""

from __future__ import annotations
