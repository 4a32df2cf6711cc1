"""Each check of machine code, on a text that breaks its rule and on one that does not."""

import collections
import sys
import unittest

sys.path.insert(0, "tests/server/update/cuda")
import machine_code as code

_SCOPE = "N8optshard7kernels"
_LION = "NS0_42_GLOBAL__N__2d8f43ff_7_lion_cc_448fa561_104LionE"
PLAIN = "_Z%s11PlainKernelI%sfLj1EEEvNS_15KernelArgumentsIT0_EE" % (_SCOPE, _LION)
DOUBLE = "_Z%s11PlainKernelI%sdLj1EEEvNS_15KernelArgumentsIT0_EE" % (_SCOPE, _LION)
CODED = "_Z%s11MixedKernelI%sLj1ELNS_10KernelPassE5EEEvNS_15KernelArgumentsIfEE" % (_SCOPE, _LION)
MIXED = "_Z%s11MixedKernelI%sLj1ELNS_10KernelPassE3EEEvNS_15KernelArgumentsIfEE" % (_SCOPE, _LION)

SASS = """
Fatbin elf code:
================
arch = sm_80

\tcode for sm_80
\t\tFunction : %s
\t.headerflags\t@"EF_CUDA_SM80 EF_CUDA_VIRTUAL_SM(EF_CUDA_SM80)"
        /*0000*/                   IMAD.MOV.U32 R1, RZ, RZ, c[0x0][0x28] ;   /* 0x00000a00ff017624 */
                                                                             /* 0x000fe400078e00ff */
        /*00a0*/                   LDG.E.128 R4, [R2.64] ;                   /* 0x0000000602027981 */
        /*00b0*/              @!P0 LDG.E.128 R8, [R2.64+0x10] ;              /* 0x0000000602027981 */
        /*12c0*/              @UP2 LDG.E.128.CONSTANT R8, [R2.64] ;          /* 0x0000000602027981 */
        /*10140*/                  STG.E.128 [R2.64], R4 ;                   /* 0x0000000602027981 */
\t\tFunction : %s
        /*0000*/                   EXIT ;                                    /* 0x000000000000794d */
""" % (PLAIN, MIXED)

PTX = """
Fatbin ptx code:
================
arch = sm_80

.version 9.0
.target sm_80
.entry %s(
.param .align 8 .b8 %s_param_0[56]
)
.maxntid 256, 1, 1
{
.reg .f32 %%f<158>;
ld.param.u64 %%rd23, [%s_param_0+40];
@%%p1 bra $L__BB0_2;
mul.rn.f32 %%f3, %%f1, %%f2;
fma.rn.f32 %%f4, %%f3, %%f1, %%f2;
$L__BB0_2:
ret;
}
.visible .entry %s(
)
{
{ cvt.rn.f16.f32 %%rs1, %%f1;}
ret; // the end
}
""" % (PLAIN, PLAIN, PLAIN, MIXED)

USAGE = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '%s' for 'sm_80'
ptxas info    : Function properties for %s
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 67 registers, used 0 barriers, 408 bytes cmem[0]
ptxas info    : Compile time = 32.797 ms
ptxas info    : Compiling entry function '%s' for 'sm_120'
ptxas info    : Function properties for %s
    24 bytes stack frame, 16 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 80 registers, used 1 barriers, 8 bytes cumulative stack size
""" % (PLAIN, PLAIN, MIXED, MIXED)


def kernel(pass_name, slots=1):
    return code.Kernel("Lion", pass_name, (1 << slots) - 1, slots)


def count(**opcodes):
    """Instructions with _ for the dots."""
    return collections.Counter({name.replace("_", "."): n for name, n in opcodes.items()})


class Reading(unittest.TestCase):
    def test_kernels_are_known_by_their_symbols(self):
        found = code.by_kernel({PLAIN: 1, DOUBLE: 2, MIXED: 3, CODED: 4})
        self.assertEqual(
            found,
            {
                kernel(code.PLAIN_FLOAT32): 1,
                kernel(code.PLAIN_FLOAT64): 2,
                kernel(code.MIXED): 3,
                kernel(code.CODED): 4,
            },
        )

    def test_function_that_is_no_kernel_is_an_error(self):
        with self.assertRaisesRegex(ValueError, "not a kernel.*: std::abs"):
            code.by_kernel({"_ZSt3absf": 1})

    def test_sass(self):
        functions = code.read_sass(SASS.splitlines())
        self.assertEqual(
            functions[PLAIN],
            count(IMAD_MOV_U32=1, LDG_E_128=2, LDG_E_128_CONSTANT=1, STG_E_128=1),
        )
        self.assertEqual(functions[MIXED], count(EXIT=1))

    def test_ptx(self):
        functions = code.read_ptx(PTX.splitlines())
        self.assertEqual(
            functions[PLAIN], count(ld_param_u64=1, bra=1, mul_rn_f32=1, fma_rn_f32=1, ret=1)
        )
        self.assertEqual(functions[MIXED], count(cvt_rn_f16_f32=1, ret=1))

    def test_usage(self):
        self.assertEqual(
            code.read_usage(USAGE.splitlines()),
            {
                "80": {PLAIN: code.Usage(67, 0, 0, 0)},
                "120": {MIXED: code.Usage(80, 24, 16, 8)},
            },
        )


class Checks(unittest.TestCase):
    def test_fused_approximate_and_flushed_ptx_is_found(self):
        plain = kernel(code.PLAIN_FLOAT32)
        fine = count(
            mul_rn_f32=1, div_rn_f64=1, sqrt_rn_f32=1, abs_f32=1, setp_gtu_f32=1, max_f32=1,
            cvt_rn_f32_s16=1, cvt_rzi_s32_f32=1, ld_global_v4_f32=1, mad_lo_s32=1, mov_b32=1,
        )
        self.assertEqual(code.check_rounding(plain, fine), [])
        for bad in (
            "fma.rn.f32", "fma.rn.f64", "fma.rn.f32x2", "mul.f32", "mul.rn.ftz.f32", "mul.rz.f32",
            "div.approx.f32", "div.full.f32", "sqrt.approx.f32", "rcp.approx.f32", "rsqrt.approx.f32",
            "ex2.approx.ftz.f32", "max.ftz.f32", "cvt.ftz.f64.f32", "cvt.rz.f32.f64",
        ):
            complaints = code.check_rounding(plain, fine + collections.Counter([bad]))
            self.assertEqual(complaints, ["Lion, plain float32, slots 1, PTX: " + bad])

    def test_fused_machine_code_is_found_where_nothing_is_divided(self):
        plain = kernel(code.PLAIN_FLOAT32)
        self.assertEqual(code.check_no_fused(plain, "sm_90", count(FMUL=1), count(mul_rn_f32=1)), [])
        self.assertEqual(code.check_no_fused(plain, "sm_90", count(FFMA=1), count(div_rn_f32=1)), [])
        for bad in ("FFMA", "FFMA.FTZ", "FFMA2", "DFMA", "UFFMA"):
            self.assertEqual(
                code.check_no_fused(plain, "sm_90", collections.Counter([bad]), count(mul_rn_f32=1)),
                ["Lion, plain float32, slots 1, sm_90: " + bad],
            )

    def test_narrow_accesses_are_found(self):
        plain = kernel(code.PLAIN_FLOAT32)
        self.assertEqual(
            code.check_width(plain, "sm_80", count(LDG_E_128=2, LDG_E_128_CONSTANT=1, STG_E_128=2)), []
        )
        self.assertEqual(
            code.check_width(plain, "sm_80", count(LDG_E_128=2, LDG_E_64=9, STG_E_128=2)),
            ["Lion, plain float32, slots 1, sm_80: 2 of LDG.E.128, expected at least 3"],
        )
        self.assertEqual(
            code.check_width(plain, "sm_80", count(LDG_E_128=3, STG_E=9, STG_E_128=1)),
            ["Lion, plain float32, slots 1, sm_80: 1 of STG.E.128, expected at least 2"],
        )
        # Two for each array, in each type.
        loads = count(LDG_E_128=8, LDG_E_64=8)
        self.assertEqual(
            code.check_width(
                kernel(code.MIXED, 2), "sm_80", loads + count(STG_E_128=2, STG_E_64=2)
            ),
            [],
        )
        self.assertEqual(
            code.check_width(kernel(code.CODED, 2), "sm_80", loads + count(STG_E_128=2, STG_E=4)),
            ["Lion, coded, slots 3, sm_80: 0 of STG.E.64, expected at least 2"],
        )
        self.assertEqual(
            code.check_width(kernel(code.MASTER), "sm_80", loads + count(STG_E_128=3, STG_E_64=2)),
            ["Lion, bfloat16 with a master, slots 1, sm_80: 3 of STG.E.128, expected at least 4"],
        )

    def test_accesses_to_unknown_and_to_local_memory_are_found(self):
        mixed = kernel(code.MIXED)
        fine = count(LDG_E=1, LDS_128=1, LDC_64=1, LDCU=1, STG_E=1, STS=1)
        self.assertEqual(code.check_spaces(mixed, "sm_80", fine), [])
        for bad in ("LD.E.128", "ST.E", "LDL", "LDL.LU", "STL.64"):
            self.assertEqual(
                code.check_spaces(mixed, "sm_80", fine + collections.Counter([bad])),
                ["Lion, mixed, slots 1, sm_80: " + bad],
            )

    def test_double_in_a_float32_kernel_is_found(self):
        fine = count(FADD=1, DEPBAR_LE=1, I2F_U16=1, IADD_64=1, F2I_NTZ=1)
        for bad in ("DADD", "DMUL", "DFMA.RM", "DSETP.GT.AND", "F2F.F64.F32", "MUFU.RCP64H"):
            opcodes = fine + collections.Counter([bad])
            self.assertEqual(
                code.check_no_double(kernel(code.CODED), "sm_80", opcodes),
                ["Lion, coded, slots 1, sm_80: " + bad],
            )
            self.assertEqual(code.check_no_double(kernel(code.PLAIN_FLOAT64), "sm_80", opcodes), [])
        self.assertEqual(code.check_no_double(kernel(code.CODED), "sm_80", fine), [])

    def test_spills_frames_and_too_many_registers_are_found(self):
        most = code.REGISTERS[code.MIXED]
        for usage, text in (
            (code.Usage(most, 0, 0, 0), None),
            (code.Usage(most, 24, 0, 0), "a stack frame of 24 bytes, spills of 0 and 0"),
            (code.Usage(most, 0, 8, 0), "a stack frame of 0 bytes, spills of 8 and 0"),
            (code.Usage(most, 0, 0, 4), "a stack frame of 0 bytes, spills of 0 and 4"),
            (code.Usage(most + 1, 0, 0, 0), "%d registers, expected at most %d" % (most + 1, most)),
        ):
            self.assertEqual(
                code.check_usage(kernel(code.MIXED), "sm_90", usage),
                ["Lion, mixed, slots 1, sm_90: " + text] if text else [],
            )

    def test_missing_kernels_are_found(self):
        every = {kernel(pass_name) for pass_name in code.PASSES}
        mixed = kernel(code.MIXED)
        self.assertEqual(code.check_same_kernels({"PTX": every, "sm_80": every}), [])
        self.assertEqual(
            code.check_same_kernels({"PTX": every, "sm_80": every - {mixed}}),
            ["Lion, mixed, slots 1, sm_80: missing"],
        )
        self.assertEqual(
            code.check_same_kernels({"PTX": every - {mixed}, "sm_80": every - {mixed}}),
            ["Lion, mixed, slots 1, everywhere: missing"],
        )
        self.assertEqual(code.check_same_kernels({"PTX": set()}), ["no kernel at all"])


if __name__ == "__main__":
    unittest.main()
