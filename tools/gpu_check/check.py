#!/usr/bin/env python3
"""Checks what was packed beside it on a machine with a GPU; prints JSON. Takes about a minute.

Wants PyTorch for CUDA in the Python that runs it: its Adam is what updates are compared with, and its
NCCL is the one that is loaded. Exit code 1 where a test failed or a program did not run.
"""

import argparse
import glob
import importlib.util
import json
import os
import subprocess
import sys
import tempfile

TESTS = (
    "kernels_on_device_test",
    "step_engine_on_gpu_test",
    "exported_memory_test",
    "nccl_plane_device_test",
)
ELEMENTS = 1000000000
SECONDS = 150

folder = os.path.dirname(os.path.abspath(__file__))


def library_path():
    """Our libraries, then PyTorch's NCCL, if there is one."""
    paths = [os.path.join(folder, "lib")]
    torch = importlib.util.find_spec("torch")
    if torch and torch.origin:
        packages = os.path.dirname(os.path.dirname(torch.origin))
        for library in glob.glob(os.path.join(packages, "nvidia", "nccl", "lib", "libnccl.so.2")):
            paths.append(os.path.dirname(library))
    return ":".join(paths)


def run(command, **environment):
    """Exit code and output; the exit code is 124 where it took too long."""
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as expired:
        return 124, (expired.stdout or b"").decode("utf-8", "replace")
    return done.returncode, done.stdout


def tested(name, libraries):
    with tempfile.TemporaryDirectory() as results:
        path = os.path.join(results, "results.json")
        code, output = run(["./" + name, "--gtest_output=json:" + path], LD_LIBRARY_PATH=libraries)
        result = {"exit_code": code, "cases": {}}
        if os.path.exists(path):
            with open(path, encoding="utf-8") as report:
                for suite in json.load(report)["testsuites"]:
                    for case in suite["testsuite"]:
                        label = "%s.%s" % (suite["name"], case["name"])
                        result["cases"][label] = "failed" if case.get("failures") else "passed"
        if code != 0:
            result["output"] = output[-4000:]
        return result


def lines_of(command, **environment):
    code, output = run(command, **environment)
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return {"exit_code": code, "lines": lines, **({"output": output[-4000:]} if code else {})}


def device():
    query = "name,driver_version,memory.total,ecc.errors.uncorrected.volatile.total"
    code, output = run(["nvidia-smi", "--query-gpu=" + query, "--format=csv,noheader"])
    return output.strip() if code == 0 else None


def main(arguments):
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args(arguments)
    libraries = library_path()
    report = {"device": device(), "tests": {name: tested(name, libraries) for name in TESTS}}
    bench = ["./optshard-bench-gpu-update", "--elements=%d" % ELEMENTS]
    report["updates"] = lines_of(bench, LD_LIBRARY_PATH=libraries)
    report["torch"] = lines_of([sys.executable, "torch_adam.py", str(ELEMENTS)])
    print(json.dumps(report, indent=1))
    parts = [*report["tests"].values(), report["updates"], report["torch"]]
    return 1 if any(part["exit_code"] != 0 for part in parts) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
