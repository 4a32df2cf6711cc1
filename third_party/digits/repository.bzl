"""The handwritten digits that scikit-learn's wheel ships; `./run setup` takes out that one file."""

def _sklearn_digits_impl(ctx):
    ctx.file("WORKSPACE", "workspace(name = \"sklearn_digits\")\n")
    digits = ctx.path(str(ctx.path(Label("//:WORKSPACE")).dirname) + "/.cache/digits/digits.csv.gz")
    if digits.exists:
        ctx.symlink(digits, "digits.csv.gz")
        ctx.file("BUILD.bazel", """
exports_files(["digits.csv.gz"])

filegroup(
    name = "digits",
    srcs = ["digits.csv.gz"],
    visibility = ["//visibility:public"],
)
""")
    else:
        ctx.file("BUILD.bazel", """
genrule(
    name = "digits",
    outs = ["digits.csv.gz"],
    cmd = "echo 'No digits.csv.gz: run ./run setup' >&2; exit 1",
    visibility = ["//visibility:public"],
)
""")

sklearn_digits = repository_rule(
    implementation = _sklearn_digits_impl,
    configure = True,
    local = True,
)
