"""The version of what is installed. Libraries of another version have another soname."""

OPTSHARD_VERSION = "0.1.0"
