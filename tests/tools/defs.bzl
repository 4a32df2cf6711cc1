"""Python tests without rules for Python: unittest of Debian's python3."""

def optshard_python_test(name, src, data = [], size = "small", **kwargs):
    """Runs the unittest cases of `src`; each is a case in test.xml.

    Args:
      name: the test.
      src: a .py file of this package.
      data: files and programs it uses, found from the root of the runfiles.
      size: as usual.
      **kwargs: passed on to sh_test.
    """
    native.sh_test(
        name = name,
        size = size,
        srcs = ["//tests/tools:python_test.sh"],
        args = ["$(location %s)" % src],
        data = data + [
            src,
            "//tests/tools:junit_main.py",
        ],
        **kwargs
    )
