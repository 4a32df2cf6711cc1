"""grpc_cli, which `./run setup` builds from Debian's source package of grpc."""

def _grpc_cli_impl(ctx):
    ctx.file("WORKSPACE", "workspace(name = \"grpc_cli\")\n")
    binary = ctx.path(str(ctx.path(Label("//:WORKSPACE")).dirname) + "/.cache/grpc_cli/grpc_cli")
    if binary.exists:
        ctx.symlink(binary, "grpc_cli")
        ctx.file("BUILD.bazel", """
exports_files(["grpc_cli"])
""")
    else:
        ctx.file("BUILD.bazel", """
genrule(
    name = "missing",
    outs = ["grpc_cli"],
    cmd = "echo 'No grpc_cli: run ./run setup' >&2; exit 1",
    visibility = ["//visibility:public"],
)
""")

grpc_cli = repository_rule(
    implementation = _grpc_cli_impl,
    configure = True,
    local = True,
)
