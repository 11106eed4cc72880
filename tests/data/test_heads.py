"""Heads: one brain at every size and contrast, with the volumes and contrasts that adults have."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
import torch
from scipy.ndimage import label

from medddpm.data.heads import Head, Heads, _generator, head_map, head_parameters, head_subject
from medddpm.data.heads.anatomy import at_voxels, enlarged, flow_for, lattice, template, ventricles_ml
from medddpm.data.heads.parameters import Lesion, usual_hyperintensities_ml, usual_ventricles_ml
from medddpm.data.layouts import HEAD
from medddpm.data.synthetic import origin_of
from medddpm.data.tissues import CONTRASTS, SCANNERS, Tissue, inversion_recovery, mprage
from medddpm.data.volumes import scaled
from medddpm.errors import BadInput

SIZE = (40, 48, 36)
FLUID, GREY, DEEP, WHITE, OEDEMA, RIM, CORE = range(7)


@functools.cache
def subject(index: int) -> Head:
    return head_subject(index, (48, 48, 48))


def millilitres(head: Head) -> float:
    """The volume of a voxel."""
    return float(abs(np.linalg.det(head.affine[:3, :3]))) / 1000


# Signals


def test_mprage_is_the_magnetisation_followed_through_many_trains() -> None:
    tissue, tr, ti, flip, spacing, shots = Tissue(900, 80, 0.8), 2300, 900, 9, 7.0, 100
    before, after = ti - spacing * shots / 2, tr - ti - spacing * shots / 2
    magnetisation, middle = 1.0, 0.0
    for _ in range(20):
        magnetisation = 1 - (1 + magnetisation) * np.exp(-before / tissue.t1)
        for shot in range(shots):
            middle = magnetisation if shot == shots // 2 else middle
            magnetisation = 1 - (1 - magnetisation * np.cos(np.radians(flip))) * np.exp(-spacing / tissue.t1)
        magnetisation = 1 - (1 - magnetisation) * np.exp(-after / tissue.t1)
    expected = tissue.pd * abs(middle) * np.sin(np.radians(flip))
    assert mprage(tissue, tr, ti, flip, spacing, shots) == pytest.approx(expected, rel=1e-6)


def test_mprage_without_excitation_is_inversion_recovery() -> None:
    tissue, tiny = Tissue(1100, 1e12, 1.0), 1e-4
    signal = mprage(tissue, 2300, 900, tiny, 5, 100) / np.sin(np.radians(tiny))
    recovered = abs(1 - 2 * np.exp(-900 / 1100) / (1 + np.exp(-2300 / 1100)))
    assert signal == pytest.approx(recovered, rel=1e-5)
    # The usual equation takes the recovered magnetisation as whole, but for one decay.
    assert signal == pytest.approx(inversion_recovery(tissue, 2300, 0, 900), rel=0.2)


@pytest.mark.parametrize("scanner", SCANNERS, ids=lambda scanner: scanner.name)
def test_every_scanner_orders_the_tissues_as_radiology_knows_them(scanner) -> None:
    t1, t2, flair = (scanner.signals(contrast) for contrast in CONTRASTS)
    assert t1[WHITE] > t1[DEEP] > t1[GREY] > t1[FLUID]
    assert t1[WHITE] > t1[OEDEMA] > t1[RIM] > t1[CORE]
    assert t2[FLUID] > t2[GREY] > t2[DEEP] > t2[WHITE]
    assert min(t2[OEDEMA], t2[RIM], t2[CORE]) > t2[GREY]
    assert min(flair[OEDEMA], flair[RIM]) > flair[GREY] > flair[WHITE] > flair[FLUID]
    assert flair[RIM] > flair[CORE]


# Anatomy


def extreme(index: int) -> dict[str, object]:
    """The parameters that deform most."""
    lesion = Lesion((30.0, 0.0, 20.0), 60.0, 60.0, 0.6, (1.0, 1.0, 1.0), 0.35)
    return (
        {"age": 80.0, "ventricle_factor": 1.8, "asymmetry": 0.24, "torque": 2.4, "lesions": (lesion,)} if index else {}
    )


@pytest.mark.parametrize("index", range(3))
@pytest.mark.parametrize("extremes", [0, 1], ids=["drawn", "extreme"])
@pytest.mark.long
def test_the_map_is_a_diffeomorphism(index: int, extremes: int) -> None:
    parameters = dataclasses.replace(head_parameters(index, seed=2), **extreme(extremes))
    points = head_map(parameters, _generator(2, index, "map"))[:3]
    axes = [np.arange(-half, half, 2.0) for half in (80, 98, 86)]
    gradient = np.stack([np.stack(np.gradient(part, 2.0)) for part in at_voxels(points, axes)])
    determinant = np.linalg.det(np.moveaxis(gradient, (0, 1), (-2, -1)))
    assert determinant.min() > 0
    assert determinant.std() > 0.1, "and it deforms"


def test_the_flow_enlarges_the_ventricles_as_asked_and_displaces_white_matter() -> None:
    axes = [np.arange(-half, half, 2.0) for half in (60, 80, 60)]
    points = np.stack(np.meshgrid(*axes, indexing="ij")).astype(np.float32)
    known = template(2)
    assert 15 < ventricles_ml() < 25
    usual = known.tissues(points, 0.0)
    for ratio in (0.5, 2.0, 4.0):
        moved = enlarged(points, flow_for(ratio))
        assert known.ventricles(moved).sum() / known.ventricles(points).sum() == pytest.approx(ratio, rel=0.05)
        shares = known.tissues(moved, 0.0)
        gained = (shares[FLUID] - usual[FLUID]).sum()
        lost = (usual[WHITE] - shares[WHITE]).sum()
        assert abs(lost) < 0.9 * abs(gained), "white matter is compressed around them, not only painted over"


def test_the_templates_tissues_are_whole() -> None:
    known = template(2)
    _, points = lattice()
    shares = known.tissues(points, 0.2)
    np.testing.assert_allclose(shares[:4].sum(axis=0)[shares[4] == 1], 1, atol=1e-4)
    assert (shares[:4].sum(axis=0) <= shares[4] + 1e-4).all()
    young, old = (known.tissues(points, atrophy) for atrophy in (-0.2, 0.8))
    assert old[FLUID].sum() > 1.5 * young[FLUID].sum()
    assert old[GREY].sum() < young[GREY].sum()


def test_no_holes_and_no_islands() -> None:
    for index in range(3):
        head = subject(index)
        brain = head.labels > 0
        assert label(brain)[1] == label(~brain, np.ones((3, 3, 3)))[1] == 1
        winner = np.where(brain, head.shares.argmax(axis=0), -1)
        white = label(np.isin(winner, (WHITE, OEDEMA, RIM, CORE)), np.ones((3, 3, 3)))[0]
        sizes = np.bincount(white.ravel())[1:]
        assert sizes.max() > 0.97 * sizes.sum()


def test_twenty_subjects_have_the_volumes_of_adults() -> None:
    """Ranges of healthy adults; tumour and oedema take their part of grey and white matter."""
    for index in range(20):
        head = subject(index)
        fluid, grey, deep, white, oedema, rim, core = head.shares.sum(axis=(1, 2, 3)) * millilitres(head)
        parameters = head.parameters
        brain = (head.labels > 0).sum() * millilitres(head)
        assert 1050 < brain < 1750
        assert brain == pytest.approx(parameters.intracranial_ml, rel=0.03)
        assert 5 < head.ventricles.sum() * millilitres(head) < 90
        assert 0.04 < fluid / brain < 0.25
        assert 470 < grey + deep + (rim + core) / 2 < 900
        assert 380 < white + oedema + (rim + core) / 2 < 750
        assert 1.0 < (grey + deep) / (white + oedema) < 1.7
        assert 15 < deep < 45, "a tumour may take some of it"
        faces = [np.take(head.labels, (0, -1), axis) for axis in range(3)]
        assert sum((face > 0).sum() for face in faces) == 0


def test_ventricles_grow_with_age_and_with_their_factor() -> None:
    def volume(**changed: object) -> float:
        head = head_subject(3, (40, 40, 40), lesions=(), **changed)
        return float(head.ventricles.sum()) * millilitres(head)

    ages = [volume(age=age, ventricle_factor=1.0) for age in (25.0, 50.0, 75.0)]
    assert ages == pytest.approx([usual_ventricles_ml(age) for age in (25.0, 50.0, 75.0)], rel=0.1)
    factors = [volume(age=50.0, ventricle_factor=factor) for factor in (0.6, 1.0, 1.8)]
    assert factors == pytest.approx([factor * usual_ventricles_ml(50) for factor in (0.6, 1.0, 1.8)], rel=0.1)


def test_atrophy_widens_the_sulci_at_the_cost_of_cortex() -> None:
    young, old = (head_subject(3, (40, 40, 40), lesions=(), atrophy=atrophy).shares for atrophy in (0.0, 0.6))
    gained, lost = old[FLUID].sum() - young[FLUID].sum(), young[GREY].sum() - old[GREY].sum()
    assert gained == pytest.approx(lost, rel=0.15)
    assert gained > 0.2 * young[FLUID].sum()


def test_hyperintensities_are_in_white_matter_and_more_in_the_old() -> None:
    assert usual_hyperintensities_ml(64) == pytest.approx(2.0)
    few, many = (head_subject(3, (40, 40, 40), lesions=(), hyperintensities_ml=ml) for ml in (0.5, 15.0))
    spots = [float(head.shares[OEDEMA].sum()) * millilitres(head) for head in (few, many)]
    assert spots[0] < 2 < 8 < spots[1] < 25
    np.testing.assert_allclose(
        few.shares[WHITE] + few.shares[OEDEMA], many.shares[WHITE] + many.shares[OEDEMA], atol=1e-5
    )


# Lesions


def test_the_parts_of_a_lesion_are_nested_and_as_large_as_said() -> None:
    lesion = Lesion((25.0, 0.0, 25.0), 30.0, 40.0, 0.6, (1.0, 1.0, 1.0), 0.2)
    head = head_subject(2, (64, 64, 64), lesions=(lesion,), hyperintensities_ml=0.1)
    core, tumour = head.shares[CORE] > 0.5, head.labels == 2
    oedema = head.shares[OEDEMA] > 0.3
    assert core.any()
    assert not (core & ~tumour).any()
    grown = label(tumour | oedema, np.ones((3, 3, 3)))[0]
    assert (grown[tumour] == grown[tumour][0]).all(), "one lesion, with its oedema"
    assert (grown == grown[tumour][0]).sum() > 0.9 * (tumour | oedema).sum()
    np.testing.assert_allclose(tumour.sum() * millilitres(head), 30, rtol=0.15)
    np.testing.assert_allclose((head.shares[RIM] + head.shares[CORE]).sum() * millilitres(head), 30, rtol=0.15)
    assert 20 < head.shares[OEDEMA].sum() * millilitres(head) < 45
    healthy = head_subject(2, (64, 64, 64), lesions=(), hyperintensities_ml=0.1)
    assert healthy.labels.max() == 1
    assert (healthy.shares[WHITE][oedema] > 0.2).mean() > 0.75, "oedema follows the white matter"


def test_a_lesion_without_core_is_solid_and_a_small_one_as_large_as_said() -> None:
    for ml in (1.0, 10.0):
        lesion = Lesion((25.0, 0.0, 25.0), ml, ml, 0.0, (1.0, 1.0, 1.0), 0.2)
        head = head_subject(2, (64, 64, 64), lesions=(lesion,))
        assert head.shares[CORE].max() < 1e-3
        assert (head.labels == 2).sum() * millilitres(head) == pytest.approx(ml, rel=0.25)


def test_a_tumour_beside_the_falx_grows_along_it_and_the_skull_does_not_yield() -> None:
    lesion = Lesion((20.0, 10.0, 30.0), 80.0, 40.0, 0.0, (1.0, 1.0, 1.0), 0.35)
    head = head_subject(2, (48, 48, 48), lesions=(lesion,), turn=(0.0, 0.0, 0.0), shift=(0.0, 0.0, 0.0))
    tumour = head.labels == 2
    middle = tumour.shape[0] // 2
    assert tumour[:middle].sum() < 0.1 * tumour.sum()
    assert tumour[middle : middle + 4].sum() > 0.1 * tumour.sum()
    brain = (head.labels > 0).sum() * millilitres(head)
    assert brain == pytest.approx(head.parameters.intracranial_ml, rel=0.02)


def test_lesions_differ_in_number_size_and_kind() -> None:
    subjects = [head_parameters(index, seed=1).lesions for index in range(400)]
    first = np.array([lesions[0].tumour_ml for lesions in subjects])
    assert 24 < first.mean() < 38
    assert np.quantile(first, 0.1) < 8 < 60 < np.quantile(first, 0.9)
    assert 0.13 < np.mean([lesions[0].necrosis == 0 for lesions in subjects]) < 0.27
    assert 0.07 < np.mean([len(lesions) > 1 for lesions in subjects]) < 0.17
    for lesions in subjects:
        assert 1 <= len(lesions) <= 3
        assert {lesion.necrosis > 0 for lesion in lesions} == {lesions[0].necrosis > 0}, "a subject's are of one kind"
        assert all(1 <= lesion.tumour_ml <= max(1, lesions[0].tumour_ml / 2) for lesion in lesions[1:])


def test_a_head_without_lesion_is_the_same_head() -> None:
    bare, head = head_subject(1, (40, 40, 40), lesions=()), head_subject(1, (40, 40, 40))
    assert set(np.unique(bare.labels)) == {0, 1}
    assert head.labels.max() == 2
    assert bare.parameters == dataclasses.replace(head.parameters, lesions=())
    brains = [part.labels > 0 for part in (bare, head)]
    assert 2 * (brains[0] & brains[1]).sum() / (brains[0].sum() + brains[1].sum()) > 0.97


def means(head: Head, contrast: str) -> list[float]:
    """Mean signals of nearly pure tissues."""
    image = head.images[contrast]
    return [float(image[share > 0.8].mean()) if (share > 0.8).any() else np.nan for share in head.shares]


def test_contrasts_of_the_images() -> None:
    lesion = Lesion((25.0, 0.0, 25.0), 40.0, 60.0, 0.6, (1.0, 1.0, 1.0), 0.2)
    for index in range(2):
        head = head_subject(index, (48, 48, 48), bias=0.02, snr=60.0, lesions=(lesion,))
        t1, t2, flair = (means(head, contrast) for contrast in CONTRASTS)
        assert t1[WHITE] > t1[GREY] > t1[FLUID]
        assert t2[FLUID] > t2[GREY] > t2[WHITE]
        assert min(flair[OEDEMA], flair[RIM]) > flair[GREY] > flair[WHITE] > flair[FLUID]
        assert t1[CORE] < t1[WHITE]
        for image in head.images.values():
            assert (image[head.labels == 0] == 0).all()
            assert np.isfinite(image).all()


def test_noise_and_bias_are_what_the_parameters_say() -> None:
    quiet, noisy = (head_subject(4, (40, 40, 40), snr=snr).images["t1"] for snr in (1e6, 25.0))
    head = subject(4)
    white = head.parameters.scanner.signals("t1")
    expected = white[WHITE] / max(white[:4]) / 25
    brain = quiet > 0.5
    assert (noisy - quiet)[brain].std() == pytest.approx(expected, rel=0.1)
    even, uneven = (head_subject(4, (40, 40, 40), snr=1e6, bias=bias).images["t1"] for bias in (0.0, 0.2))
    low, high = np.quantile(np.log(uneven[brain] / even[brain]), (0.025, 0.975))
    assert (high - low) / 2 == pytest.approx(0.2, rel=0.1)


# The data set


def test_a_subject_is_the_same_one_at_every_size_and_contrast() -> None:
    lesion = Lesion((25.0, 0.0, 25.0), 30.0, 40.0, 0.6, (1.0, 1.0, 1.0), 0.2)
    fine, coarse = (head_subject(1, (side, side, side), lesions=(lesion,)) for side in (64, 32))
    assert fine.parameters == coarse.parameters
    assert head_parameters(1) == subject(1).parameters

    def dice(mask: np.ndarray, seen: np.ndarray) -> float:
        halved = mask.reshape(32, 2, 32, 2, 32, 2).mean(axis=(1, 3, 5)) > 0.5
        return float(2 * (halved & seen).sum() / (halved.sum() + seen.sum()))

    assert dice(fine.labels > 0, coarse.labels > 0) > 0.97
    assert dice(fine.labels == 2, coarse.labels == 2) > 0.9
    assert dice(fine.shares[WHITE] > 0.5, coarse.shares[WHITE] > 0.5) > 0.9
    masks = [Heads(2, (24, 24, 24), contrast)[1][1] for contrast in CONTRASTS]
    assert torch.equal(masks[0], masks[1])
    assert torch.equal(masks[0], masks[2])


def test_items_depend_on_seed_and_index_alone() -> None:
    forwards, backwards = Heads(3, SIZE, seed=5), Heads(3, SIZE, seed=5, cache_gib=0)
    torch.manual_seed(0)
    np.random.seed(0)
    expected = [forwards[index] for index in range(3)]
    after = torch.rand(1), np.random.rand()
    torch.manual_seed(0)
    np.random.seed(0)
    assert (torch.rand(1), np.random.rand()) == after, "global random state is neither used nor changed"
    for index in reversed(range(3)):
        assert all(map(torch.equal, backwards[index], expected[index]))
    assert not torch.equal(Heads(3, SIZE, seed=6)[0][0], expected[0][0])
    assert head_parameters(0, 5) != head_parameters(1, 5) != head_parameters(1, 6)


@pytest.mark.parametrize("contrast", CONTRASTS)
def test_item_is_the_subject_as_a_whole_head_case(contrast: str) -> None:
    heads, head = Heads(2, SIZE, contrast, seed=3), head_subject(1, SIZE, seed=3)
    image, mask = heads[1]
    assert heads.layout is HEAD
    assert (image.shape, mask.shape) == ((1, 36, 48, 40), (2, 36, 48, 40))
    assert (image.dtype, mask.dtype) == (torch.float32, torch.float32)
    np.testing.assert_allclose(image[0].numpy().transpose(2, 1, 0), scaled(head.images[contrast]), atol=1e-6)
    for channel, value in zip(mask.numpy(), (1, 2), strict=True):
        np.testing.assert_array_equal(channel.transpose(2, 1, 0), np.where(head.labels == value, 1, -1))
    reference = heads.reference(1)
    np.testing.assert_array_equal(np.asarray(reference.dataobj), head.labels)
    np.testing.assert_allclose(reference.affine, head.affine)


@pytest.mark.parametrize("side", [2, 4])
def test_voxels_as_large_as_lobes_are_no_error(side: int) -> None:
    image, mask = Heads(1, (side, side, side))[0]
    assert image.shape == (1, side, side, side)
    assert torch.isfinite(image).all()
    assert (mask[0] == 1).any() == (side == 4)


def test_names_length_and_wrong_arguments() -> None:
    heads = Heads(2, (16, 16, 16), "t2", seed=7)
    assert heads.names() == heads.digests() == ["head t2, seed 7, subject 0", "head t2, seed 7, subject 1"]
    assert origin_of(heads.names()) == ("head", "t2", 7)
    assert origin_of([*heads.names(), "phantom t2, seed 7, subject 0"]) is None
    with pytest.raises(IndexError):
        heads[2]
    with pytest.raises(ValueError, match="none of t1, t2, flair"):
        Heads(contrast="pd")
    with pytest.raises(BadInput, match="give a count from 1 and a seed from 0"):
        Heads(count=0)
