"""What PyTorch and other tools do with a network, they do with an accelerated one, and get the same."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import monai.data
import pytest
import torch
from helpers.gpu import DEVICE
from helpers.networks import NETWORKS, block, check_near, distance, farthest, inputs, made, passed, volume
from helpers.pages import page_text
from monai.data import MetaTensor
from monai.data import MetaTensor as Scan
from monai.networks.nets import SPADENet, VarAutoEncoder
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional
from torch.nn.utils import parameters_to_vector, prune

from medddpm.errors import BadInput
from medddpm.fast.kinds import may_be_asked
from medddpm.fast.patch import accelerate, restore
from medddpm.fast.replay.step import graphed_step

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch.func's own, for one
X = volume(2, 3, 8, 8, 8)


def accelerated(network: nn.Module, reduced: bool = False) -> nn.Module:
    """On the fast path; `reduced` with BF16 products on a CPU too."""
    accelerate(network, report=None)
    if reduced:
        network.forward.reduced_on = ("cpu",)  # type: ignore[union-attr]
    return network


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last_3d])
@pytest.mark.parametrize("reduced", [False, True])
def test_parameters_and_gradients_keep_their_memory(reduced: bool, layout: torch.memory_format) -> None:
    network = block().to(memory_format=layout)
    before = {key: (value.data_ptr(), value.stride()) for key, value in network.state_dict().items()}
    accelerated(network, reduced)(X).sum().backward()
    assert {key: (value.data_ptr(), value.stride()) for key, value in network.state_dict().items()} == before
    assert {key: p.grad.stride() for key, p in network.named_parameters()} == {k: s for k, (_, s) in before.items()}


def test_weights_are_cast_into_channels_last() -> None:
    network = accelerated(block(), reduced=True)
    seen: list[Tensor] = []
    weight = network[3].forward.weight
    network[2].register_forward_hook(lambda *_: seen.append(weight()))
    network(X).sum().backward()
    assert seen[0].dtype == torch.bfloat16
    assert seen[0].is_contiguous(memory_format=torch.channels_last_3d)
    assert torch.equal(seen[0], network[3].weight.bfloat16())


def lbfgs(network: nn.Module) -> None:
    optimizer = torch.optim.LBFGS(network.parameters(), lr=1e-2, max_iter=3)

    def closure() -> float:
        optimizer.zero_grad()
        loss = network(X).square().mean()
        loss.backward()
        return loss.item()

    optimizer.step(closure)


def pruned(network: nn.Module) -> None:
    prune.global_unstructured([(network[0], "weight"), (network[3], "weight")], prune.L1Unstructured, amount=0.3)


@pytest.mark.parametrize("change", [lbfgs, pruned])
def test_tools_that_view_parameters(change: Callable[[nn.Module], None]) -> None:
    plain, fast = block(), accelerated(block())
    for network in (plain, fast):
        change(network)
    assert distance(parameters_to_vector(fast.parameters()), parameters_to_vector(plain.parameters())) < 1e-4
    assert distance(fast(X), plain(X)) < 1e-4


def test_safetensors_saves_the_state() -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    state = accelerated(block()).state_dict()
    loaded = safetensors.load(safetensors.save(state))
    assert all(torch.equal(loaded[key], value) for key, value in state.items())


def flattened(x: Tensor) -> Tensor:
    return x.view(x.shape[0], -1)


class Viewing(nn.Module):
    """Views maps as if they were contiguous: in its own words, in a method and in a function."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.more = block(), block()
        self.linear = nn.Linear(2 * 512, 3)

    def flat(self, x: Tensor) -> Tensor:
        return x.view(x.size(0), -1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.flat(self.block(x)) + flattened(self.more(x))
        return self.linear(h), self.block(x).view((-1,))


@pytest.mark.parametrize("inside", [False, True])
def test_maps_may_be_viewed(inside: bool) -> None:
    torch.manual_seed(0)
    plain: nn.Module = nn.Sequential(nn.Conv3d(3, 3, 1), Viewing()) if inside else Viewing()
    fast = accelerated(copy.deepcopy(plain))
    check_near(passed(fast, X), passed(plain, X), 1e-5, 1e-3)


VIEWING: dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, ...]]] = {
    "VarAutoEncoder": (lambda: VarAutoEncoder(3, (1, 16, 16, 16), 1, 8, (4, 8), (2, 2)), (volume(2, 1, 16, 16, 16),)),
    "SPADENet": (
        lambda: SPADENet(3, 1, 1, 3, [16, 16, 16], [8, 16], z_dim=8),
        (volume(2, 3, 16, 16, 16).sign().relu(), volume(2, 1, 16, 16, 16)),
    ),
}


@pytest.mark.parametrize("name", VIEWING)
def test_networks_of_monai_that_view_their_maps(name: str) -> None:
    make, args = VIEWING[name]
    torch.manual_seed(0)
    plain = make()
    fast = accelerated(copy.deepcopy(plain))
    expected = passed(plain, *args)
    assert len(expected[0]) > 1
    check_near(passed(fast, *args), expected, 1e-4, 1e-3)


class Sampling(nn.Module):
    """As the bottleneck of an autoencoder does."""

    def forward(self, x: Tensor) -> Tensor:
        noise = torch.randn_like(x) * torch.rand_like(x, dtype=torch.float64).to(x.dtype)
        return x + noise * torch.randint_like(x, 9)


def test_a_seed_draws_the_same_noise() -> None:
    network = nn.Sequential(nn.Conv3d(3, 8, 1), Sampling(), nn.Conv3d(8, 2, 1))
    torch.manual_seed(0)
    plain = network(X)
    torch.manual_seed(0)
    assert distance(accelerated(network)(X), plain) < 1e-5
    assert ("1", "Sampling") in network.acceleration.left


Transform = Callable[[nn.Module], object]


def per_sample_gradients(network: nn.Module) -> object:
    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(network, parameters, (x[None],)).square().mean()

    parameters = {name: p.detach() for name, p in network.named_parameters()}
    return torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, X)


def dual(network: nn.Module) -> Tensor:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(network(forward_ad.make_dual(X, X.flip(2)))).tangent


TRANSFORMS: dict[str, Transform] = {
    "vmap": lambda network: torch.func.vmap(lambda x: network(x[None])[0])(X),
    "grad": lambda network: torch.func.grad(lambda x: network(x).square().mean())(X),
    "jvp": lambda network: torch.func.jvp(network, (X,), (X.flip(2),)),
    "jacrev": lambda network: torch.func.jacrev(lambda x: network(x).mean((0, 2, 3, 4)))(X),
    "per-sample gradients": per_sample_gradients,
    "forward-mode": dual,
}


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_function_transforms(name: str, reduced: bool) -> None:
    """Computed as without the fast path, whose kernels have no rules for them."""
    found, expected = (TRANSFORMS[name](network) for network in (accelerated(block(), reduced), block()))
    torch.testing.assert_close(found, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("name", TRANSFORMS)
def test_function_transforms_on_a_gpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "X", X.to(DEVICE))
    found, expected = (TRANSFORMS[name](network.to(DEVICE)) for network in (accelerated(block()), block()))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", ["UNet", "DynUNet", "SegResNet", "PlainConvUNet"])
def test_symbolic_traces_are_those_of_the_network_itself(name: str) -> None:
    network = made(name)
    plain = torch.fx.symbolic_trace(copy.deepcopy(network))
    trace = torch.fx.symbolic_trace(accelerated(network))
    assert trace.code == plain.code
    assert distance(trace(*inputs(name)), plain(*inputs(name))) < 1e-4


@pytest.mark.parametrize("reduced", [False, True])
def test_gradients_of_many_outputs_at_once(reduced: bool) -> None:
    network, x = accelerated(block(), reduced), X.clone().requires_grad_()
    y, wanted = network(x), [x, *network.parameters()]
    directions = volume(3, *y.shape)
    together = torch.autograd.grad(y, wanted, directions, retain_graph=True, is_grads_batched=True)
    for at, direction in enumerate(directions):
        for a, b in zip(together, torch.autograd.grad(y, wanted, direction, retain_graph=True), strict=True):
            assert distance(a[at], b) < 1e-5


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("first", [False, True], ids=["accelerated second", "accelerated first"])
@pytest.mark.usefixtures("process_group")
def test_parts_that_fsdp_shards(first: bool, reduced: bool) -> None:
    """Each part gathers its weights when it is called, in BF16; before that the network has none of them whole."""
    mesh = torch.distributed.init_device_mesh("cpu", (1,))
    bf16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    results = []
    for fast in (False, True):
        torch.manual_seed(0)
        network: nn.Module = nn.Sequential(block(), nn.Conv3d(2, 2, 1))
        if fast and first:
            accelerated(network, reduced)
        for part in (*network, network):
            fully_shard(part, mesh=mesh, mp_policy=bf16)
        if fast and not first:
            accelerated(network, reduced)
        y = network(X)
        y.float().square().mean().backward()
        results.append((y.float(), *(p.grad.full_tensor() for p in network.parameters())))  # type: ignore[union-attr]
    for a, b in zip(*results, strict=True):
        assert distance(b, a) < 2e-2


def test_a_compiled_network_is_refused_and_the_order_is_said() -> None:
    compiled = torch.compile(block(), backend="eager")
    with pytest.raises(BadInput, match="has it already; accelerate the network first, then compile it"):
        accelerate(compiled, report=None)
    assert distance(compiled(X), block()(X)) < 1e-5


@pytest.mark.parametrize(
    "made", [torch.jit.script, lambda network: torch.jit.trace(network, X)], ids=["script", "trace"]
)
def test_what_torchscript_made_is_refused_with_the_remedy(made: Callable[[nn.Module], nn.Module]) -> None:
    network = block()
    with pytest.raises(BadInput, match="traced or scripted it already; accelerate the network that it was made from"):
        accelerate(made(network), report=None)
    assert distance(accelerate(network, report=None)(X), block()(X)) < 1e-5


def test_torchscript_compiles_the_network_itself() -> None:
    network = accelerated(block())
    scripted = torch.jit.script(network)
    assert distance(scripted(X), network(X)) < 1e-5
    with torch.no_grad():
        network[0].weight.zero_()
    assert not dict(scripted.named_parameters())["0.weight"].any()  # they are the same
    assert network.acceleration.replaced
    assert "forward" in network[0].__dict__
    restore(network)
    assert not {"__prepare_scriptable__", "_replicate_for_data_parallel"} & set(network.__dict__)


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("learns", [False, True])
def test_a_trace_is_that_of_the_network_itself(learns: bool, reduced: bool, tmp_path: Path) -> None:
    """And so it can be saved, and run where this package is not installed."""
    plain = block()
    network, x = accelerated(copy.deepcopy(plain), reduced), X.clone().requires_grad_(learns)
    torch.jit.save(torch.jit.trace(network, (x,), check_trace=not reduced), tmp_path / "traced.pt")
    loaded = torch.jit.load(tmp_path / "traced.pt")
    assert torch.equal(loaded(X + 1), plain(X + 1))
    assert "/fast/" not in str(loaded.inlined_graph)
    assert distance(network(X), plain(X)) < 2e-2


def test_a_replica_computes_with_its_own_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    """As DataParallel makes one for each GPU; here on a CPU, with parameters that are doubled."""
    from torch.nn.parallel import replicate

    module = __import__(replicate.__module__, fromlist=["replicate"])
    monkeypatch.setattr(module, "_broadcast_coalesced_reshape", lambda tensors, *_, **__: [[2 * t for t in tensors]])
    monkeypatch.setattr(module, "_get_device_index", lambda *_: 0)
    network, other = accelerated(nn.Sequential(block(), nn.Conv3d(2, 4, 1))), nn.Sequential(block(), nn.Conv3d(2, 4, 1))
    other.load_state_dict({key: 2 * value for key, value in network.state_dict().items()})
    (replica,) = replicate(network, [0])
    assert distance(replica(X), other(X)) < 1e-5
    replica(X).sum().backward()
    assert all(p.grad is not None for p in network.parameters())
    assert network[0][0].forward.module is network[0][0]


def doubled(layer: Any) -> None:
    layer.weight = nn.Parameter(2 * layer.weight)


def apart(layer: Any) -> None:
    """Doubles the weight in a table of the layer's own: PyTorch's shallow copies share it with the original."""
    layer.__dict__["_parameters"] = layer._parameters.copy()
    doubled(layer)


def shortened(layer: Any) -> None:
    """Drops the first part, in a table of the layer's own."""
    layer.__dict__["_modules"] = layer._modules.copy()
    layer.pop(0)


COPIED: dict[str, tuple[nn.Module, Callable[[Any], object]]] = {
    "own parameters": (nn.Conv3d(3, 8, 3), apart),
    "shared parameters": (nn.Conv3d(3, 8, 3), doubled),
    "a norm's": (nn.GroupNorm(1, 3), apart),
    "setting": (nn.Conv3d(3, 8, 3), lambda layer: setattr(layer, "stride", (2, 2, 2))),
    "evaluation": (nn.BatchNorm3d(3), lambda layer: layer.eval()),
    "own parts": (nn.Sequential(nn.Conv3d(3, 3, 1), nn.GroupNorm(1, 3), nn.SiLU()), shortened),
}


@pytest.mark.parametrize("inside", [False, True], ids=["network", "layer"])
@pytest.mark.parametrize("name", COPIED)
def test_a_shallow_copy_computes_as_its_own_module(name: str, inside: bool) -> None:
    """What is set in both, or in the copy alone, is PyTorch's matter: the fast path changes nothing in that."""
    layer, change = COPIED[name]
    results = []
    for fast in (False, True):
        torch.manual_seed(0)
        original = copy.deepcopy(layer)
        network = nn.Sequential(original) if inside else original
        if fast:
            accelerated(network)
        twin = copy.copy(original)
        change(twin)
        results.append((twin(X), original(X), nn.Sequential(twin)(X), network(X)))
    for found, expected in zip(results[1], results[0], strict=True):
        assert distance(found, expected) < 1e-5


@pytest.mark.parametrize("reduced", [False, True])
def test_a_shallow_copy_within_the_network(reduced: bool) -> None:
    plain, fast = block(), accelerated(block(), reduced)
    for network in (plain, fast):
        for at in (0, 1):
            network[at] = copy.copy(network[at])
            apart(network[at])
    assert distance(fast(X), plain(X)) < (2e-2 if reduced else 1e-5)


def test_a_shallow_copy_and_its_original_are_restored_apart() -> None:
    plain = block()
    names = [set(vars(module)) for module in plain.modules()]
    network = accelerated(copy.deepcopy(plain))
    stand_ins = [module.forward for module in network.modules()]
    twin = copy.copy(network)
    shortened(twin)
    assert restore(twin) is twin
    assert not hasattr(twin, "acceleration")
    assert [module.forward for module in network.modules()] == stand_ins
    x = volume(1, 8, 8, 8, 8)
    for each in (twin, copy.copy(twin), copy.deepcopy(twin), pickle.loads(pickle.dumps(twin))):
        assert distance(each(x), plain[1:](x)) < 1e-5
    restore(network)
    assert torch.equal(network(X), plain(X))
    assert [set(vars(module)) for module in network.modules()] == names


def test_a_class_s_own_state_is_kept() -> None:
    class Counting(nn.Sequential):
        def __getstate__(self) -> dict[str, object]:
            return {**self.__dict__, "copies": 1}

    network = accelerated(Counting(block()))
    for twin, forward in ((copy.copy(network), False), (copy.deepcopy(network), True)):
        assert twin.copies == 1
        assert ("forward" in vars(twin)) == forward
        assert distance(twin(X), network(X)) < 1e-5


@pytest.mark.gpu(count=2)
def test_data_parallel() -> None:
    network, x = accelerated(block()).cuda(), X.cuda()
    outputs, gradients = passed(network, x)
    spread, found = passed(nn.DataParallel(network, [0, 1]), x)
    assert distance(spread[0], outputs[0]) < 1e-2
    assert farthest({name.removeprefix("module."): g for name, g in found.items()}, gradients) < 5e-2


@pytest.fixture
def process_group() -> Iterator[None]:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("where", ["before", "within"])
@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.usefixtures("process_group")
def test_beside_ddp(where: str, reduced: bool) -> None:
    """Its buckets are made anew after the first step, by the gradients' strides, which must be the same for ever."""
    torch.manual_seed(0)
    widths = [3, 16, 16, 16, 8]
    plain = nn.Sequential(*(nn.Conv3d(a, b, 3, padding=1) for a, b in itertools.pairwise(widths)))
    _, gradients = passed(plain, X)
    network = copy.deepcopy(plain)
    if where == "before":
        accelerated(network, reduced)
    wrapped = nn.parallel.DistributedDataParallel(network)
    passed(wrapped, X)
    passed(wrapped, X)
    if where != "before":
        accelerated(network, reduced)
    for _ in range(3):
        found = {name.removeprefix("module."): g for name, g in passed(wrapped, X)[1].items()}
    assert farthest(found, gradients) < (5e-2 if reduced else 1e-4)


@pytest.mark.usefixtures("process_group")
def test_what_ddp_holds_is_refused_with_the_right_order() -> None:
    """A graph of DDP's forward would leave out the sum of the gradients."""
    wrapped = nn.parallel.DistributedDataParallel(block())
    for model in (wrapped, nn.Sequential(wrapped)):
        with pytest.raises(BadInput, match="DistributedDataParallel holds it; accelerate the network first, then wrap"):
            accelerate(model, report=None)
        assert "forward" not in vars(model)
    optimizer = torch.optim.Adam(wrapped.parameters())
    with pytest.raises(BadInput, match="DistributedDataParallel holds it; accelerate, wrap, and write an ordinary"):
        graphed_step(wrapped, lambda model, x: model(x).mean(), optimizer, X)


class Clipped(nn.Module):
    """Changes its own weight in its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv3d(3, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.conv.weight.clamp_(-0.02, 0.02)
        return self.conv(x)


class Computed(Clipped):
    """Calls a part with a weight that it computes."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.func.functional_call(self.conv, {"weight": self.conv.weight * x.mean().exp()}, (x,))


class Lent(Clipped):
    """Gives a part another weight for a call."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Parameter(torch.randn(8, 3, 3, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        own, self.conv.weight = self.conv.weight, self.other
        y = self.conv(x)
        self.conv.weight = own
        return y


@pytest.mark.parametrize("kind", [Clipped, Computed, Lent])
@pytest.mark.parametrize("reduced", [False, True])
def test_a_forward_that_changes_weights(kind: type[nn.Module], reduced: bool) -> None:
    torch.manual_seed(0)
    plain = kind()
    fast = accelerated(copy.deepcopy(plain), reduced)
    check_near(passed(fast, X), passed(plain, X), *((2e-2, 5e-2) if reduced else (1e-5, 1e-4)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int32])
def test_an_output_has_the_dtype_that_the_network_gives_it(dtype: torch.dtype) -> None:
    class Cast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = block()

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = self.block(x)
            return y.to(dtype), y

    for reduced in (False, True):
        with torch.no_grad():
            cast, y = accelerated(Cast(), reduced)(X)
        assert (cast.dtype, y.dtype) == (dtype, torch.float32)


def test_accelerated_in_inference_mode_and_trained_later() -> None:
    plain, fast = block(), block()
    with torch.inference_mode():
        accelerated(fast)(X)
    assert farthest(passed(fast, X)[1], passed(plain, X)[1]) < 1e-3


class Marked(Tensor):
    """A tensor that carries something, as MONAI's MetaTensor does."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = super().__torch_function__(func, types, args, kwargs or {})
        marks = [a.mark for a in args if isinstance(a, Marked) and hasattr(a, "mark")]
        if isinstance(result, Marked) and marks:
            result.mark = marks[0]
        return result


def test_a_tensor_s_class_and_what_it_carries_come_back() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = block()

        def forward(self, x: Tensor) -> dict[str, object]:
            y = self.block(x)
            return {"all": [y, y.mean()]}

    network, x = accelerated(Two()), X.clone().as_subclass(Marked)
    x.mark = "scan 7"
    plain = network(X)["all"]
    marked = network(x)["all"]
    assert [type(y) for y in marked] == [Marked, Marked]
    assert [y.mark for y in marked] == ["scan 7", "scan 7"]
    assert all(torch.equal(a.as_subclass(Tensor), b) for a, b in zip(marked, plain, strict=True))
    marked[0].sum().backward()
    assert network.block[0].weight.grad is not None


def test_a_metatensor_comes_back_one() -> None:
    network, x = block(), MetaTensor(X.clone(), meta={"subject": 7})
    plain = network(x)
    fast = accelerated(network)(x)
    assert type(fast) is type(plain) is MetaTensor
    assert fast.meta == plain.meta
    assert distance(fast.as_tensor(), plain.as_tensor()) < 1e-5


def scaled(x: Tensor) -> Tensor:
    return x * 2 if isinstance(x, Scan) else x


ASKS: dict[str, Callable[[Any], Tensor]] = {
    "its class": lambda x: x * 2 if isinstance(x, MetaTensor) else x,
    "its class, of a module": lambda x: x * 2 if isinstance(x, monai.data.MetaTensor) else x,
    "its class by another name": lambda x: x * 2 if isinstance(x, Scan) else x,
    "its very class": lambda x: x if type(x) is Tensor else x * 2,
    "an attribute": lambda x: x * x.affine[0, 0].to(x.dtype) * x.meta["factor"],
    "whether it has one": lambda x: x * 2 if hasattr(x, "meta") else x,
    "one by a text": lambda x: x * getattr(x, "meta", {"factor": 1})["factor"],
    "in what it calls": lambda x: scaled(x),
}


class Asks(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.ask, self.last = ASKS[how], nn.Conv3d(2, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.ask(x))  # type: ignore[no-any-return]


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("how", ASKS)
def test_a_forward_that_asks_for_a_metatensor_is_given_one(how: str, inside: bool, reduced: bool) -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(block(), Asks(how)) if inside else Asks(how)
    fast = accelerated(copy.deepcopy(plain), reduced)
    x = MetaTensor(X if inside else X[:, :2], meta={"factor": 2.0}, affine=torch.eye(4) * 2)
    outs = [network(x) for network in (plain, fast)]
    assert type(outs[1]) is type(outs[0]) is MetaTensor
    assert outs[1].meta == outs[0].meta
    assert outs[1].dtype == torch.float32
    assert distance(outs[1].as_tensor(), outs[0].as_tensor()) < (2e-2 if reduced else 1e-5)
    outs[1].sum().backward()
    assert all(p.grad is not None for p in fast.parameters())


def test_hooks_are_given_the_tensor_s_class() -> None:
    network, x = accelerated(block()), X.clone().as_subclass(Marked)
    kinds: list[type] = []
    network[3].register_forward_hook(lambda _m, inputs, out: kinds.extend((type(inputs[0]), type(out))))
    network(X)
    network(x)
    assert kinds == [Tensor, Tensor, Marked, Marked]


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_that_do_not_ask_run_with_plain_tensors(name: str) -> None:
    """And so from graphs; of MONAI's loaders all tensors are its MetaTensors."""
    assert not may_be_asked(NETWORKS[name](), MetaTensor(X))


@pytest.mark.parametrize("inplace", [False, True])
def test_a_seed_drops_the_same_values(inplace: bool) -> None:
    network = nn.Sequential(nn.Conv3d(3, 8, 1), nn.Dropout(0.5, inplace), nn.GroupNorm(2, 8), nn.Dropout(0.2))
    results = []
    for change in (restore, accelerated):
        change(network)
        torch.manual_seed(0)
        results.append(network(X))
        results.append(network.eval()(X))
        network.train()
    plain, plain_eval, fast, fast_eval = results
    assert distance(fast_eval, plain_eval) < 1e-5
    if not inplace:
        assert distance(fast, plain) < 1e-5
    assert ("1", "Dropout") in network.acceleration.left


class Drawing(nn.Module):
    """Changes a map by what it draws."""

    def __init__(self, draw: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.draw = draw

    def forward(self, x: Tensor) -> Tensor:
        return self.draw(x)


OTHER_DRAWS = {
    "nn.AlphaDropout": nn.AlphaDropout(0.5),
    "nn.Dropout(inplace=True)": nn.Dropout(0.5, inplace=True),
    "F.dropout": Drawing(lambda h: functional.dropout(h, 0.5)),
    "torch.empty_like(h).normal_()": Drawing(lambda h: h + torch.empty_like(h).normal_()),
}


@pytest.mark.parametrize("named", OTHER_DRAWS)
def test_the_page_names_what_a_seed_draws_otherwise(named: str) -> None:
    plain = nn.Sequential(nn.Conv3d(3, 8, 1), OTHER_DRAWS[named])
    fast = accelerated(copy.deepcopy(plain))
    outs = []
    for network in (plain, fast):
        torch.manual_seed(0)
        outs.append(network(X))
    assert distance(outs[1], outs[0]) > 0.1
    assert abs(outs[1].mean() - outs[0].mean()) < 0.1
    paragraph = page_text("site/fast_path.md").partition("Some things differ")[2].partition("An input that")[0]
    assert f"`{named}`" in paragraph


class Region(nn.Module):
    """One layer in float32, whatever is around it."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.first, self.layer = nn.Conv3d(3, 3, 1), layer

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        with torch.autocast(x.device.type, enabled=False):
            return self.layer(h.float())


REGIONS = [
    nn.Linear(8, 2),
    nn.Conv3d(3, 6, 3, groups=3),
    nn.Conv3d(3, 6, 3, padding="same"),
    nn.ConvTranspose3d(3, 6, 2, 2),
    nn.Conv3d(3, 16, 3, padding=1),
    nn.Sequential(nn.Conv3d(3, 8, 3), nn.InstanceNorm3d(8), nn.PReLU()),
]


@pytest.mark.parametrize("layer", REGIONS, ids=repr)
def test_a_float32_region_stays_float32(layer: nn.Module) -> None:
    network = accelerated(Region(copy.deepcopy(layer)), reduced=True)
    given: list[Tensor] = []
    network.layer.register_forward_hook(lambda _m, inputs, _out: given.append(inputs[0]))
    fast = network(X)
    assert distance(fast, restore(network).layer(given[0])) < 1e-6
    fast.sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in network.parameters())


@pytest.mark.parametrize(("kind", "channels", "side"), [(nn.Conv3d, 64, 5), (nn.ConvTranspose3d, 32, 4)])
def test_depthwise_convolutions_have_right_gradients(kind: type[nn.Module], channels: int, side: int) -> None:
    """PyTorch's own in channels-last on a CPU are anything at such sizes, even NaN (seen in 2.13)."""
    network = nn.Sequential(kind(channels, channels, 7, 2, 3, groups=channels), nn.Conv3d(channels, 2, 1))
    x = volume(2, channels, side, side, side)
    _, plain = passed(network, x)
    _, fast = passed(accelerated(network), x)
    assert farthest(fast, plain) < 1e-4
