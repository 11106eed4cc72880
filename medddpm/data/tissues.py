"""Relaxation times of the brain's tissues, the signals that MR sequences make of them, and scanners with their timings.

The equations of spin echo and of inversion recovery are those of Bernstein, King & Zhou 2004, Handbook of MRI Pulse
Sequences, 14; that of MPRAGE (Mugler & Brookeman 1990, Magn. Reson. Med. 15:152) follows Deichmann et al. 2000,
NeuroImage 12:112.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

Contrast = Literal["t1", "t2", "flair"]
CONTRASTS: tuple[Contrast, ...] = get_args(Contrast)


@dataclass(frozen=True)
class Tissue:
    """Relaxation times `t1` and `t2` in ms, and proton density `pd` relative to water."""

    t1: float
    t2: float
    pd: float


def spin_echo(tissue: Tissue, tr: float, te: float) -> float:
    """Returns the signal PD (1 - exp(-TR/T1)) exp(-TE/T2); times in ms."""
    return tissue.pd * (1 - math.exp(-tr / tissue.t1)) * math.exp(-te / tissue.t2)


def inversion_recovery(tissue: Tissue, tr: float, te: float, ti: float) -> float:
    """Returns the signal PD |1 - 2 exp(-TI/T1) + exp(-TR/T1)| exp(-TE/T2); times in ms."""
    recovered = 1 - 2 * math.exp(-ti / tissue.t1) + math.exp(-tr / tissue.t1)
    return tissue.pd * abs(recovered) * math.exp(-te / tissue.t2)


def mprage(tissue: Tissue, tr: float, ti: float, flip: float, spacing: float, shots: int) -> float:
    """Returns the signal PD |M| sin(flip) at the middle of the readout train, in the steady state.

    The echo is too short for T2* to count.

    Args:
        tissue: is imaged.
        tr: from one inversion to the next, ms.
        ti: from the inversion to the middle of the train, ms.
        flip: degrees.
        spacing: from one excitation to the next, ms.
        shots: excitations in a train.
    """
    angle, before = math.radians(flip), ti - spacing * shots / 2
    after = tr - before - spacing * shots
    decay = math.exp(-spacing / tissue.t1)
    steady = (1 - decay) / (1 - decay * math.cos(angle))
    kept, waited, regrown = (
        (decay * math.cos(angle)) ** shots,
        math.exp(-before / tissue.t1),
        math.exp(-after / tissue.t1),
    )
    # Each step maps the magnetisation m to scale · m + offset; the steady state is its own image.
    scale, offset = -waited, 1 - waited  # the inversion and the wait
    scale, offset = scale * kept, steady + (offset - steady) * kept  # the train
    scale, offset = scale * regrown, 1 + (offset - 1) * regrown  # the recovery
    first = 1 - waited * (1 + offset / (1 - scale))
    middle = steady + (first - steady) * math.sqrt(kept)
    return tissue.pd * abs(middle) * math.sin(angle)


def nulling_time(tissue: Tissue, tr: float) -> float:
    """Returns the inversion time (ms) at which `tissue` gives no signal: T1 ln(2 / (1 + exp(-TR/T1)))."""
    return tissue.t1 * math.log(2 / (1 + math.exp(-tr / tissue.t1)))


# Times and densities of BrainWeb, 1.5 T: tissue_mr_parameters.txt of the Simulated Brain Database,
# brainweb.bic.mni.mcgill.ca (Kwan, Evans & Pike 1999, IEEE Trans. Med. Imaging 18:1085; Collins et al. 1998, the same
# journal 17:463).

CSF = Tissue(t1=2569, t2=329, pd=1.0)
GREY = Tissue(t1=833, t2=83, pd=0.86)
WHITE = Tissue(t1=500, t2=70, pd=0.77)
DAMAGED = Tissue(t1=752, t2=237, pd=0.76)
"""BrainWeb's multiple-sclerosis lesion."""


@dataclass(frozen=True)
class Tissues:
    """The tissues of a head at one field strength, in the order in which `medddpm.data.heads` mixes them.

    `deep` is the grey matter of thalamus and basal ganglia, whose myelin and iron (Hallgren & Sourander 1958, J.
    Neurochem. 3:41) shorten its times towards white matter's. The putamen's T1 is 0.91 of the cortex's at 1.5 T and
    0.83 at 3 T (Wright et al. 2008, MAGMA 21:121: 1084 and 1197, 1332 and 1607 ms); in the sets below it is 0.83 to
    0.89, and `deep`'s T2, between white and grey matter's, is a choice. Of a glioma, `core` is necrosis, `rim` the
    solid tumour.
    """

    csf: Tissue
    grey: Tissue
    deep: Tissue
    white: Tissue
    oedema: Tissue
    rim: Tissue
    core: Tissue

    def all(self) -> tuple[Tissue, ...]:
        """Returns the tissues, in order."""
        return self.csf, self.grey, self.deep, self.white, self.oedema, self.rim, self.core


BRAINWEB = Tissues(
    csf=CSF,
    grey=GREY,
    deep=Tissue(t1=690, t2=76, pd=0.83),
    white=WHITE,
    oedema=Tissue(t1=752, t2=170, pd=0.86),
    rim=Tissue(t1=870, t2=140, pd=0.89),
    core=Tissue(t1=1700, t2=280, pd=0.97),
)
"""Healthy tissue as BrainWeb has it, 1.5 T. Oedema has the T1 of BrainWeb's lesion; a glioma's other times are choices,
about as long beside white matter's as in `AT_3_T`."""

FLUID = Tissue(t1=4300, t2=2000, pd=1.0)
"""Cerebrospinal fluid: its T1 does not depend on the field (Rooney et al. 2007, Magn. Reson. Med. 57:308), and FSL-MRS
takes 4.47 s at 3 T and 4.43 s at 7 T from them; its T2 is 2.03 s at 3 T (Spijkerman et al. 2017, MAGMA,
doi:10.1007/s10334-017-0659-3, as FSL-MRS has it). Both times are choices near these."""

AT_1_5_T = Tissues(
    csf=FLUID,
    grey=Tissue(t1=1124, t2=95, pd=0.86),
    deep=Tissue(t1=1000, t2=80, pd=0.84),
    white=Tissue(t1=884, t2=72, pd=0.77),
    oedema=Tissue(t1=1250, t2=170, pd=0.86),
    rim=Tissue(t1=1400, t2=140, pd=0.89),
    core=Tissue(t1=2800, t2=320, pd=0.97),
)
"""Grey and white matter: Stanisz et al. 2005, Magn. Reson. Med. 54:507, table 1, of a cow's brain at 37 °C. In people
T1 is 1197 ± 134 and 646 ± 32 ms by MPRAGE (Wright et al. 2008); how long it seems depends on the method (Assländer &
Flassbeck 2024, arXiv 2409.05318).

Proton densities are BrainWeb's. A glioma's times are choices, near those of `AT_3_T`.
"""

AT_3_T = Tissues(
    csf=FLUID,
    grey=Tissue(t1=1331, t2=99, pd=0.86),
    deep=Tissue(t1=1130, t2=82, pd=0.84),
    white=Tissue(t1=832, t2=69, pd=0.77),
    oedema=Tissue(t1=1261, t2=160, pd=0.86),
    rim=Tissue(t1=1450, t2=135, pd=0.89),
    core=Tissue(t1=2800, t2=300, pd=0.97),
)
"""Grey and white matter: T1 of Wansapura et al. 1999, J. Magn. Reson. Imaging 9:531 (1331 ± 13, 832 ± 10 ms), T2 of
Stanisz et al. 2005 (99 ± 7, 69 ± 3 ms).

Oedema's and solid tumour's T1: de Blank et al. 2019, Pediatr. Neurosurg. 54:310, by fingerprinting in children and
young adults, most with gliomas of low grade (peritumoral 1261 ± 359, solid tumour 1444 ± 254 ms; of high grade 1863 ±
70). There T2 is 1.7 times white matter's in peritumoral tissue and 1.6 in solid tumour, of high grade 2.4; here it is
2.3 and 2.0. Necrosis, between solid tumour and CSF, is a choice, by which the core is dark in T1.
"""


@dataclass(frozen=True)
class Scanner:
    """A field strength and the timings of a protocol; times in ms, angles in degrees.

    Args:
        name: says which protocol.
        tissues: at its field.
        t1: MPRAGE's tr, ti, flip, spacing, shots; or spin echo's tr, te.
        t2: turbo spin echo's tr and effective te.
        flair: tr and te; its inversion time nulls CSF.
    """

    name: str
    tissues: Tissues
    t1: tuple[float, float, float, float, int] | tuple[float, float]
    t2: tuple[float, float]
    flair: tuple[float, float]

    def signals(self, contrast: Contrast) -> list[float]:
        """Returns the signal of each of `Tissues.all`."""
        return [self._signal(tissue, contrast) for tissue in self.tissues.all()]

    def _signal(self, tissue: Tissue, contrast: Contrast) -> float:
        if contrast == "t2":
            return spin_echo(tissue, *self.t2)
        if contrast == "flair":
            return inversion_recovery(tissue, *self.flair, ti=nulling_time(self.tissues.csf, self.flair[0]))
        return spin_echo(tissue, *self.t1) if len(self.t1) == 2 else mprage(tissue, *self.t1)


SCANNERS = (
    Scanner("1.5 T, spin echo", BRAINWEB, t1=(500, 14), t2=(4000, 100), flair=(9000, 110)),
    Scanner("1.5 T, MPRAGE", AT_1_5_T, t1=(2400, 1000, 8, 8.6, 160), t2=(3000, 95), flair=(9000, 125)),
    Scanner("3 T, MPRAGE", AT_3_T, t1=(2300, 900, 9, 7.1, 170), t2=(5000, 90), flair=(9000, 90)),
    Scanner("3 T, tumour protocol", AT_3_T, t1=(2100, 1100, 12, 7.0, 176), t2=(4000, 100), flair=(9000, 110)),
)
"""Timings are choices within what is common, near two protocols whose tables were not at hand.

ADNI's MPRAGE (Jack et al. 2008, J. Magn. Reson. Imaging 27:685) at 1.5 T and 3 T; the consensus for brain tumours
(Ellingson et al. 2015, Neuro Oncol. 17:1188), which recommends ranges for a 3-D inversion-prepared gradient echo, a T2
turbo spin echo and FLAIR at both fields.
"""
