"""The build rule of update rules, and which there are."""

load("//third_party:copts.bzl", "optshard_cc_library")

# One file a rule: rules/NAME.cc. These are one formula each, of which there are kernels, too.
ELEMENT_WISE_RULES = [
    "adadelta",
    "adagrad",
    "adam",  # and adamw
    "adamax",
    "asgd",
    "lion",
    "nadam",
    "radam",
    "rmsprop",
    "rprop",
    "sgd",
    "sparse_adam",
]

# Each has kernels for GPUs. The last ones are several formulas, with sums or products between them.
RULES = ELEMENT_WISE_RULES + [
    "adafactor",
    "lamb",
    "muon",
]

def optshard_update_rule(name, deps = [], **kwargs):
    """The update rule of NAME.cc. Linking it in is what registers it.

    Args:
      name: the rule's file, without .cc.
      deps: what it includes beyond define_rule-inl.h.
      **kwargs: of cc_library.
    """
    optshard_cc_library(
        name = name,
        srcs = [name + ".cc"],
        # Where the file finds itself (define_rule-inl.h), also as part of another workspace.
        copts = ["-iquote", "."],
        # Nothing refers to a rule's file, so the linker would drop it, and its registration.
        alwayslink = True,
        deps = ["//server/update:define_rule"] + deps,
        **kwargs
    )
