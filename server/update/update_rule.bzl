"""The build rule of update rules."""

load("//third_party:copts.bzl", "optshard_cc_library")

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
        # Nothing refers to a rule's file, so the linker would drop it, and its registration.
        alwayslink = True,
        deps = ["//server/update:define_rule"] + deps,
        **kwargs
    )
