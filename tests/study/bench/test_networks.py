"""What `torch.compile` makes of the networks that the ordinary tools are timed on."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, fx

from study.bench.networks import NETWORKS, Problem, planned

SIDES = {"monai-swinunetr": 64, "monai-densenet": 64}  # the least at which its last level is no single voxel
BROKEN = {"monai-basic-unet": 9, "monai-basic-unetplusplus": 26, "monai-swinunetr": 2}
"""The first two ask torch.jit.isinstance, the third checks its input by NumPy."""


QUICK = ("med-ddpm", "monai-unet", "monai-basic-unet")
EVERY = [
    name if name in QUICK else pytest.param(name, marks=pytest.mark.long)
    for name in NETWORKS
    if name not in ("med-ddpm-brats", "maisi-autoencoder", "monai-voxelmorph", "torchvision-video")
]


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.long
def test_every_network_compiles_as_one_graph_but_three(name: str) -> None:
    graphs = list[fx.GraphModule]()

    def counting(graph: fx.GraphModule, _: list[Tensor]) -> fx.GraphModule:
        graphs.append(graph)
        return graph

    network = NETWORKS[name]
    side = SIDES.get(name, 32)
    problem = Problem(network, side, 1, torch.device("meta"))
    torch.compiler.reset()
    try:
        with torch.no_grad():
            torch.compile(planned(network, side, 32), backend=counting)(*problem.forward_inputs())
    finally:
        torch.compiler.reset()
    assert len(graphs) == BROKEN.get(name, 1)
