"""mutex.cc of Debian's abseil source package, for --config=tsan only.

Thread sanitizer understands absl::Mutex through annotations in mutex.cc. Debian's shared library is
built without them, so every Mutex would be a reported race. Compiled into the test, the annotated
copy takes precedence over the library's.
"""

_SOURCE = ".cache/abseil"

def _abseil_mutex_source_impl(ctx):
    ctx.file("WORKSPACE", "workspace(name = \"abseil_mutex\")\n")
    source = ctx.path(str(ctx.path(Label("//:WORKSPACE")).dirname) + "/" + _SOURCE)
    if not source.get_child("mutex.cc").exists:
        ctx.file("BUILD.bazel", """
genrule(
    name = "mutex",
    outs = ["missing"],
    cmd = "echo 'No %s/mutex.cc: run ./run setup' >&2; exit 1",
    visibility = ["//visibility:public"],
)
""" % _SOURCE)
        return
    ctx.symlink(source.get_child("mutex.cc"), "mutex.cc")
    ctx.file("BUILD.bazel", """
load("@rules_cc//cc:defs.bzl", "cc_library")

cc_library(
    name = "mutex",
    srcs = ["mutex.cc"],
    alwayslink = True,
    copts = ["-w"],
    linkstatic = True,
    visibility = ["//visibility:public"],
)
""")

abseil_mutex_source = repository_rule(
    implementation = _abseil_mutex_source_impl,
    configure = True,
    local = True,
)
