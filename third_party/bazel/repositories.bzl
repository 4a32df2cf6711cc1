"""Bazel's own rule sets, as Debian installs them under /usr/share/bazel."""

load("@bazel_tools//tools/cpp:lib_cc_configure.bzl", "get_cpu_value")
load("@bazel_tools//tools/cpp:unix_cc_configure.bzl", "configure_unix_toolchain")

_SHARE = "/usr/share/bazel"

def _patched_rules_cc_impl(ctx):
    # rules_cc 0.0.4 loads use_cpp_toolchain, which Bazel 4 does not have. Two files need it; all
    # else is Debian's.
    source = ctx.path(_SHARE + "/rules/cc")
    if not source.exists:
        fail("bazel-rules-cc is not installed: run ./run setup")
    ctx.execute(["cp", "-rL", str(source) + "/.", "."])
    for name in ["cc_flags_supplier.bzl", "compiler_flag.bzl"]:
        path = "cc/private/rules_impl/" + name
        text = ctx.read(path)
        text = text.replace(", \"use_cpp_toolchain\")", ")")
        text = text.replace(
            "use_cpp_toolchain()",
            "[\"@bazel_tools//tools/cpp:toolchain_type\"]",
        )
        ctx.file(path, text)
    ctx.file("WORKSPACE", "workspace(name = \"rules_cc\")\n")

patched_rules_cc = repository_rule(implementation = _patched_rules_cc_impl)

def _stub_coverage_impl(ctx):
    # Every test rule names this target; without a stub Bazel downloads the real one.
    ctx.file("WORKSPACE", "workspace(name = \"remote_coverage_tools\")\n")
    ctx.file("BUILD.bazel", """
filegroup(
    name = "coverage_report_generator",
    visibility = ["//visibility:public"],
)
""")

_stub_coverage = repository_rule(implementation = _stub_coverage_impl)

def _clang_toolchain_impl(ctx):
    # The same autodetection as @local_config_cc, with another compiler. A repository of its own, so
    # that --config=clang and the default do not invalidate each other's outputs.
    clang = ctx.which("clang-14") or ctx.which("clang")
    if not clang:
        ctx.file("BUILD.bazel", "# clang is not installed\n")
        return
    configure_unix_toolchain(ctx, get_cpu_value(ctx), {"gcc": str(clang)})

clang_toolchain = repository_rule(
    implementation = _clang_toolchain_impl,
    configure = True,
    local = True,
)

def debian_rules():
    native.local_repository(name = "bazel_skylib", path = _SHARE + "/tools/skylib")
    native.local_repository(name = "platforms", path = _SHARE + "/platforms")
    native.local_repository(name = "rules_java", path = _SHARE + "/rules/java")
    native.local_repository(name = "rules_proto", path = _SHARE + "/rules/proto")
    _stub_coverage(name = "remote_coverage_tools")
