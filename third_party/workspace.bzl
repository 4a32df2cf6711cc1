"""What a workspace needs to build optshard, its own or another one's.

All of it is called @optshard from outside, and from inside, too.
"""

load("//third_party/abseil:repository.bzl", "abseil_synchronization")
load("//third_party/bazel:repositories.bzl", "clang_toolchain", "debian_rules", "patched_rules_cc")
load("//third_party/cuda:repository.bzl", "cuda_toolkit")
load("//third_party/debian:repository.bzl", "debian_libraries")
load("//third_party/digits:repository.bzl", "sklearn_digits")
load("//third_party/grpc:static.bzl", "grpc_static")
load("//third_party/grpc_cli:repository.bzl", "grpc_cli")
load("//third_party/kubernetes:repository.bzl", "kubernetes_tools")
load("//third_party/libtorch:repository.bzl", "libtorch_wheel")
load("//third_party/protobuf:repository.bzl", "protobuf_source")

def optshard_workspace():
    """Defines the repositories. Nothing is fetched over the network.

    Rules come from Debian's bazel packages, libraries from Debian's -dev packages, and the rest from
    what `./run setup` installs in optshard's folder.
    """
    patched_rules_cc(name = "rules_cc")
    debian_rules()
    clang_toolchain(name = "clang_cc")
    debian_libraries(name = "debian")
    abseil_synchronization(name = "abseil_synchronization")
    libtorch_wheel(name = "libtorch")
    cuda_toolkit(name = "cuda")
    sklearn_digits(name = "sklearn_digits")
    grpc_cli(name = "grpc_cli")
    kubernetes_tools(name = "kubernetes_tools")
    protobuf_source(name = "protobuf_source")
    grpc_static(name = "grpc_static")
