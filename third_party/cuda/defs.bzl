"""optshard's CUDA rules: what they build exists with --config=cuda only, so that `//...` stays free of it."""

load("@cuda//:toolkit.bzl", "CUOBJDUMP", "NVCC", "VERSION")
load("//third_party:copts.bzl", "optshard_cc_binary", "optshard_cc_library", "optshard_cc_test")

CUDA_ONLY = select({
    "@optshard//third_party/cuda:enabled": [],
    "//conditions:default": ["@optshard//third_party/cuda:needs_config_cuda"],
})

# Machine code for the generations from Ampere on that training runs on, and PTX of the oldest, which
# a driver compiles for all others.
ARCHITECTURES = ["80", "90", "100", "120"]

_COPTS = [
    "-std=c++17",
    "-O3",
    # Bits equal the CPU's: nothing is fused, nothing approximated, denormals stay.
    "-fmad=false",
    "-ftz=false",
    "-prec-div=true",
    "-prec-sqrt=true",
    "-Xcompiler=-fPIC,-O2,-ffp-contract=off,-fno-semantic-interposition",
    "-Werror=all-warnings",
    "-Xptxas=-v",
] + ["-gencode=arch=compute_{0},code=sm_{0}".format(a) for a in ARCHITECTURES] + [
    "-gencode=arch=compute_{0},code=compute_{0}".format(ARCHITECTURES[0]),
]

def _cuda_object_impl(ctx):
    if not NVCC:
        fail("No CUDA toolkit in /usr/local/cuda or .cache/cuda: run ./run setup --cuda")
    made = ctx.actions.declare_file(ctx.label.name + ".o")
    usage = ctx.actions.declare_file(ctx.label.name + ".usage")
    context = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps]).compilation_context
    flags = ctx.actions.args()
    flags.add_all(_COPTS + ctx.attr.copts)
    flags.add_all(context.defines, format_each = "-D%s")
    flags.add("-I.")
    flags.add("-I" + ctx.bin_dir.path)
    flags.add_all(context.quote_includes, before_each = "-I")
    flags.add_all(context.includes, before_each = "-I")
    flags.add_all(context.system_includes, before_each = "-isystem")

    # A rule's file is C++ to the CPU's compiler and CUDA to this one.
    flags.add_all(["-x", "cu", "-c", ctx.file.src, "-o", made])
    ctx.actions.run_shell(
        inputs = depset([ctx.file.src], transitive = [context.headers]),
        outputs = [made, usage],
        arguments = [NVCC, usage.path, flags],
        # What ptxas says of registers and spills is an output, for tests; errors are shown.
        command = "nvcc=$1 usage=$2; shift 2; \"$nvcc\" \"$@\" 2>\"$usage\" || " +
                  "{ grep -v '^ptxas info' \"$usage\" >&2; exit 1; }",
        env = {"PATH": "/usr/bin:/bin"},
        mnemonic = "Nvcc",
        progress_message = "Compiling %s for GPUs with nvcc %s" % (ctx.file.src.short_path, VERSION),
    )
    return [
        DefaultInfo(files = depset([made]), runfiles = ctx.runfiles([made])),
        OutputGroupInfo(usage = depset([usage])),
    ]

_cuda_object = rule(
    implementation = _cuda_object_impl,
    attrs = {
        "copts": attr.string_list(),
        "deps": attr.label_list(providers = [CcInfo]),
        "src": attr.label(allow_single_file = [".cu", ".cc"], mandatory = True),
    },
)

def optshard_cuda_library(name, src, hdrs = [], copts = [], deps = [], alwayslink = False, **kwargs):
    """One source for nvcc, as a library.

    Args:
      name: the library; NAME_object is the object file, and NAME_usage what ptxas says of each kernel.
      src: a .cu, or a .cc that is CUDA to nvcc.
      hdrs: of the library.
      copts: added to the house's.
      deps: libraries.
      alwayslink: nothing refers to the object: it registers itself.
      **kwargs: of cc_library.
    """
    _cuda_object(
        name = name + "_object",
        src = src,
        copts = copts,
        target_compatible_with = CUDA_ONLY,
        deps = deps + ([":" + name + "_headers"] if hdrs else []),
        visibility = ["//visibility:public"],
    )
    native.filegroup(
        name = name + "_usage",
        srcs = [":" + name + "_object"],
        output_group = "usage",
        visibility = ["//visibility:public"],
    )
    if hdrs:
        optshard_cc_library(name = name + "_headers", hdrs = hdrs, deps = deps)
    optshard_cc_library(
        name = name,
        srcs = [":" + name + "_object"],
        hdrs = hdrs,
        alwayslink = alwayslink,
        target_compatible_with = CUDA_ONLY,
        deps = deps + ["@cuda//:runtime"],
        **kwargs
    )

def optshard_cuda_cc_library(name, deps = [], **kwargs):
    """C++ that calls the CUDA runtime."""
    optshard_cc_library(
        name = name,
        target_compatible_with = CUDA_ONLY,
        deps = deps + ["@cuda//:runtime"],
        **kwargs
    )

def optshard_cuda_cc_binary(name, **kwargs):
    optshard_cc_binary(name = name, target_compatible_with = CUDA_ONLY, **kwargs)

def optshard_cuda_cc_test(name, tags = [], needs_gpu = True, **kwargs):
    """A test of what exists with --config=cuda only.

    Args:
      name: the test.
      tags: as usual.
      needs_gpu: run by `./run test --gpu` only. False: also on a machine without one, by
        `./run test --config=cuda`.
      **kwargs: of optshard_cc_test.
    """
    optshard_cc_test(
        name = name,
        target_compatible_with = CUDA_ONLY,
        tags = tags + (["gpu"] if needs_gpu else []),
        **kwargs
    )

def cuobjdump():
    """The program that shows what is in an object: for tests."""
    return CUOBJDUMP
