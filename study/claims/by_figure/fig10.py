"""Fig 10 and Section 6.2, how busy the pipes are (P118 to P156, P199 to P202)."""

from __future__ import annotations

import math

from medddpm.measure.profile import summaries
from study.claims.by_figure.abstract import p003, p004
from study.claims.case import Case
from study.claims.kernels import KernelsOfRun, Launches
from study.claims.numbers import Number, ratio, summary
from study.claims.reasons import otherwise, tensor_pipe, views
from study.claims.verdicts import Finding


def where_the_pipe_is_used(setting: str) -> Number:
    """Returns the Tensor Core utilization without the launches that have none."""

    def measure(run: KernelsOfRun, name: str, _: Launches) -> list[float]:
        table = run.of(name)
        used = table[table["tensor_pct"] > 0]
        return list(summaries.averages(used)["tensor_pct"]) if len(used) else [math.nan]

    return Number(measure, (setting,), columns=("tensor_pct",))


def p118(case: Case) -> Finding:
    """Judges Fig 10, H100 BASE, average over kernels: Tensor Core utilization = 1.44%."""
    of_users = otherwise("averaged over the launches that use that pipe at all", where_the_pipe_is_used("BASE"))
    return case.judge(summary("tensor_pct", "BASE"), also=(of_users,), differs=(tensor_pipe, views))


def p119(case: Case) -> Finding:
    """Judges Fig 10, H100 OPT1, average over kernels: Tensor Core utilization = 7.81%."""
    return case.judge(summary("tensor_pct", "OPT1"), differs=(tensor_pipe, views))


def p120(case: Case) -> Finding:
    """Judges Fig 10, H100 OPT2, average over kernels: Tensor Core utilization = 1.47%."""
    return case.judge(summary("tensor_pct", "OPT2"), differs=(tensor_pipe, views))


def p121(case: Case) -> Finding:
    """Judges Fig 10, H100 OPT12, average over kernels: Tensor Core utilization = 1.62%."""
    return case.judge(summary("tensor_pct", "OPT12"), differs=(tensor_pipe, views))


def p122(case: Case) -> Finding:
    """Judges Fig 10, H100 BASE, average over kernels: CUDA core utilization = 20.6%."""
    return case.judge(summary("fma_pct", "BASE"))


def p123(case: Case) -> Finding:
    """Judges Fig 10, H100 OPT1, average over kernels: CUDA core utilization = 10.53%."""
    return case.judge(summary("fma_pct", "OPT1"))


def p124(case: Case) -> Finding:
    """Judges Fig 10, H100 OPT2, average over kernels: CUDA core utilization = 6.81%."""
    return case.judge(summary("fma_pct", "OPT2"))


def p125(case: Case) -> Finding:
    """Judges Fig 10, H100 OPT12, average over kernels: CUDA core utilization = 6.66%."""
    return case.judge(summary("fma_pct", "OPT12"))


def p126(case: Case) -> Finding:
    """Judges Fig 10, H100 BASE, average over kernels: SM throughput = 37.14%."""
    return case.judge(summary("sm_throughput_pct", "BASE"))


def p127(case: Case) -> Finding:
    """Judges Fig 10, H100 OPT1, average over kernels: SM throughput = 31.27%."""
    return case.judge(summary("sm_throughput_pct", "OPT1"))


def p128(case: Case) -> Finding:
    """Judges Fig 10, H100 OPT2, average over kernels: SM throughput = 18.18%."""
    return case.judge(summary("sm_throughput_pct", "OPT2"))


def p129(case: Case) -> Finding:
    """Judges Fig 10, H100 OPT12, average over kernels: SM throughput = 17.6%."""
    return case.judge(summary("sm_throughput_pct", "OPT12"))


def p130(case: Case) -> Finding:
    """Judges Fig 10, H100 BASE, average over kernels: integer ALU utilization = 21.38%."""
    return case.judge(summary("alu_pct", "BASE"))


def p131(case: Case) -> Finding:
    """Judges Fig 10, H100 OPT1, average over kernels: integer ALU utilization = 18.11%."""
    return case.judge(summary("alu_pct", "OPT1"))


def p132(case: Case) -> Finding:
    """Judges Fig 10, A100 BASE, average over kernels: Tensor Core utilization = 1.45%."""
    return p003(case)


def p133(case: Case) -> Finding:
    """Judges Fig 10, A100 OPT1, average over kernels: Tensor Core utilization = 9.98%."""
    return p004(case)


def p134(case: Case) -> Finding:
    """Judges Fig 10, A100 OPT2, average over kernels: Tensor Core utilization = 1.59%."""
    return case.judge(summary("tensor_pct", "OPT2"), differs=(tensor_pipe, views))


def p135(case: Case) -> Finding:
    """Judges Fig 10, A100 OPT12, average over kernels: Tensor Core utilization = 1.76%."""
    return case.judge(summary("tensor_pct", "OPT12"), differs=(tensor_pipe, views))


def p136(case: Case) -> Finding:
    """Judges Fig 10, A100 BASE, average over kernels: CUDA core utilization = 29.39%."""
    return case.judge(summary("fma_pct", "BASE"))


def p137(case: Case) -> Finding:
    """Judges Fig 10, A100 OPT1, average over kernels: CUDA core utilization = 18.46%."""
    return case.judge(summary("fma_pct", "OPT1"))


def p138(case: Case) -> Finding:
    """Judges Fig 10, A100 OPT2, average over kernels: CUDA core utilization = 12.01%."""
    return case.judge(summary("fma_pct", "OPT2"))


def p139(case: Case) -> Finding:
    """Judges Fig 10, A100 OPT12, average over kernels: CUDA core utilization = 11.69%."""
    return case.judge(summary("fma_pct", "OPT12"))


def p140(case: Case) -> Finding:
    """Judges Fig 10, A100 BASE, average over kernels: SM throughput = 32.64%."""
    return case.judge(summary("sm_throughput_pct", "BASE"))


def p141(case: Case) -> Finding:
    """Judges Fig 10, A100 OPT1, average over kernels: SM throughput = 27.77%."""
    return case.judge(summary("sm_throughput_pct", "OPT1"))


def p142(case: Case) -> Finding:
    """Judges Fig 10, A100 OPT2, average over kernels: SM throughput = 16.48%."""
    return case.judge(summary("sm_throughput_pct", "OPT2"))


def p143(case: Case) -> Finding:
    """Judges Fig 10, A100 OPT12, average over kernels: SM throughput = 16.16%."""
    return case.judge(summary("sm_throughput_pct", "OPT12"))


def p144(case: Case) -> Finding:
    """Judges Fig 10, A100 BASE, average over kernels: integer ALU utilization = 22.66%."""
    return case.judge(summary("alu_pct", "BASE"))


def p145(case: Case) -> Finding:
    """Judges Fig 10, A100 OPT1, average over kernels: integer ALU utilization = 20.0%."""
    return case.judge(summary("alu_pct", "OPT1"))


def p146(case: Case) -> Finding:
    """Judges Fig 10, V100 BASE, average over kernels: Tensor Core utilization = 0%."""
    return case.judge(summary("tensor_pct", "BASE"), differs=(tensor_pipe, views))


def p147(case: Case) -> Finding:
    """Judges Fig 10, V100 OPT1, average over kernels: Tensor Core utilization = 0%."""
    return case.judge(summary("tensor_pct", "OPT1"), differs=(tensor_pipe, views))


def p148(case: Case) -> Finding:
    """Judges Fig 10, V100 OPT2, average over kernels: Tensor Core utilization = 0%."""
    return case.judge(summary("tensor_pct", "OPT2"), differs=(tensor_pipe, views))


def p149(case: Case) -> Finding:
    """Judges Fig 10, V100 OPT12, average over kernels: Tensor Core utilization = 0%."""
    return case.judge(summary("tensor_pct", "OPT12"), differs=(tensor_pipe, views))


def p150(case: Case) -> Finding:
    """Judges Fig 10, V100 BASE, average over kernels: CUDA core utilization = 23.63%."""
    return case.judge(summary("fma_pct", "BASE"))


def p151(case: Case) -> Finding:
    """Judges Fig 10, V100 OPT1, average over kernels: CUDA core utilization about 23.6%."""
    return case.judge(summary("fma_pct", "OPT1"))


def p152(case: Case) -> Finding:
    """Judges Fig 10, V100 OPT2, average over kernels: CUDA core utilization = 9.65%."""
    return case.judge(summary("fma_pct", "OPT2"))


def p153(case: Case) -> Finding:
    """Judges Fig 10, V100 BASE, average over kernels: SM throughput = 25.11%."""
    return case.judge(summary("sm_throughput_pct", "BASE"))


def p154(case: Case) -> Finding:
    """Judges Fig 10, V100 OPT1, average over kernels: SM throughput about 25.1%."""
    return case.judge(summary("sm_throughput_pct", "OPT1"))


def p155(case: Case) -> Finding:
    """Judges Fig 10, V100 OPT2, average over kernels: SM throughput about 14.5%."""
    return case.judge(summary("sm_throughput_pct", "OPT2"))


def p156(case: Case) -> Finding:
    """Judges Fig 10, V100 OPT12, average over kernels: SM throughput about 14.5%."""
    return case.judge(summary("sm_throughput_pct", "OPT12"))


def p199(case: Case) -> Finding:
    """Judges Section 6.2, A100 and H100 OPT1, average over kernels: Tensor Core utilization, against BASE = 5-7 x."""
    stated = (
        "one range for two cards, which one card cannot decide: of its own numbers, "
        "the H100's come to 5.4 and the A100's to 6.9"
    )
    return case.judge_together(ratio(summary("tensor_pct", "OPT1")), list, stated)


def p200(case: Case) -> Finding:
    """Judges Section 6.2, A100 and H100 BASE, average over kernels: Tensor Core utilization, both cards about 1.4%."""
    return p118(case)


def p201(case: Case) -> Finding:
    """Judges Section 6.2, H100 OPT2 and OPT12, average over kernels: SM throughput, against BASE approximately
    0.5 x.
    """
    return case.judge(ratio(summary("sm_throughput_pct", "OPT2", "OPT12")))


def p202(case: Case) -> Finding:
    """Judges Fig 10, V100 OPT12, average over kernels: CUDA core utilization = 9.65%."""
    return case.judge(summary("fma_pct", "OPT12"))
