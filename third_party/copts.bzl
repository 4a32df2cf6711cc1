"""optshard's own cc rules: rules_cc's with the flags of the house."""

load("@rules_cc//cc:defs.bzl", "cc_binary", "cc_library", "cc_test")

OPTSHARD_COPTS = [
    "-std=c++17",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-O2",
    "-g1",
    # Update rules give the same bits in every driver only if nothing is fused (docs/numerics.md).
    "-ffp-contract=off",
] + select({
    # GCC ignores the annotations of absl/base/thread_annotations.h; only clang checks them.
    "@optshard//third_party/bazel:clang": ["-Wthread-safety"],
    "//conditions:default": [],
}) + select({
    # Undefined-behaviour checks triple the compile time at -O2; -O1 takes a third off, and of the thread
    # sanitizer's a sixth.
    "@optshard//third_party/bazel:asan": ["-O1"],
    "@optshard//third_party/bazel:asan_ubsan": ["-O1"],
    "@optshard//third_party/bazel:tsan": ["-O1"],
    "@optshard//third_party/bazel:ubsan": ["-O1"],
    "//conditions:default": [],
})

_PUBLIC = ["//visibility:public"]

def optshard_cc_library(name, copts = [], visibility = _PUBLIC, **kwargs):
    cc_library(name = name, copts = OPTSHARD_COPTS + copts, visibility = visibility, **kwargs)

def optshard_cc_binary(name, copts = [], visibility = _PUBLIC, **kwargs):
    cc_binary(name = name, copts = OPTSHARD_COPTS + copts, visibility = visibility, **kwargs)

def optshard_cc_plugin(name, copts = [], linkopts = [], deps = [], visibility = _PUBLIC, **kwargs):
    """A shared object for dlopen, whose symbols neither leak out nor get replaced from outside.

    Args:
      name: must end in ".so".
      copts: added to the house's.
      linkopts: added to the isolation.
      deps: linked into the object.
      visibility: as usual.
      **kwargs: passed on to cc_binary.
    """
    cc_binary(
        name = name,
        copts = OPTSHARD_COPTS + ["-fvisibility=hidden"] + copts,
        linkopts = ["-Wl,-Bsymbolic", "-Wl,--exclude-libs,ALL"] + linkopts,
        linkshared = True,
        deps = deps,
        visibility = visibility,
        **kwargs
    )

def optshard_embedded_plugin(name, plugin, symbols, visibility = _PUBLIC):
    """A plugin's bytes as a library: read-only data between two symbols.

    Args:
      name: the library.
      plugin: an optshard_cc_plugin.
      symbols: the symbols are this with _begin and _end.
      visibility: as usual.
    """
    native.genrule(
        name = name + "_object",
        srcs = [plugin],
        outs = [name + ".o"],
        cmd = """
            set -e
            work=$$(mktemp -d)
            trap 'rm -rf "$$work"' EXIT
            cp $(location {plugin}) "$$work/plugin"
            (cd "$$work" && ld -r -b binary -z noexecstack -o data.o plugin)
            objcopy --rename-section .data=.rodata,alloc,load,readonly,data,contents \\
                --redefine-sym _binary_plugin_start={symbols}_begin \\
                --redefine-sym _binary_plugin_end={symbols}_end \\
                --strip-symbol _binary_plugin_size "$$work/data.o" $@
        """.format(plugin = plugin, symbols = symbols),
    )
    cc_library(name = name, srcs = [name + ".o"], visibility = visibility)

def optshard_cc_test(
        name,
        copts = [],
        deps = [],
        main = "@debian//:gtest_main",
        size = "small",
        visibility = _PUBLIC,
        **kwargs):
    """A GoogleTest test with its main, or with none of its own if `main` is None.

    Args:
      name: the test.
      copts: added to the house's.
      deps: what it tests.
      main: the library that has main(); None where the test defines it.
      size: "small" means a minute at most.
      visibility: as usual.
      **kwargs: passed on to cc_test.
    """
    cc_test(
        name = name,
        copts = OPTSHARD_COPTS + copts,
        # One file a test: it starts faster, and @abseil_synchronization takes precedence over
        # Debian's.
        linkstatic = kwargs.pop("linkstatic", True),
        deps = deps + ([main] if main else ["@debian//:gtest"]),
        size = size,
        visibility = visibility,
        **kwargs
    )
