"""PyTorch's own launcher, for tests that show jobs under it."""

import os
import subprocess
import unittest


def torchrun(root):
    """The torchrun of .venv in `root`. The test skips itself where PyTorch for Python cannot run: what ./run setup
    installs of its wheel is LibTorch only, without the Python packages and the CUDA libraries that it imports."""
    folder = os.path.join(root, ".venv/bin")
    imported = subprocess.run([os.path.join(folder, "python"), "-c", "import torch.distributed.run"],
                              capture_output=True, text=True, check=False, timeout=100)
    if imported.returncode != 0:
        why = (imported.stderr.strip().splitlines() or ["no word why"])[-1]
        raise unittest.SkipTest("PyTorch for Python cannot be imported from .venv: %s" % why)
    return os.path.join(folder, "torchrun")
