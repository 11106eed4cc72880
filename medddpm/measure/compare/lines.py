"""The lines that put a tool into a reader's own loop: what `medddpm compare` measured, as a reader writes it."""

from __future__ import annotations

from medddpm.measure.tools import Tool

SETTINGS = {
    "tf32": ['torch.set_float32_matmul_precision("high")  # TF32'],
    "search": ["torch.backends.cudnn.benchmark = True"],
}
NETWORK = {
    "halved": ["model = model.to(torch.bfloat16)"],
    "channels_last": [
        "for weight in model.parameters():",
        "    if weight.dim() == 5:",
        "        weight.data = weight.data.to(memory_format=torch.channels_last_3d)",
    ],
    "accelerate": ["model = accelerate(model)"],
}
INPUTS = [
    "def channels_last(_model, inputs):",
    "    return tuple(x.to(memory_format=torch.channels_last_3d) if torch.is_tensor(x) and x.dim() == 5 else x",
    "                 for x in inputs)",
    "",
    "",
    "model.register_forward_pre_hook(channels_last)  # outside of what is compiled",
]  # fmt: skip
"""What a network needs before its loop, by what a tool has; `INPUTS` with channels-last."""


def lines(tool: Tool, measure: str, device: str, *, unpacked: bool = True, returns_more: bool = False) -> str:
    """Returns Python for a loop under a tool; `model`, `loss_fn` and `loader` (or `inputs`) are the reader's.

    Args:
        tool: out of `medddpm.measure.tools.COMPARED`.
        measure: "step", a loop that trains; or "forward", a call of the network.
        device: "cuda" or "cpu".
        unpacked: whether a batch is a sequence of the loss's arguments after the network, not one of them.
        returns_more: whether the loss comes in a tuple with further tensors.
    """
    last = tool.switches.channels_last and not tool.reader
    parts = {
        "tf32": tool.switches.tf32 and not tool.untouched,
        "search": tool.search and device == "cuda",
        "halved": tool.halved,
        "channels_last": last,
        "accelerate": bool(tool.reader),
    }
    names = ", ".join(["accelerate", "graphed_step"] if tool.reader == "graphed_step" else ["accelerate"])
    head = ["import torch", *(["", f"from medddpm import {names}"] if tool.reader else []), ""]
    setup = [line for table in (SETTINGS, NETWORK) for name, part in table.items() if parts[name] for line in part]
    if tool.compiled:
        mode = "" if tool.compiled == "default" else f', mode="{tool.compiled}"'
        setup.append(f"model = torch.compile(model{mode})")
    if last:
        setup += ["", "", *INPUTS]
    body = _loop(tool, device, unpacked, returns_more) if measure == "step" else _call(tool, device)
    return "\n".join([*head, *setup, *body]) + "\n"


def _loop(tool: Tool, device: str, unpacked: bool, returns_more: bool) -> list[str]:
    batch, loss = "*batch" if unpacked else "batch", "[0]" if returns_more else ""
    fused = ", fused=True" if device == "cuda" else ""
    optimizer = [f"optimizer = torch.optim.Adam(model.parameters(), lr=1e-4{fused})  # or yours"]
    if tool.reader == "graphed_step":
        made = "step = graphed_step(model, loss_fn, optimizer, next(iter(loader)))"
        return [*optimizer, made, "for batch in loader:", f"    loss = step({batch}){loss}"]
    computed = f"    loss = loss_fn(model, {batch}){loss}"
    if tool.autocast:
        computed = f"    with {_autocast(device)}:\n    {computed}"
    return [
        *optimizer,
        "for batch in loader:",
        "    optimizer.zero_grad()",
        computed,
        "    loss.backward()",
        "    optimizer.step()",
    ]


def _call(tool: Tool, device: str) -> list[str]:
    context = f"torch.no_grad(), {_autocast(device)}" if tool.autocast else "torch.no_grad()"
    halved = ["inputs = [x.bfloat16() if x.is_floating_point() else x for x in inputs]"] if tool.halved else []
    return ["model.eval()", *halved, f"with {context}:", "    output = model(*inputs)"]


def _autocast(device: str) -> str:
    return f'torch.autocast("{device}", torch.bfloat16)'
