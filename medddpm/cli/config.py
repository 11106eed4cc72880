"""The options of a command from a file: a TOML, or the run.json of an earlier training."""

from __future__ import annotations

import argparse
import difflib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from medddpm.cli.options import Parser, option
from medddpm.errors import BadInput
from medddpm.runtime.arguments import a_path
from medddpm.runtime.files import read_whole

NAME = "--config"
LARGEST = 2**20  # bytes of a TOML


def add_config(command: Parser) -> None:
    """Adds --config, whose options count as if they stood before those of the command line."""
    command.add_argument(
        NAME, type=a_path, metavar="FILE",
        help="a TOML of these options, as in learning-rate = 1e-4, flips = true, size = [64, 64, 48]; or the run.json "
        "of a run, whose recipe, network and synthetic data it takes over; the command line counts more",
    )  # fmt: skip
    command.expand = with_config


def with_config(command: Parser, words: Sequence[str]) -> list[str]:
    """Returns a command line with the options in the file of its --config before its own.

    Of options that exclude each other those of the file are left out if the command line has one.

    Raises:
        BadInput: the file cannot be read, or has an unknown option or a wrong value.
    """
    named = _value(words, NAME)
    if not named:
        return [*words]
    path = Path(named)
    values = _of_run(path, words) if path.suffix == ".json" else _of_toml(path)
    actions = _actions(command)
    expanded: dict[str, list[str]] = {}
    for key, value in values.items():
        name = option(key.replace("-", "_"))
        if name not in actions:
            nearest = difflib.get_close_matches(name, actions, 1, cutoff=0)[0].removeprefix("--")
            raise BadInput(path, f"{key} is no option of train", f"the nearest is {nearest}")
        if name in expanded:
            raise BadInput(path, f"{key} is there twice, with - and with _", "give it once")
        expanded[name] = _words(actions[name], key, value, path)
    exclusive = [action.option_strings[0] for action in command.one_of]
    if chosen := [name for name in exclusive if any(_means(word, name) for word in words)]:
        unread = {"contrast"} if chosen == ["--data"] else {"scaling", "no_check"}
        for name in (*exclusive, *map(option, unread)):
            expanded.pop(name, None)
    return [*(word for each in expanded.values() for word in each), *words]


def _actions(command: Parser) -> dict[str, argparse.Action]:
    """Returns the options that a file may set, by their names."""
    actions = {name: action for action in command._actions for name in action.option_strings if name.startswith("--")}
    both = [action for action in command._actions if isinstance(action, argparse.BooleanOptionalAction)]
    negations = [name for action in both for name in action.option_strings if name.startswith("--no-")]
    return {name: action for name, action in actions.items() if name not in ("--help", NAME, *negations)}


def _means(word: str, name: str) -> bool:
    """Returns whether a word is the option, which argparse lets a user shorten."""
    begun = word.partition("=")[0]
    return len(begun) > len("--c") and name.startswith(begun)


def _value(words: Sequence[str], name: str) -> str | None:
    """Returns the last value of an option on the command line."""
    value = None
    for word, following in zip(words, [*words, ""][1:], strict=True):
        if _means(word, name):
            value = word.partition("=")[2] or following
    return value


def _words(action: argparse.Action, key: str, value: object, path: Path) -> list[str]:
    """Returns the words that give an option a value.

    Raises:
        BadInput: it cannot have that value.
    """
    name = next(each for each in action.option_strings if each.startswith("--"))
    if isinstance(value, bool):
        if isinstance(action, argparse.BooleanOptionalAction):
            return [name if value else f"--no-{name[2:]}"]
        if action.nargs in (0, "?"):
            return [name] if value else []
    elif action.nargs == 0:  # of both kinds
        raise BadInput(path, f"{key} is {value!r}", "give true or false")
    several = action.nargs == "+" and isinstance(value, list) and bool(value)
    texts = [_text(action, key, each, path) for each in (value if several else [value])]  # type: ignore[attr-defined]
    return [name, *texts] if several else [f"{name}={texts[0]}"]


def _text(action: argparse.Action, key: str, value: object, path: Path) -> str:
    if type(value) not in (str, int, float):
        raise BadInput(path, f"{key} is {value!r}", "give a number or a text, as on the command line")
    text = str(value)
    try:
        read = action.type(text) if callable(action.type) else text
    except argparse.ArgumentTypeError as error:
        raise BadInput(path, f"{key}: {error}", "correct it") from None
    if action.choices is not None and read not in action.choices:
        raise BadInput(path, f"{key} is {text!r}", f"choose one of {', '.join(map(str, action.choices))}")
    return text


def _of_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_whole(path, LARGEST, "give a TOML, or the run.json of a run").decode())
    except BadInput:
        raise
    except OSError as error:
        raise BadInput(path, (error.strerror or "it cannot be read").lower(), "give a TOML, or a run.json") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(path, f"it is no TOML: {error}", "correct it, or give the run.json of a run") from None


def _of_run(path: Path, words: Sequence[str]) -> dict[str, Any]:
    """Returns the options of a run, by their names.

    Raises:
        BadInput: it is no run.json, or no options give what is in it.
    """
    from medddpm.training.config import TrainConfig
    from medddpm.training.mismatch import NO_OPTION
    from medddpm.training.mismatch import option as option_of
    from medddpm.training.run_folder import read_record

    known, defaults = read_record(path), asdict(TrainConfig())
    for name in ("ema_decay", "ema_every", "ema_start"):
        if (value := known.get(name, defaults[name])) != defaults[name]:
            raise BadInput(path, f"its run has {name} {value}, which no option sets", "train it from Python")
    resumed = Path(_value(words, "--out") or path).resolve() == path.parent.resolve()
    if known.get("init") and not resumed and not any(_means(word, "--init") for word in words):
        raise BadInput(path, f"its run started from {known['init']}", "give that file by --init")
    fields = {name: known[name] for name in defaults if name in known and name not in {*NO_OPTION, "init"}}
    values = fields | {"size": known["size"], "setting": known.get("setting", defaults["setting"]).lower()}
    if not values.get("length"):
        values.pop("length", None)  # the steps in all belong to the run only where the learning rate ends there
    if (processes := known.get("processes", 1)) > 1:  # another number of them makes the same steps
        each = values.get("batch_size", defaults["batch_size"]) * values.pop("accumulation", defaults["accumulation"])
        values["volumes_a_step"] = each * processes
    values |= _data_of(known, path)
    return {option_of(name)[2:]: value for name, value in values.items() if value is not None}


def _data_of(known: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Returns the options of a run's data; where a folder lies a run.json does not say."""
    from medddpm.data.synthetic import origin_of

    if origin := origin_of(known["volumes"]):
        if origin.seed:
            raise BadInput(path, f"its subjects have seed {origin.seed}, which no option sets", "train it from Python")
        return {origin.key: len(known["volumes"]), "contrast": origin.contrast}
    by_slice = known.get("data", [""])[0].startswith("slice ")
    return {"scaling": "slice"} if by_slice else {}
