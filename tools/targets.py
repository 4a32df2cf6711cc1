"""Rules of the workspace, as `bazel query --output=xml` prints them."""

import subprocess
import xml.etree.ElementTree as ET


class QueryError(Exception):
    """A query failed; the text is Bazel's."""


class Rule:
    """A rule: its label, its kind, and the labels that it reads and makes."""

    def __init__(self, element):
        self.label = element.get("name")
        self.kind = element.get("class")
        self.testonly = element.find("boolean[@name='testonly'][@value='true']") is not None
        # CUDA_ONLY of third_party/cuda/defs.bzl.
        self.needs_cuda = (
            element.find(
                "list[@name='target_compatible_with']"
                "/label[@value='//third_party/cuda:needs_config_cuda']"
            )
            is not None
        )
        self.inputs = {child.get("name") for child in element.findall("rule-input")}
        self.outputs = {child.get("name") for child in element.findall("rule-output")}
        self.sources = [
            label.get("value")
            for attribute in ("srcs", "hdrs", "textual_hdrs")
            for label in element.findall("list[@name='%s']/label" % attribute)
        ]

    @property
    def package(self):
        return self.label[2:].partition(":")[0]

    def is_test(self):
        return self.kind.endswith("_test") or self.kind == "test_suite"

    def is_group(self):
        """Whether it only names other libraries."""
        return self.kind in ("cc_library", "filegroup", "alias") and not self.sources


def path_of(label):
    """The file in the workspace that a source label names, or None outside of it."""
    return label[2:].replace(":", "/").lstrip("/") if label.startswith("//") else None


def parse(xml):
    """Label -> Rule."""
    return {rule.label: rule for rule in map(Rule, ET.fromstring(xml).iter("rule"))}


def _run(arguments):
    query = subprocess.run(
        ["bazel", "query", "--noshow_progress", "--ui_event_filters=-info", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        check=False,
    )
    if query.returncode != 0:
        raise QueryError(
            "bazel query failed with exit code %d:\n%s" % (query.returncode, query.stderr.strip())
        )
    return query.stdout


def query_rules(expression):
    return parse(_run(["--output=xml", expression]))
