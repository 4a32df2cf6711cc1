"""The machine code and the PTX of every rule's kernels, for every architecture: no GPU is needed."""

import glob
import os
import subprocess
import sys
import unittest

_FOLDER = "tests/server/update/cuda"
sys.path.insert(0, _FOLDER)
import machine_code

_CUOBJDUMP = os.environ["CUOBJDUMP"]
_ARCHITECTURES = ["sm_" + architecture for architecture in os.environ["ARCHITECTURES"].split()]
_OBJECTS = "server/update/cuda/*_object.o"


def _read(read, path, *options):
    """What `read` makes of cuobjdump's output, which is too long to keep."""
    command = [_CUOBJDUMP, *options, path]
    # For machine code it runs nvdisasm, which lies beside it.
    with subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8") as process:
        result = read(process.stdout)
    if process.returncode != 0:
        raise RuntimeError("%s: exit code %d" % (" ".join(command), process.returncode))
    return machine_code.by_kernel(result)


class MachineCode(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # Each a list of (Kernel, where, what was read).
        cls.ptx, cls.sass, cls.usage = [], [], []
        cls.files = sorted(glob.glob(_OBJECTS))
        for path in cls.files:
            for kernel, opcodes in _read(machine_code.read_ptx, path, "-ptx").items():
                cls.ptx.append((kernel, "PTX", opcodes))
            for architecture in _ARCHITECTURES:
                sass = _read(machine_code.read_sass, path, "-sass", "-arch", architecture)
                cls.sass += [(kernel, architecture, opcodes) for kernel, opcodes in sass.items()]
            with open(os.path.splitext(path)[0] + ".usage", encoding="utf-8") as lines:
                for architecture, usages in machine_code.read_usage(lines).items():
                    for kernel, usage in machine_code.by_kernel(usages).items():
                        cls.usage.append((kernel, "sm_" + architecture, usage))
        cls.ptx_of = {kernel: opcodes for kernel, _, opcodes in cls.ptx}

    def assert_none(self, complaints):
        if complaints:
            self.fail("%d complaints:\n%s" % (len(complaints), "\n".join(complaints)))

    def test_every_architecture_has_every_kernel(self):
        places = {("PTX", "PTX"): set()}
        for architecture in _ARCHITECTURES:
            places[("machine code", architecture)] = set()
            places[("ptxas", architecture)] = set()
        for source, read in (("PTX", self.ptx), ("machine code", self.sass), ("ptxas", self.usage)):
            for kernel, where, _ in read:
                places[(source, where)].add(kernel)
        self.assertGreater(len(self.files), 0)
        self.assert_none(
            machine_code.check_same_kernels(
                {"%s of %s" % place: kernels for place, kernels in places.items()}
            )
        )

    def test_results_are_rounded_once(self):
        self.assert_none(
            [
                text
                for kernel, _, opcodes in self.ptx
                for text in machine_code.check_rounding(kernel, opcodes)
            ]
        )

    def test_nothing_is_fused_for_any_architecture(self):
        without = 0
        complaints = []
        for kernel, architecture, opcodes in self.sass:
            ptx = self.ptx_of[kernel]
            without += not machine_code.divides(ptx)
            complaints += machine_code.check_no_fused(kernel, architecture, opcodes, ptx)
        self.assert_none(complaints)
        self.assertGreater(without, 0, "every kernel divides: this looks at none")

    def test_arrays_are_accessed_by_128_bits(self):
        self.assert_none(self.complaints_of_sass(machine_code.check_width))

    def test_accesses_are_to_known_memory_and_none_to_local(self):
        self.assert_none(self.complaints_of_sass(machine_code.check_spaces))

    def test_float32_kernels_have_no_double(self):
        self.assert_none(self.complaints_of_sass(machine_code.check_no_double))

    def test_nothing_is_spilled_and_registers_are_within_limits(self):
        most = dict.fromkeys(machine_code.PASSES, 0)
        complaints = []
        for kernel, architecture, usage in self.usage:
            complaints += machine_code.check_usage(kernel, architecture, usage)
            most[kernel.pass_name] = max(most[kernel.pass_name], usage.registers)
        print("registers, at most:", most)
        self.assert_none(complaints)

    def complaints_of_sass(self, check):
        return [text for read in self.sass for text in check(*read)]


if __name__ == "__main__":
    unittest.main()
