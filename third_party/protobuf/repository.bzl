"""protobuf, compiled from Debian's source package, for the libraries that are installed.

Debian's libprotobuf.a is not position independent, so that no shared object can contain it, and its
libprotobuf.so shows its symbols to the whole process
(docs/decisions/0023-installed-libraries-contain-grpc.md).
"""

_SOURCE = ".cache/protobuf"

def _files_of_list(ctx, path):
    """The sources that a libprotobuf*.cmake of protobuf's names, from the folder above google/."""
    found = []
    for line in ctx.read(path).split("\n"):
        _, separator, file = line.strip().partition("${protobuf_SOURCE_DIR}/src/")
        if separator and file.endswith(".cc"):
            found.append(file)
    if not found:
        fail("%s names no sources: run ./run setup" % path)
    return found

def _protobuf_source_impl(ctx):
    ctx.file("WORKSPACE", "workspace(name = \"protobuf_source\")\n")
    source = ctx.path(str(ctx.path(Label("//:WORKSPACE")).dirname) + "/" + _SOURCE)
    if not source.exists:
        ctx.file("BUILD.bazel", """
genrule(
    name = "protobuf",
    outs = ["missing"],
    cmd = "echo 'No %s: run ./run setup' >&2; exit 1",
    visibility = ["//visibility:public"],
)
""" % _SOURCE)
        return
    ctx.symlink(source.get_child("google"), "google")
    files = []
    for name in ["libprotobuf-lite.cmake", "libprotobuf.cmake"]:
        files += _files_of_list(ctx, source.get_child(name))
    ctx.file("BUILD.bazel", """
load("@rules_cc//cc:defs.bzl", "cc_library")

cc_library(
    name = "protobuf",
    srcs = %r + glob(["google/**/*.h", "google/**/*.inc"]),
    copts = ["-w", "-O2", "-DHAVE_PTHREAD", "-DHAVE_ZLIB", "-Iexternal/protobuf_source"],
    linkopts = ["-lz", "-pthread"],
    visibility = ["//visibility:public"],
)
""" % files)

protobuf_source = repository_rule(
    implementation = _protobuf_source_impl,
    configure = True,
    local = True,
)
