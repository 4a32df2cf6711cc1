"""Debian's static gRPC, for the libraries that are installed.

Its archives are position independent. In lib/, which the linker searches before the system's folders,
they stand for gRPC's shared libraries, and an empty archive for libprotobuf.so, which
@protobuf_source is linked in place of.
"""

_ARCHIVES = ["address_sorting", "gpr", "grpc", "grpc++", "grpc++_reflection", "upb"]

def _grpc_static_impl(ctx):
    ctx.file("WORKSPACE", "workspace(name = \"grpc_static\")\n")
    for name in _ARCHIVES:
        file = "lib%s.a" % name

        # An absolute path where gcc finds it, and else the name.
        archive = ctx.execute(["gcc", "-print-file-name=" + file]).stdout.strip()
        if archive == file:
            fail("No %s: is libgrpc++-dev installed? Run ./run setup." % file)
        ctx.symlink(archive, "lib/" + file)
    ctx.file("lib/libprotobuf.a", "!<arch>\n")
    ctx.file("BUILD.bazel", """
filegroup(
    name = "archives",
    srcs = glob(["lib/*.a"]),
    visibility = ["//visibility:public"],
)
""")

grpc_static = repository_rule(
    implementation = _grpc_static_impl,
    configure = True,
    local = True,
)
