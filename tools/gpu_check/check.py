#!/usr/bin/env python3
"""Checks what was packed beside it on a machine with a GPU; prints JSON. What runs no LibTorch took 55 s on
an H200; each program is ended after 150 s.

Wants PyTorch for CUDA in the Python that runs it, of the version that the programs were built with: they
run its LibTorch, its NCCL and its cuBLASLt are loaded, and its Adam is what updates are compared with. Exit
code 1 where a test failed or a program did not run.
"""

import argparse
import glob
import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile

TESTS = (
    "cublas_products_test",
    "kernels_on_device_test",
    "step_engine_on_gpu_test",
    "sharded_optimizer_on_gpu_test",
    "server_on_gpu_test",
    "exported_memory_test",
    "nccl_plane_device_test",
)
ELEMENTS = 1000000000
SECONDS = 150
# GoogleTest's line at the end of a case.
CASE = re.compile(r"^\[ +(OK|FAILED) +\] (\S+) \(\d+ ms\)$", re.MULTILINE)

folder = os.path.dirname(os.path.abspath(__file__))


def library_path(programs):
    """Our libraries, then PyTorch's, and its NCCL and cuBLASLt, if there are any."""
    paths = [os.path.join(programs, "lib")]
    torch = importlib.util.find_spec("torch")
    if torch and torch.origin:
        paths.append(os.path.join(os.path.dirname(torch.origin), "lib"))
        packages = os.path.dirname(os.path.dirname(torch.origin))
        for library in ("nccl/lib/libnccl.so.2", "cu13/lib/libcublasLt.so.13"):
            paths += map(os.path.dirname, glob.glob(os.path.join(packages, "nvidia", library)))
    return ":".join(paths)


def run(command, **environment):
    """Exit code and output; the exit code is 124 where it took too long, 127 where it cannot be run."""
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as expired:
        return 124, (expired.stdout or b"").decode("utf-8", "replace")
    except OSError as error:
        return 127, str(error)
    return done.returncode, done.stdout


def tested(program, libraries):
    code, output = run([program], LD_LIBRARY_PATH=libraries)
    # Also of a program that was ended.
    cases = {label: "passed" if mark == "OK" else "failed" for mark, label in CASE.findall(output)}
    return {"exit_code": code, "cases": cases, **({"output": output[-4000:]} if code else {})}


def lines_of(command, **environment):
    code, output = run(command, **environment)
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return {"exit_code": code, "lines": lines, **({"output": output[-4000:]} if code else {})}


def device():
    query = "name,driver_version,memory.total,ecc.errors.uncorrected.volatile.total"
    code, output = run(["nvidia-smi", "--query-gpu=" + query, "--format=csv,noheader"])
    return output.strip() if code == 0 else None


def libtorch(programs):
    """Its version here and the one that programs were built with. With others they fail in many ways."""
    with open(os.path.join(programs, "torch_version"), encoding="utf-8") as version:
        built_with = version.read().strip()
    try:
        here = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        here = None
    if here is None or here.partition("+")[0] != built_with:
        print("PyTorch %s is needed, and %s is here" % (built_with, here), file=sys.stderr)
    return {"built_with": built_with, "here": here}


def checked(programs):
    libraries = library_path(programs)
    report = {"device": device(), "libtorch": libtorch(programs)}
    report["tests"] = {name: tested(os.path.join(programs, name), libraries) for name in TESTS}
    for name, program in (("updates", "optshard-bench-gpu-update"), ("steps", "optshard-bench-gpu-step")):
        command = [os.path.join(programs, program), "--elements=%d" % ELEMENTS]
        report[name] = lines_of(command, LD_LIBRARY_PATH=libraries)
    report["torch"] = lines_of([sys.executable, os.path.join(folder, "torch_adam.py"), str(ELEMENTS)])
    return report


def main(arguments):
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args(arguments)
    with tempfile.TemporaryDirectory() as programs:
        with tarfile.open(os.path.join(folder, "programs.tar.xz")) as archive:
            archive.extractall(programs)
        report = checked(programs)
    print(json.dumps(report, indent=1))
    parts = [*report["tests"].values(), report["updates"], report["steps"], report["torch"]]
    return 1 if any(part["exit_code"] != 0 for part in parts) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
