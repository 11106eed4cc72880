"""What an accelerated network takes and returns lies, and is written into, as the network itself does it."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
import torch
from helpers import recordings
from helpers.networks import block, check_near, distance, farthest, passed, volume
from monai.data import MetaTensor
from monai.networks.nets import AutoencoderKL
from torch import Tensor, nn
from torch.distributions import Independent, Normal

from medddpm.fast.graphs import nested
from medddpm.fast.patch import accelerate

X = volume(2, 3, 8, 8, 8)


@dataclasses.dataclass
class Maps:
    """Two maps, and a number."""

    first: Tensor
    second: Tensor
    steps: int = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Slots:
    """A map among slots."""

    map: Tensor
    steps: int = 3


class Record:
    """A map, in an object that is no dataclass; and itself."""

    __slots__ = ("__dict__", "map")

    def __init__(self, y: Tensor) -> None:
        self.map, self.itself, self.more = y, self, [y * 2]


class Net(nn.Module):
    """A block, and whatever a test asks of the forward around it."""

    def __init__(self, around: Callable[..., Any]) -> None:
        super().__init__()
        self.block, self.around = block(), around

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.around(self.block, *args, **kwargs)


def pair(around: Callable[..., Any], reduced: bool = False) -> tuple[nn.Module, nn.Module]:
    plain = Net(around)
    fast = accelerate(copy.deepcopy(plain), report=None)
    if reduced:
        fast.forward.reduced_on = ("cpu",)  # type: ignore[union-attr]
    return plain, fast


def alike(found: Any, expected: Any) -> None:
    """Equal to what float32 allows, and in the same dtype and memory order."""
    assert type(found) is type(expected)
    pairs = list(zip(nested.tensors(found), nested.tensors(expected), strict=True))
    assert pairs
    for a, b in pairs:
        assert (a.dtype, a.stride()) == (b.dtype, b.stride())
        assert distance(a.float(), b.float()) < 1e-5


LAYOUTS = {
    "contiguous": lambda x: x,
    "channels-last": lambda x: x.contiguous(memory_format=torch.channels_last_3d),
    "crop": lambda x: x[:, :, 1:7, 1:7, 1:7],
    "crop of channels-last": lambda x: x.contiguous(memory_format=torch.channels_last_3d)[:, :, 1:7, 1:7, 1:7],
    "one channel": lambda x: x[:, :1],
    "turned": lambda x: x.transpose(2, 4),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_outputs_and_gradients_lie_in_memory_as_the_network_s(layout: str) -> None:
    results = []
    for network in pair(lambda b, x: b(x.expand(-1, 3, -1, -1, -1))):
        x = LAYOUTS[layout](X).detach().requires_grad_()
        y = network(x)
        results.append((y, *torch.autograd.grad(y.square().sum(), x)))
    alike(results[1], results[0])


def one_channel(x: Tensor) -> Tensor:
    """Channels-last: the memory is the same, and the stride of the channel tells."""
    return x[:, :1].to(memory_format=torch.channels_last_3d)


@pytest.fixture
def two_threads() -> Iterator[None]:
    """On one thread PyTorch has another convolution for some sizes on a CPU, whose results are always contiguous."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "one channel in": lambda: nn.Conv3d(1, 4, 3, padding=1),
    "one channel out": lambda: nn.Conv3d(1, 1, 3, padding=1),
    "of points": lambda: nn.Conv3d(1, 4, 1),
    "two layers": lambda: nn.Sequential(nn.Conv3d(1, 4, 1), nn.SiLU(), nn.Conv3d(4, 2, 3)),
    "transposed": lambda: nn.Sequential(nn.ConvTranspose3d(1, 4, 2, 2), nn.Conv3d(4, 2, 1)),
    "each channel by itself": lambda: nn.Sequential(nn.Conv3d(1, 4, 1), nn.Conv3d(4, 4, 3, groups=4)),
    "a vector": lambda: nn.Sequential(nn.Conv3d(1, 4, 3), nn.AdaptiveAvgPool3d(1), nn.Flatten()),
}


@pytest.mark.parametrize("given", [one_channel, lambda x: x[:, :1].contiguous()], ids=["last", "contiguous"])
@pytest.mark.parametrize("weights", [torch.channels_last_3d, torch.contiguous_format], ids=["last", "contiguous"])
@pytest.mark.parametrize("name", MODELS)
def test_weights_and_inputs_in_either_order(
    name: str, weights: torch.memory_format, given: Callable[[Tensor], Tensor], two_threads: None
) -> None:
    plain = MODELS[name]().to(memory_format=weights)
    fast = accelerate(copy.deepcopy(plain), report=None)
    alike(fast(given(X)), plain(given(X)))


@pytest.mark.parametrize("mode", [contextlib.nullcontext, torch.no_grad])
@pytest.mark.parametrize("graph", [False, True])
def test_a_map_returned_twice_is_one(mode: Callable[[], Any], graph: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """And its gradient comes once, whichever of the two it comes through."""

    def twice(b: nn.Module, x: Tensor) -> dict[str, Any]:
        y = b(x)
        return {"map": y, "more": [y * 2, y]}

    if graph:
        recordings.stand_in(monkeypatch)
    plain, fast = pair(twice, reduced=not graph)
    for way in (lambda out: out["map"], lambda out: out["more"][1], lambda out: out["map"] * out["more"][1]) * 4:
        gradients = []
        for network in (plain, fast):
            with mode():
                out = network(X)
            assert out["map"] is out["more"][1]
            assert out["map"] is not out["more"][0]
            network.zero_grad()
            if out["map"].requires_grad:
                way(out).square().sum().backward()
            gradients.append({name: p.grad for name, p in network.named_parameters() if p.grad is not None})
        assert farthest(gradients[1], gradients[0]) < 5e-2 if gradients[0] else not gradients[1]
    if graph:
        assert fast.acceleration.graphs.captured == 1
        assert fast.acceleration.graphs.replays


RETURNS: dict[str, Callable[[Tensor], Any]] = {
    "a mask": lambda y: y > 0,
    "indices": lambda y: y.argmax(1, keepdim=True),
    "a dataclass": lambda y: Maps(y, [y * 2]),  # type: ignore[arg-type]
    "a dict of lists": lambda y: {"y": [y, (y * 2,)]},
    "what `max` returns": lambda y: y.max(1, keepdim=True),
}


@pytest.mark.parametrize("name", RETURNS)
def test_whatever_it_returns(name: str) -> None:
    plain, fast = pair(lambda b, x: RETURNS[name](b(x)))
    alike(fast(X), plain(X))


class Several(list[Any]):
    """A list of the user's, with an attribute."""

    name = "none"


class Pair(tuple[Any, ...]):
    """A tuple of the user's, whose constructor takes its two items."""

    __slots__ = ()

    def __new__(cls, a: Any, b: Any) -> Pair:
        return super().__new__(cls, (a, b))


def several(y: Tensor) -> Several:
    made = Several([y, {"more": y * 2}])
    made.name = "maps"
    return made


HOLDERS: dict[str, Callable[[Tensor], Any]] = {
    "a deque": lambda y: deque([y, y * 2], 2),
    "a set": lambda y: {y},
    "a frozenset": lambda y: frozenset([y]),
    "a list of the user's": several,
    "a tuple of the user's": lambda y: Pair(y, [y * 2]),
    "a mapping proxy": lambda y: MappingProxyType({"y": y, "steps": 3}),
    "a deque in a list": lambda y: [deque([y])],
}


def within(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = value.values()
    return [t for each in value for t in within(each)] if isinstance(value, Iterable) else []


@pytest.mark.parametrize("name", HOLDERS)
def test_whatever_holds_what_it_returns(name: str) -> None:
    plain, fast = pair(lambda b, x: HOLDERS[name](b(x)), reduced=True)
    found, expected = fast(X), plain(X)
    assert type(found) is type(expected)
    assert getattr(found, "__dict__", None) == getattr(expected, "__dict__", None)
    assert getattr(found, "maxlen", None) == getattr(expected, "maxlen", None)
    for a, b in zip(within(found), within(expected), strict=True):
        assert (a.dtype, a.stride()) == (b.dtype, b.stride())
        assert distance(a, b) < 2e-2


@pytest.mark.parametrize("kind", [list, Several])
def test_a_monai_tensor_in_a_list_of_any_class(kind: type[list[Any]]) -> None:
    plain, fast = pair(lambda b, xs: b(xs[0]))
    given = MetaTensor(X)
    found, expected = fast(kind([given])), plain(kind([given]))
    assert type(found) is type(expected) is MetaTensor
    assert distance(found.as_tensor(), expected.as_tensor()) < 1e-5


@pytest.mark.parametrize("held", [deque([1]), {1}, Several([1]), Pair(1, "a"), MappingProxyType({"a": 1})], ids=repr)
def test_what_holds_no_map_is_returned_itself(held: Any) -> None:
    assert pair(lambda b, x: held, reduced=True)[1](X) is held


OBJECTS: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Any]]] = {
    "a dataclass with slots": (Slots, lambda out: out.map),
    "an object": (Record, lambda out: [out.map, out.more]),
    "an object in a list": (lambda y: [Record(y)], lambda out: [out[0].map, out[0].more]),
    "a distribution": (lambda y: Independent(Normal(y, y.exp()), 4), lambda out: [out.mean, out.variance]),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_whatever_object_it_returns(name: str) -> None:
    returns, read = OBJECTS[name]
    plain, fast = pair(lambda b, x: returns(b(x)), reduced=True)
    found, expected = fast(X), plain(X)
    assert type(found) is type(expected)
    for a, b in zip(nested.tensors(read(found)), nested.tensors(read(expected)), strict=True):
        assert (a.dtype, a.stride()) == (b.dtype, b.stride())
        assert distance(a, b) < 2e-2


def test_an_object_without_maps_is_returned_itself() -> None:
    held = SimpleNamespace(calls=0, more={"network": nn.Identity(), "scale": torch.ones(1)})
    assert pair(lambda b, x: held)[1](X) is held


def test_a_dataclass_with_slots_given() -> None:
    plain, fast = pair(lambda b, given: b(given.map) * given.steps)
    alike(fast(Slots(X)), plain(Slots(X)))


def test_what_a_function_returns_by_names_has_the_network_s_dtype() -> None:
    plain, fast = pair(lambda b, x: b(x).max(1), reduced=True)
    found, expected = fast(X), plain(X)
    assert type(found) is type(expected)
    assert (found.values.dtype, found.values.stride()) == (torch.float32, expected.values.stride())
    assert distance(found.values, expected.values) < 0.02


@pytest.mark.parametrize("later", [{"dilation": 2, "padding": 2}, {"stride": 1}, {"padding": 0}, {"kernel_size": 3}])
def test_options_of_a_convolution_written_later_as_one_number(later: dict[str, int]) -> None:
    plain, fast = pair(lambda b, x: b(x))
    for network in (plain, fast):
        for layer in (network.block[0], network.block[3]):  # type: ignore[index]
            vars(layer).update(later)
    alike(fast(X), plain(X))


def test_what_is_complex_stays_complex() -> None:
    class Spectral(Net):
        def __init__(self) -> None:
            super().__init__(lambda b, x: self.mixed(torch.fft.fftn(b(x), dim=(2, 3, 4))).abs())
            self.mixed = nn.Conv3d(2, 2, 3, padding=1, dtype=torch.complex64)

    torch.manual_seed(0)
    plain = Spectral()
    expected = plain(X)
    fast = accelerate(plain, report=None)
    fast.forward.reduced_on = ("cpu",)  # type: ignore[union-attr]
    assert distance(fast(X).float(), expected) < 0.02


def test_whole_numbers_come_in_and_a_map_comes_out_contiguous() -> None:
    results = []
    torch.manual_seed(0)
    table = torch.randn(4, 3 * 64)
    for network in pair(lambda b, i: b(table[i].reshape(-1, 3, 4, 4, 4))):
        y = network(torch.tensor([1, 2]))
        results.append((y, y.view(2, -1)))
    alike(results[1], results[0])


@pytest.mark.parametrize("channels", [1, 3])
def test_a_map_that_learns_is_written_into(channels: int) -> None:
    def around(b: nn.Module, x: Tensor) -> Tensor:
        x.sub_(x.mean().detach())
        return b(x.expand(-1, 3, -1, -1, -1))

    results = []
    for network in pair(around):
        leaf = X[:, :channels].clone().requires_grad_()
        given = leaf * 1.0
        y = network(given)
        results.append((y, given, *torch.autograd.grad(y.square().sum(), leaf)))
    alike(results[1], results[0])


def test_a_dataclass_given() -> None:
    plain, fast = pair(lambda b, maps: b(maps.first) + b(maps.second) * maps.steps)
    alike(fast(Maps(X, X.flip(2))), plain(Maps(X, X.flip(2))))


def test_the_volume_decides_the_dtype() -> None:
    """Not the weights of its channels that come first."""
    plain, fast = pair(lambda b, weights, x: b(x * weights.to(x.dtype)[:, None, None, None]), reduced=True)
    weights = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    assert fast(weights, X).dtype == plain(weights, X).dtype == torch.float32


def test_a_part_called_by_itself() -> None:
    network = AutoencoderKL(
        3, 1, 1, num_res_blocks=(1, 1), channels=(8, 16), attention_levels=(False, False), latent_channels=4,
        norm_num_groups=4,
    )  # fmt: skip
    fast = accelerate(copy.deepcopy(network), report=None)
    x = volume(1, 1, 8, 8, 8)
    alike(fast.encode(x), network.encode(x))
    latent = network.encode(x)[0]
    alike(fast.decode(latent), network.decode(latent))
    alike(fast.encoder.blocks[0](x), network.encoder.blocks[0](x))


MASK = torch.ones(2, 1, 8, 8, 8)
CASTS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "half, cast on entry": (lambda b, x: b(x.float()), (X.half(),)),
    "bfloat16, cast on entry": (lambda b, x: b(x.float()), (X.bfloat16(),)),
    "double, cast on entry": (lambda b, x: b(x.float()), (X.double(),)),
    "half, cast back": (lambda b, x: b(x.float()).to(x.dtype), (X.half(),)),
    "a half mask first": (lambda b, mask, x: (b(x) * mask.float(), mask * 2), (MASK.half(), X)),
    "a mask of bytes first": (lambda b, mask, x: b(x) * mask, (MASK.byte(), X)),
    "a half vector": (lambda b, z: b(z.float().expand(1, 3, 4, 4, 4)), (torch.ones(4).half(),)),
}


@pytest.mark.parametrize("name", CASTS)
def test_what_comes_in_does_not_decide_the_dtype(name: str) -> None:
    forward, given = CASTS[name]
    plain, fast = pair(forward, reduced=True)
    for found, expected in zip(nested.tensors(fast(*given)), nested.tensors(plain(*given)), strict=True):
        assert found.dtype == expected.dtype
        assert distance(found.float(), expected.float()) < 2e-2


@pytest.mark.parametrize(
    ("end", "given"),
    [(nn.Identity(), torch.float32), (nn.Identity(), torch.float16), (nn.Softmax(1), torch.float16)],
)
def test_a_half_network_returns_half(end: nn.Module, given: torch.dtype) -> None:
    """Whether it casts what it is given or not; autocast would leave a softmax in float32."""
    plain, fast = pair(lambda b, x: end(b(x.half())), reduced=True)
    found, expected = fast.half()(X.to(given)), plain.half()(X.to(given))
    assert found.dtype == expected.dtype == torch.float16
    assert distance(found.float(), expected.float()) < 2e-2


@pytest.mark.parametrize(("reduced", "returned"), [(True, torch.float32), (False, torch.bfloat16)])
def test_an_output_cast_to_bf16_stays_so_where_the_network_computes_in_float32(
    reduced: bool, returned: torch.dtype
) -> None:
    """As on a CPU; where it computes in BF16 its own outputs cannot be told from that one."""
    plain, fast = pair(lambda b, x: b(x).bfloat16(), reduced=reduced)
    assert (plain(X).dtype, fast(X).dtype) == (torch.bfloat16, returned)


def test_the_inputs_decide_for_a_network_of_several_dtypes() -> None:
    """As one whose body was cast and whose end was not."""
    plain, fast = pair(lambda b, x: b[3](b[:3](x.half()).to(x.dtype)), reduced=True)
    for network in (plain, fast):
        network.block[:3].half()  # type: ignore[index]
    assert fast(X).dtype == plain(X).dtype == torch.float32


# what is written into what it is given


def appends(b: nn.Module, x: Tensor, seen: list[Any]) -> Tensor:
    y: Tensor = b(x)
    seen.append(y)
    return y


def replaces(b: nn.Module, x: Tensor, seen: list[Any]) -> Tensor:
    seen[0] = seen.pop().flip(2)
    return b(x + seen[0])  # type: ignore[no-any-return]


def enters(b: nn.Module, x: Tensor, state: dict[str, Any]) -> Tensor:
    state["map"], state["calls"] = b(x), state.pop("calls", 0) + 1
    return state["map"]  # type: ignore[no-any-return]


def sets(b: nn.Module, maps: Maps) -> Tensor:
    maps.second, maps.steps = b(maps.first), maps.steps + 1
    return maps.second


def clamps(b: nn.Module, x: Tensor, *rest: Any) -> Tensor:
    return b(x.clamp_(min=0))  # type: ignore[no-any-return]


WRITES: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "a list grows": (appends, lambda: (X.clone(), [])),
    "a list changes": (replaces, lambda: (X.clone(), [X.clone(), X.clone()])),
    "a dict": (enters, lambda: (X.clone(), {"calls": 2, "other": X.clone()})),
    "a dataclass": (sets, lambda: (Maps(X.clone(), X.clone()),)),
    "in place": (clamps, lambda: (X.clone(),)),
    "in place, in a list": (lambda b, given: clamps(b, given[1]), lambda: ([1, X.clone()],)),
}


@pytest.mark.parametrize("mode", [contextlib.nullcontext, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", WRITES)
def test_what_it_writes_into_its_arguments_is_there(name: str, mode: Callable[[], Any]) -> None:
    forward, given = WRITES[name]
    results = []
    for network in pair(forward):
        with mode():
            arguments = given()
            parts = list(map(id, nested.tensors(arguments)))
            results.append((network(*arguments), arguments))
            assert set(parts) & set(map(id, nested.tensors(arguments)))  # written into, not replaced
    alike(results[1], results[0])
    assert [type(a) for a in results[1][1]] == [type(a) for a in results[0][1]]


SPARSE: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "a volume": (lambda b, x: b(x.to_dense()), lambda: (X.to_sparse(),)),
    "beside a volume": (lambda b, m, x: b(x) * m.to_dense().sum(), lambda: (torch.eye(4).to_sparse(), X)),
    "written into": (lambda b, m, x: b(x) * m.mul_(2).to_dense().sum(), lambda: (torch.eye(4).to_sparse(), X)),
    "an output": (lambda b, x: b(x).to_sparse(), lambda: (X,)),
    "an output in rows": (lambda b, x: b(x).flatten(1).to_sparse_csr(), lambda: (X,)),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("name", SPARSE)
def test_sparse_tensors(name: str, reduced: bool) -> None:
    forward, given = SPARSE[name]
    results = []
    for network in pair(forward, reduced):
        arguments = given()
        results.append((network(*arguments), *arguments))
    for a, b in zip(*results, strict=True):
        assert (a.dtype, a.layout) == (b.dtype, b.layout)
        assert distance(b.to_dense(), a.to_dense()) < (2e-2 if reduced else 1e-5)


def test_gradients_pass_what_is_written_in_place() -> None:
    results = []
    for network in pair(clamps):
        x = X.clone().requires_grad_()
        between = x * 2
        y = network(between)
        results.append((y, *torch.autograd.grad(y.sum() + between.square().sum(), x)))
    alike(results[1], results[0])


# weights that are cast for a whole forward


def test_gradients_in_a_region_that_wants_them() -> None:
    """Of a forward that wants none: as a refinement at the time of a test has it."""

    def refined(b: nn.Module, x: Tensor) -> Tensor:
        with torch.enable_grad():
            return b(x)  # type: ignore[no-any-return]

    plain, fast = pair(refined, reduced=True)
    gradients = []
    for network in (plain, fast):
        with torch.no_grad():
            y = network(X)
        y.square().sum().backward()
        gradients.append({name: p.grad for name, p in network.named_parameters()})
    assert farthest(gradients[1], gradients[0]) < 5e-2


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_forward_without_gradients_on_another_thread(mode: Callable[[], Any]) -> None:
    """It begins, casts the weights, and waits while this thread trains."""
    begun, done = threading.Event(), threading.Event()

    def waits(b: nn.Module, x: Tensor, first: bool = False) -> Tensor:
        if first:
            begun.set()
            done.wait(60)
        elif threading.current_thread() is not threading.main_thread():
            raise AssertionError
        else:
            other.start()
            begun.wait(60)
        return b(x)  # type: ignore[no-any-return]

    plain, fast = pair(lambda b, x: b(x))[0], pair(waits, reduced=True)[1]

    def evaluates() -> None:
        with mode():
            fast(X, first=True)

    other = threading.Thread(target=evaluates)
    expected, found = passed(plain, X), passed(fast, X)
    done.set()
    other.join()
    check_near(found, expected, 2e-2, 5e-2)
