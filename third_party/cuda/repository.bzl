"""The CUDA toolkit: /usr/local/cuda, or the wheels that `./run setup --cuda` installs in .cache/cuda."""

# A toolkit of another major version makes programs that want another driver.
_MAJOR = "13"

_MISSING = """
load("@rules_cc//cc:defs.bzl", "cc_library")

genrule(
    name = "missing",
    outs = ["missing.h"],
    cmd = "echo 'No CUDA %s toolkit in /usr/local/cuda or .cache/cuda: run ./run setup --cuda' >&2; exit 1",
)

[cc_library(
    name = name,
    hdrs = ["missing.h"],
    visibility = ["//visibility:public"],
) for name in ["nccl", "runtime"]]
""" % _MAJOR

_FOUND = """
load("@rules_cc//cc:defs.bzl", "cc_library")

# Linked statically: a program then starts on a machine without CUDA, and says what is missing there.
cc_library(
    name = "runtime",
    hdrs = glob(["toolkit/include/**"]),
    includes = ["toolkit/include"],
    linkopts = ["-L{libraries}", "-l:libcudart_static.a", "-ldl", "-lrt", "-lpthread"],
    visibility = ["//visibility:public"],
)

# The header alone: the library is loaded by the program.
cc_library(
    name = "nccl",
    hdrs = ["nccl.h"],
    includes = ["."],
    visibility = ["//visibility:public"],
    deps = [":runtime"],
)
"""

def _first(paths):
    for path in paths:
        if path.exists:
            return path
    return None

def _version_of(ctx, nvcc):
    # "Cuda compilation tools, release 13.0, V13.0.88"
    text = ctx.execute([nvcc, "--version"]).stdout
    return text.partition(", V")[2].partition("\n")[0]

def _cuda_toolkit_impl(ctx):
    ctx.file("WORKSPACE", "workspace(name = \"cuda\")\n")
    cache = ctx.path(str(ctx.path(Label("//:WORKSPACE")).dirname) + "/.cache/cuda/nvidia")
    wheels = ctx.path(str(cache) + "/cu13")
    toolkit = None
    for root in [ctx.path("/usr/local/cuda"), wheels]:
        nvcc = ctx.path(str(root) + "/bin/nvcc")
        headers = [ctx.path(str(root) + "/include/" + name) for name in ["cuda_runtime.h", "cublasLt.h"]]
        if not toolkit and nvcc.exists and all([header.exists for header in headers]):
            version = _version_of(ctx, nvcc)
            toolkit = root if version.startswith(_MAJOR + ".") else None
    cuobjdump = _first([ctx.path(str(wheels) + "/bin/cuobjdump"), ctx.path("/usr/local/cuda/bin/cuobjdump")])
    nccl = _first([ctx.path(str(cache) + "/nccl/include/nccl.h"), ctx.path("/usr/local/cuda/include/nccl.h")])
    if not toolkit or not cuobjdump or not nccl:
        ctx.file("BUILD.bazel", _MISSING)
        ctx.file("toolkit.bzl", "NVCC = \"\"\nVERSION = \"\"\nCUOBJDUMP = \"\"\n")
        return
    ctx.symlink(toolkit, "toolkit")
    ctx.symlink(nccl, "nccl.h")
    libraries = _first([ctx.path(str(toolkit) + "/lib64"), ctx.path(str(toolkit) + "/lib")])
    ctx.file("BUILD.bazel", _FOUND.format(libraries = libraries))
    ctx.file("toolkit.bzl", "NVCC = \"%s/bin/nvcc\"\nVERSION = \"%s\"\nCUOBJDUMP = \"%s\"\n" %
                            (toolkit, version, cuobjdump))

cuda_toolkit = repository_rule(
    implementation = _cuda_toolkit_impl,
    configure = True,
    local = True,
)
