"""Classes of machine instructions as in NVIDIA's SASS reference (CUDA Binary Utilities, "Instruction Set Reference").

ncu counts them by class (`sass__inst_executed_per_opcode_category`, since 2025.2) or by opcode
(`sass__inst_executed_per_opcode`, older), both as the instances of one metric.
"""

from __future__ import annotations

import functools
import re

CLASSES = {
    "inst_fp": "Floating Point",
    "inst_int": "Integer",
    "inst_ldst": "Load/Store",
    "inst_move": "Movement",
    "inst_pred": "Predicate",
    "inst_uniform": "Uniform Datapath",
    "inst_control": "Control",
    "inst_conv": "Conversion",
    "inst_misc": "Miscellaneous",
}

# The reference's further classes, which the paper's nine do not have, by the column that is nearest in kind.
_FOLDED = {
    "Texture": "inst_ldst",
    "Surface": "inst_ldst",
    "Tensor Memory Access": "inst_ldst",
    "Tensor Core Memory": "inst_ldst",
    "Warpgroup": "inst_fp",  # Hopper's matrix products over four warps
}

_OPCODES = {
    "inst_fp": """FADD FADD32I FADD2 FCHK FFMA FFMA32I FFMA2 FHADD FHFMA FMNMX FMNMX3 FMUL FMUL32I FMUL2 FSEL FSET FSETP
        FSWZADD MUFU HADD2 HADD2_32I HFMA2 HFMA2_32I HMMA HMNMX2 HMUL2 HMUL2_32I HSET2 HSETP2 DADD DFMA DMMA DMUL DSETP
        OMMA QMMA HGMMA QGMMA BGMMA IGMMA WARPGROUP WARPGROUPSET UTCHMMA UTCQMMA UTCOMMA UTCIMMA""",
    "inst_int": """BMMA BMSK BREV FLO IABS IADD IADD3 IADD32I IDP IDP4A IMAD IMMA IMNMX IMUL IMUL32I ISCADD ISCADD32I
        ISETP LEA LOP LOP3 LOP32I POPC SHF SHL SHR VABSDIFF VABSDIFF4 VHMNMX VIADD VIADDMNMX VIMNMX VIMNMX3 XMAD""",
    "inst_conv": "F2F F2FP F2I F2IP FRND I2F I2FP I2I I2IP",
    "inst_move": "MOV MOV32I MOV64IUR MOVM PRMT SEL SGXT SHFL",
    "inst_pred": "PLOP3 PSETP P2R R2P CSET CSETP",
    "inst_ldst": """LD LDC LDG LDGDEPBAR LDGMC LDGSTS LDL LDS LDSM LDT LDTM ST STAS STG STL STS STSM STT STTM MATCH QSPC
        ATOM ATOMG ATOMS RED REDAS REDG CCTL CCTLL CCTLT ERRBAR MEMBAR FENCE SYNCS TEX TLD TLD4 TMML TXD TXQ SUATOM SULD
        SURED SUST UBLKCP UBLKPF UBLKRED UTMACCTL UTMACMDFLUSH UTMALDG UTMALST UTMAPF UTMAREDG UTMASTG UTCCP""",
    "inst_uniform": """R2UR REDUX CREDUX S2UR CS2UR UBMSK UBREV UCLEA UF2F UF2FP UF2I UFADD UFFMA UFLO UFMNMX UFMUL
        UFSEL UFSET UFSETP UI2F UIABS UIADD3 UIMAD UIMNMX UISETP ULDC LDCU ULEA ULOP ULOP3 ULOP32I UMOV UP2UR UPLOP3
        UPOPC UPRMT UPSETP UR2UP USEL USETMAXREG USGXT USHF USHL USHR UVIADD UVIMNMX UVIRTCOUNT VOTEU""",
    "inst_control": """ACQBULK ACQSHMINIT BMOV BPT BRA BREAK BRX BRXU BSSY BSYNC CALL CGAERRBAR ELECT ENDCOLLECTIVE EXIT
        JMP JMX JMXU KILL NANOSLEEP PREEXIT RET RPCMOV RTT UCGABAR_ARV UCGABAR_WAIT WARPSYNC YIELD""",
    "inst_misc": """B2R BAR CS2R DEPBAR GETLMEMBASE LEPC NOP PMTRIG R2B S2R SETCTAID SETLMEMBASE SETMAXREG VOTE
        ARRIVES""",
}  # fmt: skip


def class_counts(cell: str, unknown: set[str]) -> list[float] | None:
    """Instructions by class, from the cell of a metric that lists its instances.

    Args:
        cell: "1,205 (Control: 1,093; Load/Store: 112)", by class or by opcode.
        unknown: gains the names that are neither; they count as miscellaneous.

    Returns:
        one number a class, in the order of `CLASSES`; None where the cell lists nothing (a bare number, ``n/a``).
    """
    _, opened, listed = cell.replace(",", "").partition("(")
    if not opened or listed[-1:] != ")":
        return None
    sums = [0.0] * len(CLASSES)
    try:
        for instance in listed[:-1].split(";"):
            name, number = instance.split(":")
            place = _place(name)
            if place is None:
                unknown.add(name.strip())
            sums[_MISCELLANEOUS if place is None else place] += float(number)
    except ValueError:
        return None
    return sums


@functools.cache
def class_column(name: str) -> str | None:
    """The column of a class ("Load/Store") or an opcode ("LDG", "LDG.E"); None if it is neither."""
    table = _columns()
    return table.get(_plain(name.removesuffix(" Instructions"))) or table.get(_plain(name.partition(".")[0]))


_MISCELLANEOUS = list(CLASSES).index("inst_misc")


@functools.cache
def _place(name: str) -> int | None:
    column = class_column(name)
    return None if column is None else list(CLASSES).index(column)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


@functools.cache
def _columns() -> dict[str, str]:
    table = {_plain(name): column for column, name in CLASSES.items()}
    table |= {_plain(name): column for name, column in _FOLDED.items()}
    for column, opcodes in _OPCODES.items():
        table |= {_plain(opcode): column for opcode in opcodes.split()}
    return table
