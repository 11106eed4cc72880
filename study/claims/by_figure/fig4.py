"""Fig 4, the dominant kernel's cycles and instructions (P070 to P079)."""

from __future__ import annotations

from dataclasses import replace

from study.claims.case import Case
from study.claims.kernels import DOMINANT, KN2
from study.claims.numbers import cycles, instruction_share, ipc
from study.claims.reasons import OnCard, Sentence, says, views
from study.claims.verdicts import Finding

section_4_3 = says("Section 4.3 of the paper itself gives the H100's dominant GEMM over 70% of FP (P087).")


def kn2_has(instructions: str) -> Sentence:
    """Says what share of KN2's instructions belongs to a class."""

    def sentence(on: OnCard) -> str:
        share = on.mean(instruction_share(instructions, KN2, "OPT1"))
        return f"KN2, Hopper's TF32 kernel that runs under OPT1, has {share}% here." if share else ""

    return sentence


def summed_over_sms(on: OnCard) -> str:
    """Says of how many launches a sum of cycles is."""
    count = on.launches["count"]
    total = (count * on.launches["cycles_active"]).sum()
    return (
        f"Summed over all SMs and {count.sum()} launches our cycles are {total:.4g}, on average "
        f"{total / count.sum():.3g} a launch."
    )


def dominant_cycles(case: Case) -> Finding:
    """Leaves the dominant kernel's cycles undecided, as the paper does not say over what it sums them."""
    finding = case.judge(cycles(DOMINANT, "BASE"), also=(summed_over_sms,))
    if finding.our_value is None and finding.other_value is None:
        return finding
    undecidable = "Undecidable: the paper does not say over which launches and SMs it sums its cycles."
    return Finding(case.view, f"{undecidable} {finding.reason}")


def p070(case: Case) -> Finding:
    """Judges Fig 4, V100 BASE, dominant convolution: cycles about 3900000000.0 cycle."""
    return dominant_cycles(case)


def p071(case: Case) -> Finding:
    """Judges Fig 4, V100 BASE, dominant convolution: IPC = 2.38 inst/cycle."""
    return case.judge(ipc(DOMINANT, "BASE"))


def p072(case: Case) -> Finding:
    """Judges Fig 4, V100 BASE, dominant convolution: FP share of instructions nearly 78%."""
    return case.judge(instruction_share("inst_fp", DOMINANT, "BASE"))


def p073(case: Case) -> Finding:
    """Judges Fig 4, A100 BASE, dominant GEMM: cycles about 1180000000.0 cycle."""
    return dominant_cycles(case)


def p074(case: Case) -> Finding:
    """Judges Fig 4, A100 BASE, dominant GEMM: cycles against V100, reduction = 3.3 x."""
    ours = cycles(DOMINANT, "BASE")
    v100 = case.mean_on("V100", ours)
    fewer = replace(ours, measure=lambda *where: [v100 / value for value in ours.measure(*where)])
    no_v100 = says("It compares the A100 with a V100. We have no V100.")
    return case.judge(fewer, missing=no_v100, differs=(summed_over_sms,))


def p075(case: Case) -> Finding:
    """Judges Fig 4, A100 BASE, dominant GEMM: INT share of IPC stack = 42%."""
    return case.judge(instruction_share("inst_int", DOMINANT, "BASE"), differs=(kn2_has("inst_int"), views))


def p076(case: Case) -> Finding:
    """Judges Fig 4, A100 BASE, dominant GEMM: FP share of IPC stack = 25%."""
    return case.judge(instruction_share("inst_fp", DOMINANT, "BASE"), differs=(kn2_has("inst_fp"),))


def p077(case: Case) -> Finding:
    """Judges Fig 4, H100 BASE, dominant GEMM: cycles about 820000000.0 cycle."""
    return dominant_cycles(case)


def p078(case: Case) -> Finding:
    """Judges Fig 4, H100 BASE, dominant GEMM: UD share of IPC stack more than 50%."""
    share = instruction_share("inst_uniform", DOMINANT, "BASE")
    return case.judge(share, differs=(section_4_3, kn2_has("inst_uniform")))


def p079(case: Case) -> Finding:
    """Judges Fig 4, H100 BASE, dominant GEMM: FP share of IPC stack only 2%."""
    return case.judge(instruction_share("inst_fp", DOMINANT, "BASE"), differs=(section_4_3, kn2_has("inst_fp")))
