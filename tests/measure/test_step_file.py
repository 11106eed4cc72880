"""A reader's file: what is taken, and the one line that says what is wrong with any other."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from medddpm import accelerate
from medddpm.errors import BadInput
from medddpm.measure.step_file import Step, StepFile, load, step_file

CPU = torch.device("cpu")
GOOD = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv3d(1, 2, 3, padding=1)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x, scale=1.0):
        self.calls += 1
        return self.conv(x) * scale

def build():
    def loss_fn(model, x, y):
        return (model(x + 1, scale=2.0) - y).square().mean()
    return Net(), loss_fn, (torch.randn(1, 1, 4, 4, 4), torch.zeros(1, 2, 4, 4, 4))
"""


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`load` is for a process of its own: it changes the path, the arguments and the modules."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    yield
    for name in ("my step", "my step_of_reader", "beside"):
        sys.modules.pop(name, None)


def written(folder: Path, text: str, name: str = "my step.py") -> StepFile:
    (folder / name).write_text(text)
    return StepFile(folder / name)


def loaded(folder: Path, text: str) -> Step:
    return load(written(folder, text), CPU)


def test_a_step_is_loaded_as_a_script_would_be(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("WIDTH = 3\n")
    text = "import sys, beside\nassert sys.argv == [__file__] and __name__ != '__main__'\n" + GOOD
    step = loaded(tmp_path, text)
    assert step.call is not None
    (x,), named = step.call
    torch.testing.assert_close(x, step.inputs[0] + 1)
    assert named == {"scale": 2.0}
    assert step.model.calls == 0, "to see the arguments of the call nothing is computed"
    assert not step.model._forward_pre_hooks
    loss, again = step.loss(step.model, *step.inputs)
    assert loss.requires_grad
    assert not again.requires_grad
    torch.testing.assert_close(step.forward(step.model, *step.forward_inputs()), 2 * step.model.conv(x))
    step.reset()
    assert step.model.calls == 0


def test_two_processes_build_the_same_from_the_seed(tmp_path: Path) -> None:
    first, second = (loaded(tmp_path, GOOD).digest for _ in range(2))
    assert first == second
    drawn = GOOD.replace("return Net()", "torch.seed()\n    return Net()")
    assert loaded(tmp_path, drawn).digest != first


def test_a_batch_that_is_a_dict_or_a_tensor_is_one_argument(tmp_path: Path) -> None:
    text = GOOD.replace("def loss_fn(model, x, y)", "def loss_fn(model, batch)").replace(
        "        return (model(x + 1, scale=2.0) - y)", "        return (model(batch['x']) - batch['y'])"
    )
    text = text.replace("(torch.randn(1, 1, 4, 4, 4), torch.zeros(1, 2, 4, 4, 4))",
                        "{'x': torch.randn(1, 1, 4, 4, 4), 'y': torch.zeros(1, 2, 4, 4, 4)}")  # fmt: skip
    step = loaded(tmp_path, text)
    assert not step.unpacked
    assert len(step.inputs) == 1
    assert step.check_loss() is False


RETURN = "    return Net(), loss_fn, ("
LOSS = "        return (model(x + 1, scale=2.0) - y).square().mean()"
BATCH = "(torch.randn(1, 1, 4, 4, 4), torch.zeros(1, 2, 4, 4, 4))"
BROKEN = {
    "syntax": (GOOD.replace("def build():", "def build()"), "my step.py:15: it is no Python: expected ':'"),
    "import": ("import no_such_package\n" + GOOD,
               "my step.py:1: the file raises ModuleNotFoundError: No module named 'no_such_package'; correct that"),
    "no build": (GOOD.replace("def build", "def make"), "my step.py: it has no function build; add `def build()"),
    "raises": (GOOD.replace("    def loss_fn", "    raise ValueError('no\\ndata')\n    def loss_fn"),
               "my step.py:16: build() raises ValueError: no; correct that line"),
    "arguments": (GOOD.replace("build()", "build(size)"), "my step.py: build() raises TypeError: build() missing 1"),
    "exits": (GOOD + "\nraise SystemExit(3)\n", 'my step.py:20: the file ends the program; put what only a script'),
    "nothing": (GOOD.replace(RETURN, "    (Net(), loss_fn, ("). rstrip() + ")\n",
                "my step.py: build() returns nothing, not (model, loss_fn, batch); end it with: return model,"),
    "two": (GOOD.replace(f", {BATCH}", ""), "build() returns (Net, function), not (model, loss_fn, batch)"),
    "order": (GOOD.replace("return Net(), loss_fn", "return loss_fn, Net()"),
              "build() returns (function, Net, tuple), whose first is not a torch.nn.Module"),
    "no loss": (GOOD.replace("return Net(), loss_fn", "return Net(), 1.0"),
                "build() returns (Net, float, tuple), whose second is not a function"),
    "a number": (GOOD.replace("return Net(), loss_fn, ", "return 1  # "), "build() returns an int, not (model,"),
    "loader": (GOOD.replace(BATCH, "iter([1])"), "build() returns a list_iterator as the batch; give one batch"),
    "arrays": (GOOD.replace("torch.zeros(1, 2, 4, 4, 4)", "torch.zeros(1).numpy()"), "the batch holds a ndarray; use"),
    "compiled": (GOOD.replace("return Net()", "return torch.compile(Net())"), "returns a network under a tool"),
    "half": (GOOD.replace("return Net()", "return Net().half()"),
             "my step.py: build() returns a network with weights in float16; return it in float32"),
    "meta": (GOOD.replace("return Net()", "return Net().to('meta')"), "moving the network to cpu"),
    "loss raises": (GOOD.replace(LOSS, "        raise KeyError('x')"), "my step.py:17: loss_fn raises KeyError: 'x'"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "said"), BROKEN.values(), ids=BROKEN)
def test_a_file_that_is_wrong_is_one_line_with_its_place(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a folder").mkdir()
    written(tmp_path / "a folder", text)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput) as error:
        load(StepFile(Path("a folder", "my step.py")), CPU)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    if said.startswith("my step.py"):
        assert str(error.value).startswith(f"a folder{os.sep}my step.py"), "as the reader wrote it"


def test_a_loss_of_a_network_of_its_own_is_told_apart(tmp_path: Path) -> None:
    text = GOOD.replace("    def loss_fn(model, x, y)", "    model = net = Net()\n    def loss_fn(model, x, y)")
    text = text.replace("(model(x + 1", "(net(x + 1").replace("return Net(),", "return net,")
    with pytest.raises(BadInput, match="loss_fn calls a network of its own, not the one that it is given"):
        loaded(tmp_path, text)


WRONG_LOSSES = {
    "shape": ("(model(x) - y).square()", r"a loss of shape \(1, 2, 4, 4, 4\), and a loss is a scalar"),
    "number": ("float((model(x) - y).square().mean())", "returns a float, and not the loss as a tensor"),
    "dict": ("{'loss': model(x).mean()}", "returns a dict, and not the loss as a tensor"),
    "nan": ("model(x).mean() * float('nan')", "the loss of its batch is nan, which no tool can be compared by"),
    "no gradient": ("model(x).detach().mean()", "the loss reaches no parameter of the network"),
}


@pytest.mark.parametrize(("loss", "said"), WRONG_LOSSES.values(), ids=WRONG_LOSSES)
def test_a_loss_that_no_step_can_take_is_told(loss: str, said: str, tmp_path: Path) -> None:
    step = loaded(tmp_path, GOOD.replace(LOSS, f"        return {loss}"))
    with pytest.raises(BadInput, match=said):
        step.check_loss()


def test_a_loss_with_further_tensors_and_one_of_parts_of_the_network(tmp_path: Path) -> None:
    step = loaded(tmp_path, GOOD.replace(LOSS, "        out = model.conv(x)\n        return out.mean(), out"))
    assert step.call is None
    assert step.check_loss()


def test_an_accelerated_network_is_refused() -> None:
    network = accelerate(nn.Sequential(nn.Conv3d(1, 1, 1)), report=None)
    with pytest.raises(BadInput, match="returns a network under a tool; return it as it is"):
        Step(StepFile(Path("s.py")), (network, lambda m, x: m(x).mean(), torch.zeros(1, 1, 2, 2, 2)), CPU)


def test_the_words_of_a_file_and_a_function(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD, "a:b.py").path
    assert step_file(str(path)) == StepFile(path)
    assert step_file(f"{path}:small") == StepFile(path, "small")
    assert str(step_file(f"{path}:small")).endswith("a:b.py:small")
    for text, said in (
        ("no.py", "no.py: there is no such file; give a file with `def build"),
        (str(tmp_path), "a folder stands there"),
        (f"{path}:1x", "'1x' is no function's name"),
    ):
        with pytest.raises(BadInput) as error:
            step_file(text)
        assert said in str(error.value)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(BadInput, match=r"its name does not end in \.py"):
        step_file(str(tmp_path / "notes.txt"))
