"""System libraries of Debian's -dev packages as @debian//:NAME."""

# Headers lie in /usr/include, which the compiler searches anyway: a target here carries link flags
# and is what makes a dependency visible to the layering tests.

_ABSL = " ".join([
    "absl_" + name
    for name in [
        "base",
        "bits",
        "cleanup",
        "cord",
        "flat_hash_map",
        "flat_hash_set",
        "hash",
        "inlined_vector",
        "optional",
        "random_random",
        "span",
        "status",
        "statusor",
        "str_format",
        "strings",
        "symbolize",
        "failure_signal_handler",
        "synchronization",
        "time",
        "variant",
    ]
])

# name -> (pkg-config modules, flags beside those, targets of this package it needs)
_LIBRARIES = {
    "absl": (_ABSL, [], []),
    "absl_flags": ("absl_flags absl_flags_parse absl_flags_usage", [], ["absl"]),
    "cli11": ("", [], []),
    "gloo": ("", ["-lgloo"], []),
    "grpcpp": ("grpc++", [], ["protobuf", "absl"]),
    "grpcpp_reflection": ("", ["-lgrpc++_reflection"], ["grpcpp"]),
    "gtest": ("gmock gtest", [], []),
    "gtest_main": ("gmock_main", [], ["gtest"]),
    "highway": ("libhwy", [], []),
    "json": ("", [], []),
    "onednn": ("", ["-ldnnl", "-lgomp"], []),  # oneDNN's threads are those of OpenMP
    "protobuf": ("protobuf", [], []),
    "spdlog": ("spdlog", [], []),
    "xxhash": ("libxxhash", [], []),
    "zlib": ("zlib", [], []),
}

# pkg-config gives these too; the macros of //third_party:copts.bzl set the language themselves.
_HEADER_DEFINES = {"spdlog": ["SPDLOG_SHARED_LIB", "SPDLOG_COMPILED_LIB", "SPDLOG_FMT_EXTERNAL"]}

def _pkg_config(ctx, modules):
    if not modules:
        return []
    result = ctx.execute(["pkg-config", "--libs"] + modules.split(" "))
    if result.return_code != 0:
        fail("pkg-config --libs %s: %sRun ./run setup." % (modules, result.stderr))
    flags = []
    for flag in result.stdout.strip().split(" "):
        # pkg-config repeats a library once per dependant. The libraries are shared, so the order
        # between them does not matter.
        if flag and flag not in flags:
            flags.append(flag)
    return flags

def _debian_libraries_impl(ctx):
    lines = [
        "load(\"@rules_cc//cc:defs.bzl\", \"cc_library\")",
        "package(default_visibility = [\"//visibility:public\"])",
        # Under tsan a Mutex and a Notification must be instrumented: see //third_party/abseil.
        "config_setting(name = \"tsan\", define_values = {\"optshard_sanitizer\": \"tsan\"})",
    ]
    for name, (modules, flags, deps) in sorted(_LIBRARIES.items()):
        labels = repr([":" + dep for dep in deps])
        if name == "absl":
            labels += " + select({\":tsan\": [\"@abseil_synchronization//:synchronization\"], " + \
                      "\"//conditions:default\": []})"
        if name == "grpcpp":
            labels += " + select({\":tsan\": [\"@optshard//third_party/grpc:tsan_suppressions\"], " + \
                      "\"//conditions:default\": []})"
        lines.append("cc_library(name = %r, linkopts = %r, defines = %r, deps = %s)" % (
            name,
            _pkg_config(ctx, modules) + flags,
            _HEADER_DEFINES.get(name, []),
            labels,
        ))
    ctx.file("WORKSPACE", "workspace(name = \"debian\")\n")
    ctx.file("BUILD.bazel", "\n".join(lines) + "\n")

debian_libraries = repository_rule(
    implementation = _debian_libraries_impl,
    configure = True,
    local = True,
)
