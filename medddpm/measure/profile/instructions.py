"""Classes of machine instructions as in NVIDIA's SASS reference (CUDA Binary Utilities, "Instruction Set Reference").

ncu counts them by class (`sass__inst_executed_per_opcode_category`, since 2025.2) or by opcode
(`sass__inst_executed_per_opcode`, older), both as the instances of one metric.

For Hopper kernels ncu 2025.3 reports one more class, "Other", which no document of NVIDIA's that we found explains. In
the H200's windows it is 13 instructions for each thread block of twelve warps, in every `sm90_xmma` kernel and in no
other kernel, so it holds none of the matrix products or bulk copies (these are in "Warpgroup" and "Tensor Memory
Access"): 0.0001% of all instructions under OPT1, 0.0002% under OPT12. It is counted as miscellaneous, and the table's
notes say how much it is.
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

# The reference's further classes, which are not among the paper's nine, each with the column nearest in kind.
_FOLDED = {
    "Texture": "inst_ldst",
    "Surface": "inst_ldst",
    "Tensor Memory Access": "inst_ldst",
    "Tensor Core Memory": "inst_ldst",  # Blackwell's; its few matrix products are launched by one thread each
    "Warpgroup": "inst_fp",  # Hopper's matrix products over four warps
}

# The reference's tables as of CUDA 13.1 (Turing, Ampere and Ada, Hopper, Blackwell) and 12.9 (Volta) in one.
_OPCODES = {
    "Floating Point": """DADD DFMA DMMA DMUL DSETP FADD FADD2 FADD32I FCHK FFMA FFMA2 FFMA32I FHADD FHFMA FMNMX FMNMX3
        FMUL FMUL2 FMUL32I FSEL FSET FSETP FSWZADD HADD2 HADD2_32I HFMA2 HFMA2_32I HMMA HMNMX2 HMUL2 HMUL2_32I HSET2
        HSETP2 MUFU OMMA QMMA""",
    "Integer": """BMMA BMSK BREV FLO IABS IADD IADD3 IADD32I IDP IDP4A IMAD IMMA IMNMX IMUL IMUL32I ISCADD ISCADD32I
        ISETP LEA LOP LOP3 LOP32I POPC SHF SHL SHR VABSDIFF VABSDIFF4 VHMNMX VIADD VIADDMNMX VIMNMX VIMNMX3""",
    "Conversion": "F2F F2I F2IP FRND I2F I2FP I2I I2IP",
    "Movement": "MOV MOV32I MOVM PRMT SEL SGXT SHFL",
    "Predicate": "P2R PLOP3 PSETP R2P",
    "Load/Store": """ATOM ATOMG ATOMS CCTL CCTLL CCTLT ERRBAR FENCE LD LDC LDG LDGDEPBAR LDGMC LDGSTS LDL LDS LDSM MATCH
        MEMBAR QSPC RED REDAS REDG ST STAS STG STL STS STSM SYNCS""",
    "Uniform Datapath": """CREDUX CS2UR LDCU R2UR REDUX S2UR UBMSK UBREV UCGABAR_ARV UCGABAR_WAIT UCLEA UF2F UF2FP UF2I
        UF2IP UFADD UFFMA UFLO UFMNMX UFMUL UFRND UFSEL UFSET UFSETP UGETNEXTWORKID UI2F UI2FP UI2I UI2IP UIABS UIADD3
        UIMAD UIMNMX UISETP ULDC ULEA ULEPC ULOP ULOP3 ULOP32I UMEMSETS UMOV UP2UR UPLOP3 UPOPC UPRMT UPSETP UR2UP
        UREDGR USEL USETMAXREG USGXT USHF USHL USHR USTGR UVIADD UVIMNMX UVIRTCOUNT VOTEU""",
    "Warpgroup": "BGMMA HGMMA IGMMA QGMMA WARPGROUP WARPGROUPSET",
    "Tensor Memory Access": "UBLKCP UBLKPF UBLKRED UTMACCTL UTMACMDFLUSH UTMALDG UTMAPF UTMAREDG UTMASTG",
    "Tensor Core Memory": "LDT LDTM STT STTM UTCATOMSWS UTCBAR UTCCP UTCHMMA UTCIMMA UTCOMMA UTCQMMA UTCSHIFT",
    "Texture": "TEX TLD TLD4 TMML TXD TXQ",
    "Surface": "SUATOM SULD SURED SUST",
    "Control": """ACQBULK ACQSHMINIT BMOV BPT BRA BREAK BRX BRXU BSSY BSYNC CALL CGAERRBAR ELECT ENDCOLLECTIVE EXIT JMP
        JMX JMXU KILL NANOSLEEP PREEXIT RET RPCMOV RTT WARPSYNC YIELD""",
    "Miscellaneous": """B2R BAR CS2R CSMTEST DEPBAR GETLMEMBASE LEPC NOP PMTRIG R2B S2R SETCTAID SETLMEMBASE VOTE
        VOTE_VTG""",
}  # fmt: skip

# Disassembled code has these, which the tables lack; each with the class of its kin.
_UNLISTED = {"F2FP": "Conversion", "ARRIVES": "Load/Store"}  # I2FP, F2IP; LDGSTS, whose arrival it waits for


def class_counts(cell: str, unknown: dict[str, float]) -> list[float] | None:
    """Counts instructions by class, from the cell of a metric that lists its instances.

    Args:
        cell: "1,205 (Control: 1,093; Load/Store: 112)", by class or by opcode.
        unknown: gains, by name, the instructions that are of no known class or opcode; they count as miscellaneous.

    Returns:
        one number for each class, in the order of `CLASSES`; None if the cell lists no whole counts (a bare number,
        ``n/a``).
    """
    _, opened, listed = cell.replace(",", "").partition("(")
    if not opened or listed[-1:] != ")":
        return None
    sums = [0.0] * len(CLASSES)
    try:
        for instance in listed[:-1].split(";"):
            name, number = instance.split(":")
            count = int(number)
            if count < 0:
                return None
            place = _place(name)
            if place is None:
                place = _MISCELLANEOUS
                unknown[name.strip()] = unknown.get(name.strip(), 0.0) + count
            sums[place] += count
    except (ValueError, OverflowError):  # OverflowError: a number of hundreds of digits
        return None
    return sums


@functools.cache
def class_column(name: str) -> str | None:
    """Returns the column of a class ("Load/Store") or an opcode ("LDG", "LDG.E"); None if it is neither."""
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
    by_class = {name: column for column, name in CLASSES.items()} | _FOLDED
    listed = {opcode: name for name, opcodes in _OPCODES.items() for opcode in opcodes.split()}
    by_opcode = {opcode: by_class[name] for opcode, name in (listed | _UNLISTED).items()}
    return {_plain(name): column for name, column in (by_class | by_opcode).items()}
