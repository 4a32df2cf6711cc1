"""Shared libraries for programs that are built elsewhere."""

load("@rules_cc//cc:defs.bzl", "cc_binary")
load("//install:version.bzl", "OPTSHARD_VERSION")

def optshard_installed_library(name, shows):
    """A shared library with gRPC and protobuf inside, which shows what exports.lds names.

    Args:
      name: "libNAME.so"; its soname has the version behind it.
      shows: libraries that programs call. What they need is in it, too.
    """
    native.filegroup(
        name = name + "_objects",
        srcs = shows,
        output_group = "compilation_outputs",
    )
    cc_binary(
        name = name,
        # As objects: of a library, the linker takes only what something refers to.
        srcs = [":%s_objects" % name],
        additional_linker_inputs = [
            "exports.lds",
            "@grpc_static//:archives",
        ],
        linkopts = [
            "-Wl,--version-script=$(location exports.lds)",
            "-Wl,-soname,%s.%s" % (name, OPTSHARD_VERSION),
            "-Wl,-z,defs",
            "-Lexternal/grpc_static/lib",
        ],
        linkshared = True,
        visibility = ["//visibility:public"],
        deps = shows + ["@protobuf_source//:protobuf"],
    )

def _transitive_headers_impl(ctx):
    headers = [dep[CcInfo].compilation_context.headers for dep in ctx.attr.deps]
    own = [
        header
        for header in depset(transitive = headers).to_list()
        if header.owner.workspace_name == ctx.label.workspace_name
    ]
    return [DefaultInfo(files = depset(own), runfiles = ctx.runfiles(files = own))]

transitive_headers = rule(
    implementation = _transitive_headers_impl,
    doc = "This repository's headers that may be reached from those of `deps`, as files.",
    attrs = {"deps": attr.label_list(providers = [CcInfo])},
)
