"""kubectl and the schemas of Kubernetes' objects, for tests of deploy/; `./run setup` gets both."""

_MISSING = """
genrule(
    name = "kubernetes",
    outs = ["missing"],
    cmd = "echo 'No kubectl: run ./run setup' >&2; exit 1",
    visibility = ["//visibility:public"],
)
"""

_FOUND = """
filegroup(
    name = "kubernetes",
    srcs = ["kubectl"] + glob(["schemas/*.json"]),
    visibility = ["//visibility:public"],
)
"""

def _kubernetes_tools_impl(ctx):
    ctx.file("WORKSPACE", "workspace(name = \"kubernetes_tools\")\n")
    folder = ctx.path(str(ctx.path(Label("//:WORKSPACE")).dirname) + "/.cache/kubernetes")
    for name in ["kubectl", "schemas"]:
        path = folder.get_child(name)
        if not path.exists:
            ctx.file("BUILD.bazel", _MISSING)
            return
        ctx.symlink(path, name)
    ctx.file("BUILD.bazel", _FOUND)

kubernetes_tools = repository_rule(
    implementation = _kubernetes_tools_impl,
    configure = True,
    local = True,
)
