"""Table 1, the paper's cards (P008 to P049), judged by a card's driver or a document of its maker.

`sources.csv` has the documents' words by the claims' numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from study.claims.cards import deciding_cards, sources
from study.claims.paper import Claim
from study.claims.verdicts import Finding

ROUNDED = 0.02  # a data sheet rounds; text must be equal


@dataclass(frozen=True)
class PropertyCase:
    """A property of one of the paper's cards, and the properties of ours.

    Args:
        claim: what Table 1 states.
        ours: by card, value and origin of each property that its driver tells.
    """

    claim: Claim
    ours: Mapping[str, Mapping[str, tuple[str, str]]]

    def check(self, name: str) -> Finding:
        """Compares with the card's own driver or else with the document, and names the card that stands in for it."""
        stands_in = deciding_cards()["stands_in_for"]
        other = str(next(iter(stands_in.index[stands_in == self.claim.gpu]), ""))
        value, _ = self.ours.get(other, {}).get(name, (None, ""))
        finding = self._of_the_card_itself(name)
        return replace(finding, other_card=other, other_value=value) if value else finding

    def _of_the_card_itself(self, name: str) -> Finding:
        gpu, source = self.claim.gpu, sources().get(self.claim.id)
        cited = ""
        if source:
            cited = f"{source['document']}, {source['place']}: {source['value']} (read at {source['read_at']})."
            cited += f" {source['note']}." if source["note"] else ""
        if name in self.ours.get(gpu, {}):
            value, origin = self.ours[gpu][name]
            derived = origin.removeprefix("driver").removeprefix("derived: ")
            by_driver = f"By the driver of our {gpu}" + (f", from {derived}." if derived else ".")
            return Finding("card", f"{by_driver} {cited}".rstrip(), value, ROUNDED, gpu)
        if source:
            return Finding("source", cited, source["value"], ROUNDED)
        return Finding("source", f"Not checked. We have no {gpu}, and we read no page that says its {name}.")


def p008(case: PropertyCase) -> Finding:
    """Judges Table 1, H100, GPU: architecture = Hopper."""
    return case.check("architecture")


def p009(case: PropertyCase) -> Finding:
    """Judges Table 1, H100, GPU: CUDA cores = 14592."""
    return case.check("CUDA cores")


def p010(case: PropertyCase) -> Finding:
    """Judges Table 1, H100, GPU: memory size = 80 GB."""
    return case.check("memory size")


def p011(case: PropertyCase) -> Finding:
    """Judges Table 1, H100, GPU: memory type = HBM3."""
    return case.check("memory type")


def p012(case: PropertyCase) -> Finding:
    """Judges Table 1, H100, GPU: memory bandwidth = 3350 GB/s."""
    return case.check("memory bandwidth")


def p013(case: PropertyCase) -> Finding:
    """Judges Table 1, H100, GPU: peak FP32 = 60 TFLOP/s."""
    return case.check("peak FP32")


def p014(case: PropertyCase) -> Finding:
    """Judges Table 1, H100, GPU: Tensor Cores = Gen4 + FP8."""
    return case.check("Tensor Cores")


def p015(case: PropertyCase) -> Finding:
    """Judges Table 1, H100, GPU: NVLink bandwidth = 900 GB/s."""
    return case.check("NVLink bandwidth")


def p016(case: PropertyCase) -> Finding:
    """Judges Table 1, H100, GPU: PCIe version = Gen5."""
    return case.check("PCIe version")


def p017(case: PropertyCase) -> Finding:
    """Judges Table 1, H100, GPU: multi-instance GPU = yes."""
    return case.check("multi-instance GPU")


def p018(case: PropertyCase) -> Finding:
    """Judges Table 1, H100, GPU: Transformer Engine = yes."""
    return case.check("Transformer Engine")


def p019(case: PropertyCase) -> Finding:
    """Judges Table 1, H100, GPU: L1 cache per SM = 256 KB."""
    return case.check("L1 cache per SM")


def p020(case: PropertyCase) -> Finding:
    """Judges Table 1, H100, GPU: L2 cache = 50 MB."""
    return case.check("L2 cache")


def p021(case: PropertyCase) -> Finding:
    """Judges Table 1, A100, GPU: architecture = Ampere."""
    return case.check("architecture")


def p022(case: PropertyCase) -> Finding:
    """Judges Table 1, A100, GPU: CUDA cores = 6912."""
    return case.check("CUDA cores")


def p023(case: PropertyCase) -> Finding:
    """Judges Table 1, A100, GPU: memory size = 40 / 80 GB."""
    return case.check("memory size")


def p024(case: PropertyCase) -> Finding:
    """Judges Table 1, A100, GPU: memory type = HBM2e."""
    return case.check("memory type")


def p025(case: PropertyCase) -> Finding:
    """Judges Table 1, A100, GPU: memory bandwidth = 2000 GB/s."""
    return case.check("memory bandwidth")


def p026(case: PropertyCase) -> Finding:
    """Judges Table 1, A100, GPU: peak FP32 = 19.5 TFLOP/s."""
    return case.check("peak FP32")


def p027(case: PropertyCase) -> Finding:
    """Judges Table 1, A100, GPU: Tensor Cores = Gen3."""
    return case.check("Tensor Cores")


def p028(case: PropertyCase) -> Finding:
    """Judges Table 1, A100, GPU: NVLink bandwidth = 600 GB/s."""
    return case.check("NVLink bandwidth")


def p029(case: PropertyCase) -> Finding:
    """Judges Table 1, A100, GPU: PCIe version = Gen4."""
    return case.check("PCIe version")


def p030(case: PropertyCase) -> Finding:
    """Judges Table 1, A100, GPU: multi-instance GPU = yes."""
    return case.check("multi-instance GPU")


def p031(case: PropertyCase) -> Finding:
    """Judges Table 1, A100, GPU: Transformer Engine = no."""
    return case.check("Transformer Engine")


def p032(case: PropertyCase) -> Finding:
    """Judges Table 1, A100, GPU: L1 cache per SM = 192 KB."""
    return case.check("L1 cache per SM")


def p033(case: PropertyCase) -> Finding:
    """Judges Table 1, A100, GPU: L2 cache = 40 MB."""
    return case.check("L2 cache")


def p034(case: PropertyCase) -> Finding:
    """Judges Table 1, V100, GPU: architecture = Volta."""
    return case.check("architecture")


def p035(case: PropertyCase) -> Finding:
    """Judges Table 1, V100, GPU: CUDA cores = 5120."""
    return case.check("CUDA cores")


def p036(case: PropertyCase) -> Finding:
    """Judges Table 1, V100, GPU: memory size = 16 / 32 GB."""
    return case.check("memory size")


def p037(case: PropertyCase) -> Finding:
    """Judges Table 1, V100, GPU: memory type = HBM2."""
    return case.check("memory type")


def p038(case: PropertyCase) -> Finding:
    """Judges Table 1, V100, GPU: memory bandwidth = 900 GB/s."""
    return case.check("memory bandwidth")


def p039(case: PropertyCase) -> Finding:
    """Judges Table 1, V100, GPU: peak FP32 = 15.7 TFLOP/s."""
    return case.check("peak FP32")


def p040(case: PropertyCase) -> Finding:
    """Judges Table 1, V100, GPU: Tensor Cores = Gen1."""
    return case.check("Tensor Cores")


def p041(case: PropertyCase) -> Finding:
    """Judges Table 1, V100, GPU: NVLink bandwidth = 300 GB/s."""
    return case.check("NVLink bandwidth")


def p042(case: PropertyCase) -> Finding:
    """Judges Table 1, V100, GPU: PCIe version = Gen3 / Gen4."""
    return case.check("PCIe version")


def p043(case: PropertyCase) -> Finding:
    """Judges Table 1, V100, GPU: multi-instance GPU = no."""
    return case.check("multi-instance GPU")


def p044(case: PropertyCase) -> Finding:
    """Judges Table 1, V100, GPU: Transformer Engine = no."""
    return case.check("Transformer Engine")


def p045(case: PropertyCase) -> Finding:
    """Judges Table 1, V100, GPU: L1 cache per SM = 128 KB."""
    return case.check("L1 cache per SM")


def p046(case: PropertyCase) -> Finding:
    """Judges Table 1, V100, GPU: L2 cache = 6 MB."""
    return case.check("L2 cache")


def p047(case: PropertyCase) -> Finding:
    """Judges Table 1, H100, GPU: supported precision = FP16/32/64, TF32, INT8, INT4, FP8."""
    return case.check("supported precision")


def p048(case: PropertyCase) -> Finding:
    """Judges Table 1, A100, GPU: supported precision = FP16/32/64, TF32, INT8, INT4."""
    return case.check("supported precision")


def p049(case: PropertyCase) -> Finding:
    """Judges Table 1, V100, GPU: supported precision = FP16/32/64, INT8."""
    return case.check("supported precision")
