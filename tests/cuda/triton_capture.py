"""Captures the launches of triton_samples: ``python triton_capture.py FOLDER``.

Writes FOLDER/all.precomp and prints what Triton's launcher was handed for each call.
"""

from __future__ import annotations

import json
import os
import sys

import triton_driver
from scenes import Buffer
from triton_samples import CALLS

import precomp


def main(folder: str) -> None:
    driver = triton_driver.install()
    launches = {}
    with precomp.capture(os.path.join(folder, "all.precomp")) as captured:
        for name, call in CALLS.items():
            call(Buffer)
            launches[name] = driver.launches[-1]
    report = captured.report()
    print(
        json.dumps({"launches": launches, "kernels": report.triton, "problems": report.problems})
    )


if __name__ == "__main__":
    main(sys.argv[1])
