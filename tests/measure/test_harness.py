"""The harness with small real programs: who runs beside whom, what is measured, and what is left when it ends."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from medddpm.errors import BadInput
from medddpm.measure import harness
from medddpm.measure import store as store_module
from medddpm.measure.harness import Job, Need
from medddpm.measure.lease import UNTIL, LeftForLater
from medddpm.measure.schemas import Column, Schema
from medddpm.measure.store import Store, Table
from medddpm.measure.tables import read_meta, read_table

META = {"gpu": "cpu", "driver": None, "cudnn": None, "torch": "2", "commit": "c", "command": "test"}
SCHEMA = Schema({"name": Column("str", "the job"), "value": Column("float64", "measured")})
CORES = 4

PROGRAM = """
import json, os, pathlib, sys, time
sys.path.insert(0, {root!r})
from medddpm.measure.ready import round_path, rounds
folder, name, how = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3:]

def note(what):
    with open(folder.parent / "events", "a") as events:
        events.write(f"{{time.monotonic()}} {{name}} {{what}} {{os.getpid()}}\\n")

def leave(key, number=1, **known):
    path = round_path(folder / f"{{key}}.json", number)
    if not path.is_file():
        path.write_text(json.dumps({{"value": float(number), **known}}))

note("begin")
if "unprepared" in how:
    sys.exit("no such network")
time.sleep(0.2)
for number in rounds():
    note(f"go{{number}}")
    for word in [word for word in how if word.startswith("key:")] or [f"key:{{name}}"]:
        if word == "key:fails" or word == f"key:fails{{number}}":
            sys.exit("it broke")
        if word == "key:damaged":
            (folder / "damaged.json").write_text('{{"value": ')
            continue
        leave(word.removeprefix("key:"), number, card=os.environ.get("CUDA_VISIBLE_DEVICES"))
    if "hangs" in how:
        (folder.parent / "hanging").touch()
        time.sleep(600)
    time.sleep(0.1)
    note(f"done{{number}}")
note("end")
"""


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(CORES)))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return a_store(tmp_path)


def a_store(folder: Path, **meta: str) -> Store:
    table = Table(folder / "t.csv", SCHEMA, rows_of)
    return Store(folder / "t.rows", META | meta, [table])


def rows_of(results: Sequence[Any]) -> tuple[pd.DataFrame, dict[str, Any]]:
    rows = [(result["key"], result["value"]) for result in results]
    return pd.DataFrame(rows, columns=["name", "value"]), {}


def job(store: Store, name: str, *how: str, need: Need = Need.READY, **known: Any) -> Job:
    code = PROGRAM.format(root=str(Path(harness.__file__).parents[2]))
    command = (sys.executable, "-c", code, str(store.folder), name, *how)
    known.setdefault("gib", 1.0)
    return Job(name, f"job {name}", command, need, describe=lambda result: f"{result['value']:g} ms", **known)


def events(folder: Path) -> list[tuple[float, str, str]]:
    lines = [line.split() for line in (folder / "events").read_text().splitlines()]
    return sorted((float(at), name, what) for at, name, what, _ in lines)


def order(folder: Path) -> list[str]:
    return [f"{name} {what}" for _, name, what in events(folder)]


def intervals(folder: Path) -> dict[str, tuple[float, float]]:
    """From its beginning to its end, of each program."""
    found = events(folder)
    return {
        name: tuple(next(at for at, n, w in found if (n, w) == (name, what)) for what in ("begin", "end"))
        for name in dict.fromkeys(name for _, name, _ in found)
    }  # type: ignore[misc]


# ready, then go


def test_programs_go_one_at_a_time_when_all_are_ready(tmp_path: Path, store: Store) -> None:
    assert harness.run([job(store, name) for name in "abc"], store, device="cpu") == 0
    found = order(tmp_path)
    assert set(found[:3]) == {"a begin", "b begin", "c begin"}, "they prepare beside each other"
    assert found[3:] == [f"{name} {what}" for name in "abc" for what in ("go1", "done1", "end")]


def test_rounds_alternate(tmp_path: Path, store: Store) -> None:
    jobs = [job(store, name, rounds=2) for name in "ab"]
    assert harness.run(jobs, store, device="cpu") == 0
    gone = [line for line in order(tmp_path) if "go" in line]
    assert gone == ["a go1", "b go1", "a go2", "b go2"]
    assert read_table(tmp_path / "t.csv", SCHEMA)["value"].tolist() == [2.0, 1.0, 2.0, 1.0]


def test_a_group_takes_turns_as_a_whole_though_it_has_more_programs_than_cores(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "_room", lambda _device: 6.0)
    groups = {"one": "abcdef", "two": "gh"}
    jobs = [job(store, name, rounds=2, group=group) for group, names in groups.items() for name in names]
    assert harness.run([job(store, "alone", group="one"), *jobs], store, device="cpu") == 0
    lines = order(tmp_path)
    gone = [line for line in lines if "go" in line]
    turns = [f"{name} go{number}" for names in groups.values() for number in (1, 2) for name in names]
    assert gone == ["alone go1", *turns], "one round is no turn, and a group begins its own wave"
    preparing = {line[0] for line in lines[lines.index("alone end") + 1 :][:CORES]}
    assert preparing == set("abcd"), "no more prepare at once than there are cores"
    for name in "abcdef":
        assert lines.index(f"{name} begin") < lines.index("a go1") < lines.index(f"{name} end")


def test_a_group_that_exceeds_the_memory_takes_turns_in_parts(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "_room", lambda _device: 2.0)
    assert harness.run([job(store, name, rounds=2, group="one") for name in "abc"], store, device="cpu") == 0
    gone = [line for line in order(tmp_path) if "go" in line]
    assert gone == ["a go1", "b go1", "a go2", "b go2", "c go1", "c go2"]


def test_a_description_says_how_long_each_call_took_that_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dates = iter(["first", "second", "third", "fourth"])
    monkeypatch.setattr(store_module, "now", lambda: next(dates))

    def calls(names: str, **meta: str) -> dict[str, float]:
        store = a_store(tmp_path, **meta)
        assert harness.run([job(store, name) for name in names], store, device="cpu") == 0
        known: dict[str, float] = read_meta(tmp_path / "t.csv")["calls"]
        assert min(known.values()) > 0.2, "its programs sleep as long"
        return known

    first = calls("a")
    assert list(first) == ["first"]
    second = calls("ab")
    assert (list(second), second["first"]) == (["first", "second"], first["first"])
    assert calls("ab") == second, "a call that measures nothing took no time of the table's"
    assert list(calls("ab", commit="another")) == ["fourth"]


def test_a_wave_is_as_large_as_cores_and_memory_allow(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "_room", lambda _device: 5.0)
    gib = {"a": 2.0, "b": 3.0, "c": 1.0, "d": math.inf, "e": 1.0, "f": 1.0, "g": 1.0, "h": 1.0, "i": 1.0}
    assert harness.run([job(store, name, gib=held) for name, held in gib.items()], store, device="cpu") == 0
    alone = intervals(tmp_path)
    waves = ["ab", "c", "d", "efgh", "i"]
    for before, after in itertools.pairwise(waves):
        assert max(alone[name][1] for name in before) < min(alone[name][0] for name in after)
    begun = iter(line[0] for line in order(tmp_path) if line.endswith("begin"))
    assert [set(itertools.islice(begun, len(wave))) for wave in waves] == [set(wave) for wave in waves]


def test_what_a_program_measures_is_one_program_for_those_that_are_missing(tmp_path: Path, store: Store) -> None:
    code = job(store, "a").command
    jobs = [Job(key, key, code, Need.READY, word=f"key:{key}") for key in ("one", "two", "three")]
    assert harness.run(jobs[:1], store, device="cpu") == 0
    assert harness.run(jobs, store, device="cpu") == 0
    assert order(tmp_path).count("a begin") == 2
    assert {path.stem for path in store.folder.glob("*.json")} == {"one", "two", "three"}


def test_after_a_result_that_fails_those_behind_it_are_measured(tmp_path: Path, store: Store, capsys) -> None:
    code = job(store, "a").command
    jobs = [Job(key, key, code, Need.READY, word=f"key:{key}") for key in ("one", "fails", "three")]
    assert harness.run(jobs, store, device="cpu") == 1
    said = capsys.readouterr()
    assert said.err == "medddpm: [2/3] fails: it broke\n"
    assert read_table(tmp_path / "t.csv", SCHEMA)["name"].tolist() == ["one", "three"]
    assert read_meta(tmp_path / "t.csv")["failed"] == {"fails": "it broke"}


def test_in_a_round_that_fails_the_job_that_failed_is_named_and_the_others_have_every_round(
    tmp_path: Path, store: Store, capsys
) -> None:
    code = job(store, "a").command
    jobs = [Job(key, key, code, Need.READY, word=f"key:{key}", rounds=2) for key in ("one", "fails", "three")]
    assert harness.run(jobs, store, device="cpu") == 1
    assert capsys.readouterr().err == "medddpm: [2/3] fails, round 1 of 2: it broke\n"
    found = read_table(tmp_path / "t.csv", SCHEMA)
    assert sorted(zip(found["name"], found["value"], strict=True)) == [
        (name, number) for name in ("one", "three") for number in (1.0, 2.0)
    ]


@pytest.mark.parametrize("need", list(Need))
def test_a_damaged_result_is_a_failure_and_the_others_are_measured(store: Store, need: Need, capsys) -> None:
    jobs = [job(store, "damaged", "key:damaged", need=need), job(store, "b", need=need)]
    assert harness.run(jobs, store, device="cpu") == 1
    assert capsys.readouterr().err == "medddpm: [1/2] job damaged: it left no result\n"
    assert store.read("b")


def test_what_cannot_prepare_fails_and_the_others_go(tmp_path: Path, store: Store, capsys) -> None:
    assert harness.run([job(store, "a", "unprepared"), job(store, "b")], store, device="cpu") == 1
    said = capsys.readouterr()
    assert said.err == "medddpm: [1/2] job a: no such network\n"
    assert said.out.startswith("[2/2] job b: 1 ms (")


def test_a_program_by_hand_goes_at_once(store: Store) -> None:
    store.folder.mkdir()
    subprocess.run(job(store, "a").command, check=True, stdin=subprocess.DEVNULL)
    assert json.loads(store.path("a").read_text())["value"] == 1


@pytest.mark.parametrize("given", [subprocess.DEVNULL, subprocess.PIPE])
def test_a_harness_that_is_none_is_not_waited_for(store: Store, given: int) -> None:
    store.folder.mkdir()
    environment = {**os.environ, "MEDDDPM_HARNESS": "ready"}
    subprocess.run(job(store, "a").command, check=True, stdin=given, env=environment, timeout=60)
    assert json.loads(store.path("a").read_text())["value"] == 1


def test_a_program_that_closed_its_input_measures_nothing(store: Store) -> None:
    store.folder.mkdir()
    environment = {**os.environ, "MEDDDPM_HARNESS": "ready"}
    subprocess.run(job(store, "a").command, check=True, preexec_fn=lambda: os.close(0), env=environment, timeout=60)
    assert not store.path("a").exists(), "others may have their turn"


# results


def test_what_is_there_is_not_measured_again_unless_asked(tmp_path: Path, store: Store, capsys) -> None:
    jobs = [job(store, "a"), job(store, "b", need=Need.ALONE)]
    assert harness.run(jobs[:1], store, device="cpu") == 0
    capsys.readouterr()
    assert harness.run(jobs, store, device="cpu") == 0
    said = [line.partition(" (")[0] for line in capsys.readouterr().out.splitlines()[:2]]
    assert said == ["[1/2] job a: there already", "[2/2] job b: 1 ms"]
    assert order(tmp_path).count("a begin") == 1
    assert harness.run(jobs, store, again=True, device="cpu") == 0
    assert harness.run(jobs, a_store(tmp_path, commit="another"), device="cpu") == 0
    assert (order(tmp_path).count("a begin"), order(tmp_path).count("b begin")) == (3, 3)


def test_a_missing_round_is_made_up_for_alone(tmp_path: Path, store: Store) -> None:
    assert harness.run([job(store, "a", rounds=3)], store, device="cpu") == 0
    store.remove("a", 2)
    assert harness.run([job(store, "a", rounds=3)], store, device="cpu") == 0
    gone = [line for line in order(tmp_path) if "go" in line]
    assert gone == ["a go1", "a go2", "a go3", "a go2"]
    assert harness.run([job(store, "a", rounds=1)], store, again=True, device="cpu") == 0
    assert len(read_table(tmp_path / "t.csv", SCHEMA)) == 1, "no round of before is left"


def test_the_table_is_written_after_each_result_and_says_what_is_left(tmp_path: Path, store: Store, capsys) -> None:
    rows: list[int] = []

    def told(result: dict[str, Any]) -> str:
        rows.append(len(read_table(tmp_path / "t.csv", SCHEMA)) if (tmp_path / "t.csv").exists() else 0)
        return "done"

    jobs = [replace(job(store, name), describe=told) for name in "abc"]
    assert harness.run(jobs, store, device="cpu") == 0
    assert rows == [0, 1, 2]
    lines = capsys.readouterr().out.splitlines()
    assert all(" left)" in line for line in lines[:2])
    assert re.fullmatch(r"\[3/3\] job c: done \(\d+ s\)", lines[2]), "nothing is left"
    assert lines[3:] == [f"{tmp_path / 't.csv'}: 3 rows"]


def test_a_result_that_does_not_fit_the_schema_is_refused(store: Store) -> None:
    wrong = replace(store.tables[0], rows=lambda results: (pd.DataFrame({"name": ["a"], "value": ["much"]}), {}))
    with pytest.raises(BadInput, match="column value"):
        harness.run([job(store, "a")], replace(store, tables=[wrong]), device="cpu")


@pytest.mark.parametrize("need", list(Need))
def test_what_takes_too_long_is_given_up(store: Store, need: Need, capsys) -> None:
    jobs = [job(store, "a", "hangs", need=need, limit=1.5), job(store, "b", need=need)]
    assert harness.run([replace(jobs[0], key="none"), jobs[1]], store, device="cpu") == 1
    assert capsys.readouterr().err == "medddpm: [1/2] job a: it took more than 1.5 s\n"


def test_what_is_given_up_leaves_no_program_of_its_own(tmp_path: Path, store: Store, monkeypatch) -> None:
    child = "import os, sys, time; open(sys.argv[1], 'w').write(f'0 a begin {os.getpid()}\\n'); time.sleep(600)"
    parent = f"import sys; sys.path.insert(0, {str(Path(harness.__file__).parents[2])!r}); "
    parent += "from medddpm.measure import programs; programs.run([sys.executable, '-c', *sys.argv[1:]])"
    begun = tmp_path / "events"

    def now() -> float:  # its time is over as soon as its child has begun
        return math.inf if begun.exists() and begun.read_text().endswith("\n") else time.monotonic()

    monkeypatch.setattr(harness, "time", types.SimpleNamespace(monotonic=now, sleep=time.sleep))
    slow = Job("a", "job a", (sys.executable, "-c", parent, child, str(begun)), Need.ALONE, limit=300)
    try:
        with pytest.raises(BadInput, match="nothing was measured"):
            harness.run([slow], store, device="cpu")
        assert living(tmp_path) == set()
    finally:
        for pid in living(tmp_path):
            os.kill(pid, signal.SIGKILL)


def test_nothing_measured_is_an_error(store: Store, capsys) -> None:
    with pytest.raises(BadInput, match="nothing was measured"):
        harness.run([job(store, "a", "unprepared")], store, device="cpu")


def test_a_dry_run_prints_one_command_a_program(store: Store, tmp_path: Path, capsys) -> None:
    command = (sys.executable, "-m", "measures", "--rows")
    jobs = [Job(key, key, command, Need.READY, word=key) for key in "ab"]
    assert harness.show([*jobs, Job("c", "c", (sys.executable, "-m", "other"), Need.ALONE)]) == 0
    assert capsys.readouterr().out.splitlines() == ["python -m measures --rows a b", "python -m other"]
    assert list(tmp_path.iterdir()) == []


# alone, and queued


def test_who_needs_the_card_alone_has_it(tmp_path: Path, store: Store) -> None:
    jobs = [job(store, "a"), job(store, "b", need=Need.ALONE), job(store, "c", need=Need.ALONE), job(store, "d")]
    assert harness.run(jobs, store, device="cpu") == 0
    alone = intervals(tmp_path)
    for before, after in itertools.pairwise("abcd"):
        assert alone[before][1] < alone[after][0]


def test_a_queue_has_a_program_on_each_card(tmp_path: Path, store: Store, capsys) -> None:
    jobs = [job(store, name, need=Need.QUEUE) for name in "abcd"]
    assert harness.run(jobs, store, device="cpu", cards=("3", "5")) == 0
    cards = {name: (store.read(name) or {})["card"] for name in "abcd"}
    assert set(cards.values()) == {"3", "5"}
    alone = intervals(tmp_path)
    for one, other in itertools.combinations("abcd", 2):
        if cards[one] == cards[other]:
            assert alone[one][1] < alone[other][0] or alone[other][1] < alone[one][0]
    assert max(alone[name][0] for name in "ab") < min(alone[name][1] for name in "ab"), "two at once"
    assert capsys.readouterr().out.count("begun on GPU") == 4
    assert (store.folder / "log.txt").is_file()


def test_what_would_not_end_in_time_is_left_for_a_later_call(store: Store, capsys) -> None:
    jobs = [job(store, name, need=Need.QUEUE, expected=expected) for name, expected in (("a", 1.0), ("b", 5e4))]
    assert harness.run(jobs, store, device="cpu", seconds=4e4) == 0
    assert (store.lacks("a"), store.lacks("b")) == (False, True)
    assert "[2/2] job b: left for a later call" in capsys.readouterr().out.splitlines()
    assert harness.run(jobs, store, device="cpu") == 0
    assert not store.lacks("b")


def test_what_took_longer_than_expected_is_expected_to_do_so_again(store: Store) -> None:
    jobs = [job(store, name, need=Need.QUEUE, expected=1e-4) for name in "ab"]
    jobs.append(job(store, "c", need=Need.QUEUE, expected=100.0))
    assert harness.run(jobs, store, device="cpu", seconds=9e4) == 0, "a takes 0.3 s, 3 000 times what was expected"
    assert [store.lacks(name) for name in "abc"] == [False, False, True]


@pytest.fixture
def lease(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets how many seconds the environment's lease has left."""
    return lambda seconds: monkeypatch.setenv(UNTIL, str(time.time() + seconds))


@pytest.mark.parametrize("need", Need)
def test_a_lease_that_is_over_leaves_everything_for_later(store: Store, lease, need: Need) -> None:
    lease(-1)
    with pytest.raises(LeftForLater, match="2 of 2 results are left for a later call"):
        harness.run([job(store, name, need=need) for name in "ab"], store, device="cpu")
    lease(1000)
    assert harness.run([job(store, name, need=need) for name in "ab"], store, device="cpu") == 0


def test_what_took_longest_is_expected_of_a_program_alone(store: Store) -> None:
    jobs = [job(store, "a", need=Need.ALONE), job(store, "b", need=Need.ALONE, expected=0.5)]
    store.check()
    call = harness._Call(jobs, store, False, [None], math.inf, 500.0, longest=1000.0)
    call.work()
    assert (call.late, store.lacks("a"), store.lacks("b")) == (1, True, False)


def test_a_group_is_measured_in_one_lease_or_not_begun(store: Store) -> None:
    """Ready programs are expected to take what those before them took on average."""
    groups = {"one": "abcd", "two": "ef"}
    jobs = [job(store, name, rounds=2, group=group) for group, names in groups.items() for name in names]
    singly = [job(store, name) for name in "xyz"]
    store.check()
    call = harness._Call([*jobs, *singly], store, False, [None], math.inf, 1000.0, waves=[(3000.0, 10)])
    call.work()
    assert [name for name in "abcdefxyz" if not store.lacks(name)] == [*"efxyz"]
    assert call.late == 8, "four programs at 300 s each, twice"
    for name in "efxyz":
        store.remove(name)
    call = harness._Call(singly, store, False, [None], math.inf, 700.0, waves=[(3000.0, 10)])
    call.work()
    assert [name for name in "xyz" if not store.lacks(name)] == [*"xy"], "without a group as many as there is time for"


def test_results_of_another_host_count_and_rows_keep_theirs(tmp_path: Path) -> None:
    first = a_store(tmp_path / "first", host="h1", card="c1")
    assert harness.run([job(first, "a")], first, device="cpu") == 0
    (tmp_path / "second").mkdir()
    shutil.copytree(first.folder, tmp_path / "second" / "t.rows")
    second = a_store(tmp_path / "second", host="h2", card="c2")
    assert harness.run([job(second, name) for name in "ab"], second, device="cpu") == 0
    assert {result["key"]: result["machine"]["host"] for result in second.results()} == {"a": "h1", "b": "h2"}


# an end


def harnessed(folder: Path, *needs: Need) -> subprocess.Popen[bytes]:
    """Starts a harness in a process of its own; one of its programs hangs when it goes."""
    jobs = ", ".join(
        f"t.job(store, {name!r}, {'hangs' if name == 'a' else 'waits'!r}, need=t.Need.{need.name})"
        for name, need in zip("abc", needs, strict=False)
    )
    code = f"""
import os, sys, pathlib
from measure import test_harness as t
os.sched_getaffinity = lambda _: set(range(4))
store = t.a_store(pathlib.Path({str(folder)!r}))
t.harness.run([{jobs}], store, device="cpu", cards=("1", "2"))
"""
    tests, root = Path(__file__).parents[1], Path(harness.__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{root}:{tests}"}
    process = subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 120
    while not (folder / "hanging").exists() or len(pids(folder)) < len(needs):
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.05)
    return process


def pids(folder: Path) -> set[int]:
    return {int(line.split()[3]) for line in (folder / "events").read_text().splitlines()}


def living(folder: Path) -> set[int]:
    """The programs that have not ended; one that has and is nobody's child any more may stay a while as a zombie."""
    found = set()
    for pid in pids(folder):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        found |= {pid} if state != "Z" else set()
    return found


def test_of_a_killed_harness_no_program_waits_on(tmp_path: Path) -> None:
    process = harnessed(tmp_path, Need.READY, Need.READY, Need.READY)
    process.kill()
    process.wait()
    (hanging,) = [int(line.split()[3]) for line in (tmp_path / "events").read_text().splitlines() if "go1" in line]
    until = time.monotonic() + 60
    try:
        while living(tmp_path) - {hanging}:
            assert time.monotonic() < until, "programs that wait for their turn hold memory"
            time.sleep(0.05)
        assert [line for line in order(tmp_path) if "go" in line] == ["a go1"], "none of them measures"
    finally:
        os.kill(hanging, signal.SIGKILL)


@pytest.mark.parametrize("need", [Need.READY, Need.ALONE, pytest.param(Need.QUEUE, marks=pytest.mark.long)])
def test_sigterm_ends_every_program_and_keeps_what_is_measured(tmp_path: Path, need: Need) -> None:
    process = harnessed(tmp_path, *([need] * (1 if need is Need.ALONE else 2)))
    process.terminate()
    assert process.wait(60) not in (0, None)
    assert living(tmp_path) == set()
    assert "a" in read_table(tmp_path / "t.csv", SCHEMA)["name"].tolist()


def test_another_harness_is_refused_and_what_another_one_left_is_not(tmp_path: Path, store: Store) -> None:
    other = a_store(tmp_path)
    with other.alone(), pytest.raises(BadInput, match="is measuring there"):
        harness.run([job(store, "a")], store, device="cpu")
    with store.alone():
        assert harness.run([job(store, "a")], store, device="cpu") == 0
