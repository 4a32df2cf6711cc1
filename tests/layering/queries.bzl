"""The rules of layering as queries over targets; each must give nothing."""

def _of(*folders):
    return "filter(\"^//(%s)[:/]\", $all)" % "|".join(folders)

# Adapters may know gRPC, and programs must; their names say what they are.
_ADAPTERS = "(filter(\"_(rpc|service|server|grpc|main)$\", $all) union kind(\"cc_binary rule\", $all))"

# name -> the query
FORBIDDEN = {
    "common_reaches_up": "deps(%s) intersect %s" % (
        _of("common"),
        _of("server", "client", "examples", "benchmarks", "tests"),
    ),
    "server_reaches_up": "deps(%s) intersect %s" % (
        _of("server"),
        _of("client", "examples", "benchmarks", "tests"),
    ),
    "client_reaches_up": "deps(%s) intersect %s" % (
        _of("client"),
        _of("examples", "benchmarks", "tests"),
    ),
    "domain_reaches_grpc": "(%s except %s) intersect rdeps($all, @debian//:grpcpp)" % (
        _of("common", "server"),
        _ADAPTERS,
    ),
    "server_reaches_libtorch": "%s intersect rdeps($all, @libtorch//:torch)" % (
        _of("common", "server", "proto"),
    ),
}

# The queries above find nothing either where their words no longer match anything. These must find
# something.
REQUIRED = {
    "finds_common": _of("common"),
    "finds_grpc": "%s intersect rdeps($all, @debian//:grpcpp)" % _of("tests", "proto"),
    "finds_libraries": "kind(\"cc_library rule\", %s)" % _of("common", "server", "client"),
    "finds_libtorch": "%s intersect rdeps($all, @libtorch//:torch)" % _of("tests"),
}

def layering_queries(roots):
    """A genquery for each rule, over everything that `roots` depend on.

    Args:
      roots: labels that together depend on all targets of the project.
    """
    for name, query in FORBIDDEN.items() + REQUIRED.items():
        native.genquery(
            name = name,
            testonly = True,
            expression = "let all = deps(set(%s)) in %s" % (" ".join(roots), query),
            opts = ["--noimplicit_deps"],
            scope = roots,
        )
