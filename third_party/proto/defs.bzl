"""C++ libraries from .proto files, by Debian's protoc."""

load("@rules_cc//cc:defs.bzl", "cc_library")

def _protos_of(label):
    """The label of the sources that optshard_proto_library declares beside `label`."""
    if ":" not in label:
        label = label + ":" + label.split("/")[-1]
    return label + "_protos"

def optshard_proto_library(name, srcs, deps = [], grpc = False, visibility = ["//visibility:public"]):
    """A cc_library of generated messages, and services with grpc = True.

    Files are imported and included from the root of their repository: "proto/optshard/v1/x.proto" gives
    "proto/optshard/v1/x.pb.h" and "x.grpc.pb.h".

    Args:
      name: the library.
      srcs: .proto files of this package.
      deps: other optshard_proto_library targets that srcs import.
      grpc: whether srcs define services; only then does the library depend on gRPC.
      visibility: as usual.
    """
    native.filegroup(
        name = name + "_protos",
        srcs = srcs + [_protos_of(dep) for dep in deps],
        visibility = visibility,
    )
    outs = []
    for src in srcs:
        stem = src[:-len(".proto")]
        outs += [stem + ".pb.h", stem + ".pb.cc"]
        if grpc:
            outs += [stem + ".grpc.pb.h", stem + ".grpc.pb.cc"]

    # The root of this repository, which is not that of the workspace where another one uses it.
    repository = native.repository_name()[1:]
    root = "external/" + repository if repository else "."
    out = "$(GENDIR)" + ("/" + root if repository else "")
    flags = "--cpp_out=" + out
    if grpc:
        flags += " --plugin=protoc-gen-grpc=/usr/bin/grpc_cpp_plugin --grpc_out=" + out
    native.genrule(
        name = name + "_generated",
        srcs = srcs + [_protos_of(dep) for dep in deps],
        outs = outs,
        cmd = "/usr/bin/protoc --proto_path=%s --proto_path=/usr/include %s %s" % (
            root,
            flags,
            " ".join(["$(location %s)" % src for src in srcs]),
        ),
        message = "Generating C++ from " + ", ".join(srcs),
        visibility = ["//visibility:private"],
    )
    cc_library(
        name = name,
        srcs = [out for out in outs if out.endswith(".cc")],
        hdrs = [out for out in outs if out.endswith(".h")],
        # Generated code is protoc's, not ours to warn about.
        copts = ["-w"],
        deps = deps + (["@debian//:grpcpp"] if grpc else ["@debian//:protobuf"]),
        visibility = visibility,
    )
