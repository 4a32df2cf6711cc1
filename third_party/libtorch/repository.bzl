"""LibTorch from the PyPI wheel that `./run setup` installs into .venv."""

# Old copies of libraries that Debian ships newer, and what only Python or CUDA code includes. Fewer
# headers also make each compile action cheaper: Bazel checks all of them.
_HIDDEN = [
    "ATen/cudnn",
    "ATen/hip",
    "ATen/miopen",
    "ATen/mps",
    "ATen/native",
    "ATen/test",
    "ATen/xpu",
    "c10/hip",
    "c10/metal",
    "c10/test",
    "c10/xpu",
    "fbgemm",
    "fmt",
    "google",
    "kineto",
    "oneapi",
    "pybind11",
    "tensorpipe",
    "torch/csrc/inductor",
    "torch/csrc/stable",
]

def _link_tree(ctx, source, target, relative):
    """Links source to target, one directory level deeper where something below is hidden."""
    inner = [path for path in _HIDDEN if path.startswith(relative)]
    if relative and not inner:
        ctx.symlink(source, target)
        return []
    return [
        (entry, target + "/" + entry.basename, relative + entry.basename)
        for entry in source.readdir()
        if relative + entry.basename not in _HIDDEN
    ]

def _expose_headers(ctx, include):
    # Starlark has no recursion; the hidden paths are at most three levels deep.
    level = [(include, "include", "")]
    for _ in range(4):
        below = []
        for source, target, relative in level:
            below += _link_tree(ctx, source, target, relative + "/" if relative else "")
        level = below

def _libtorch_wheel_impl(ctx):
    ctx.file("WORKSPACE", "workspace(name = \"libtorch\")\n")
    packages = ctx.path(str(ctx.path(Label("//:WORKSPACE")).dirname) + "/.venv/lib/python3.11/site-packages")
    torch = packages.get_child("torch")
    if not torch.exists:
        # Servers build without LibTorch; only what needs it fails, saying why.
        ctx.file("BUILD.bazel", """
genrule(
    name = "torch",
    outs = ["missing.h"],
    cmd = "echo 'No LibTorch in .venv: run ./run setup' >&2; exit 1",
    visibility = ["//visibility:public"],
)
""")
        return
    _expose_headers(ctx, torch.get_child("include"))
    lib = str(torch.get_child("lib"))
    cuda = str(ctx.path(str(packages) + "/nvidia/cu13/lib"))
    linkopts = [
        "-L" + lib,
        # Not libtorch.so, which needs libtorch_cuda.so and all of CUDA.
        "-Wl,--no-as-needed",
        "-ltorch_cpu",
        "-lc10",
        "-Wl,--as-needed",
        # Absolute: binaries run from anywhere on this machine.
        "-Wl,-rpath," + lib,
        "-Wl,-rpath-link," + lib,
        "-Wl,-rpath-link," + cuda,
    ]
    ctx.file("BUILD.bazel", """
load("@rules_cc//cc:defs.bzl", "cc_library")

cc_library(
    name = "torch",
    hdrs = glob(["include/**/*.h", "include/**/*.hpp"]),
    # "includes" means -isystem: warnings in these headers are not ours.
    includes = ["include", "include/torch/csrc/api/include"],
    linkopts = %r,
    visibility = ["//visibility:public"],
)
""" % linkopts)

libtorch_wheel = repository_rule(
    implementation = _libtorch_wheel_impl,
    configure = True,
    local = True,
)
