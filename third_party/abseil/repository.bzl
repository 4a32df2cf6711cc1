"""Parts of Debian's abseil source package, for --config=tsan only.

Thread sanitizer understands absl::Mutex through annotations in mutex.cc. Debian's shared library is
built without them, so every Mutex would be a reported race. So would be a wait for an
absl::Notification that has come already: notification.cc looks at the flag outside the Mutex.
Compiled into the test, the annotated and instrumented copies take precedence over the library's.
"""

_SOURCE = ".cache/abseil"
_FILES = ["mutex.cc", "notification.cc"]

def _abseil_synchronization_impl(ctx):
    ctx.file("WORKSPACE", "workspace(name = \"abseil_synchronization\")\n")
    source = ctx.path(str(ctx.path(Label("//:WORKSPACE")).dirname) + "/" + _SOURCE)
    missing = [name for name in _FILES if not source.get_child(name).exists]
    if missing:
        ctx.file("BUILD.bazel", """
genrule(
    name = "synchronization",
    outs = ["missing"],
    cmd = "echo 'No %s/%s: run ./run setup' >&2; exit 1",
    visibility = ["//visibility:public"],
)
""" % (_SOURCE, missing[0]))
        return
    for name in _FILES:
        ctx.symlink(source.get_child(name), name)
    ctx.file("BUILD.bazel", """
load("@rules_cc//cc:defs.bzl", "cc_library")

cc_library(
    name = "synchronization",
    srcs = %s,
    alwayslink = True,
    copts = ["-w"],
    linkstatic = True,
    visibility = ["//visibility:public"],
)
""" % _FILES)

abseil_synchronization = repository_rule(
    implementation = _abseil_synchronization_impl,
    configure = True,
    local = True,
)
