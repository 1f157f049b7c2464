"""The run configuration and its forms: flags, keys of a launch configuration, parameters in Python."""

from __future__ import annotations

import inspect
import json
import re
from argparse import Action
from collections.abc import Callable
from dataclasses import MISSING
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pytest
from jsonschema import Draft7Validator

import nncdbg
from nncdbg import extensions
from nncdbg.dap_server.launch_arguments import LaunchArguments
from nncdbg.errors import UsageError
from nncdbg.ir.records import SavedRun
from nncdbg.opening.command_line import ArgumentParser, add_complete_run, add_recording, configuration_of
from nncdbg.opening.configuration import RunConfiguration, Setting, settings
from nncdbg.terminal.one_shot import run, text
from tools.launch_schema import MANIFEST, manifest

NO_FLAG = {"program": "the positional argument", "folder": "the command line has the current folder"}
INTERNAL_PARAMETERS = {"compiled", "statistics", "black_box", "supervision"}
"""Parameters of Debugger that are set by the command, not by its user."""

NAMES = [*settings()]


def parser() -> ArgumentParser:
    made = ArgumentParser("nncdbg", "")
    add_complete_run(made)
    add_recording(made)
    return made


def actions() -> dict[str, Action]:
    return {each.dest: each for each in parser()._actions if each.option_strings}


def function_of(setting: Setting) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(nncdbg, setting.parameter)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_each_setting_has_a_flag(name: str) -> None:
    field, setting = settings()[name]
    if name in NO_FLAG:
        assert not setting.flag
        return
    action = actions()[name]
    assert action.option_strings == [setting.flag]
    assert action.help is not None
    assert (action.help % {}).startswith(setting.help)
    assert action.default is None
    if field.default not in (MISSING, None, False):
        assert f"(default: {field.default})" in action.help


def test_each_flag_is_a_setting() -> None:
    assert {*actions()} - {"help"} == {*NAMES} - {*NO_FLAG}


@pytest.mark.parametrize("name", NAMES)
def test_each_setting_has_a_key_of_a_launch_configuration(name: str) -> None:
    keys = dict(zip(LaunchArguments.__struct_fields__, LaunchArguments.__struct_encode_fields__, strict=True))
    assert keys[name] == settings()[name][1].key or name


def test_a_launch_configuration_gives_the_same_record_as_its_defaults() -> None:
    launched = msgspec.convert({"program": "m.onnx"}, LaunchArguments).configuration()
    expected = RunConfiguration(program=str(Path.cwd() / "m.onnx"), folder=str(Path.cwd()))
    assert launched == expected


def test_a_launch_configuration_gives_the_same_record_as_a_command_line() -> None:
    keys = {
        "program": "m.onnx",
        "inputs": {"x": "zeros"},
        "dims": {"N": 4},
        "seed": 3,
        "backend": "cupy",
        "kernels": {"Conv": "torch", "%a=b": "numpy"},
        "kernelFile": "k.json",
        "fallback": True,
        "opLibrary": ["/ops.py"],
        "allocator": "arena",
        "history": "4GiB",
        "maxOps": 9,
        "inPlaceStates": True,
        "outputs": ["h", "y"],
        "check": "micro",
        "flat": True,
        "allowStores": ["/"],
        "states": "w.safetensors",
        "strictStates": True,
        "training": True,
        "order": 5,
        "steps": 7,
        "track": {"a": "%h"},
        "journal": "run.db",
        "checkpointEvery": "50",
        "checkpointBudget": "2GiB",
        "journalStatistics": True,
        "journalValues": ["w*", "@loss.%z"],
        "journalValuesEvery": "5",
        "journalCodec": "f16",
        "onJournalError": "stop",
        "note": "slower",
        "fork": True,
        "set": {"lr": "1e-4"},
        "forkProgram": "new.nnc",
        "continue": True,
        "record": "r.log",
    }
    line = (
        "m.onnx --input x=zeros --dim N=4 --seed 3 --backend cupy --fallback --op-library /ops.py "
        "--kernel Conv=torch --kernel %a=b=numpy --kernels k.json "
        "--allocator arena --history 4GiB --max-ops 9 --output h --output y --check micro --flat "
        "--in-place-states --allow-store / --states w.safetensors --strict-states --order 5 --steps 7 "
        "--training --journal run.db --checkpoint-every 50 --checkpoint-budget 2GiB --journal-statistics "
        "--journal-values w* --journal-values @loss.%z --journal-values-every 5 --journal-codec f16 "
        "--on-journal-error stop --note slower --fork --set lr=1e-4 --program new.nnc --continue "
        "--track a=%h --record r.log"
    )
    launched = msgspec.convert(keys, LaunchArguments).configuration()
    typed = configuration_of(parser().parse_args(line.split()))
    for name in {*NAMES} - {"program", "folder"}:
        assert getattr(launched, name) == getattr(typed, name) != getattr(RunConfiguration(), name), name
    assert typed.given == {*NAMES} - {"program", "folder"}


@pytest.mark.parametrize("name", NAMES)
def test_each_setting_is_a_documented_parameter_in_python(name: str) -> None:
    field, setting = settings()[name]
    if not setting.parameter:
        assert name == "record", "a session of commands is recorded"
        return
    function = function_of(setting)
    if setting.parameter == "load_op_library":
        assert "op_library" in function.__name__
        return
    assert f"`{name}`" in inspect.getdoc(function)  # type: ignore[operator]
    given = inspect.signature(function).parameters[name].default
    if field.default is not MISSING and given is not inspect.Parameter.empty:
        # A program folder may supply what is not given.
        assert (getattr(SavedRun(), name, None) if given is None else given) == field.default
    else:
        assert given in (None, (), inspect.Parameter.empty)


def test_each_parameter_of_the_debugger_is_a_setting() -> None:
    parameters = {*inspect.signature(nncdbg.Debugger).parameters}
    of_debugger = {name for name, (_, setting) in settings().items() if setting.parameter == "Debugger"}
    assert parameters - INTERNAL_PARAMETERS == of_debugger


@pytest.mark.parametrize("name", ["seed", "fallback", "max_ops"])
def test_parameters_have_the_types_of_the_record(name: str) -> None:
    hints = get_type_hints(RunConfiguration)
    assert str(inspect.signature(nncdbg.Debugger).parameters[name].annotation).removesuffix(" | None") in (
        str(hints[name]).removesuffix(" | None"),
        hints[name].__name__ if isinstance(hints[name], type) else "",
    )


def test_the_manifest_of_the_extension_is_generated() -> None:
    assert manifest() == MANIFEST.read_text(encoding="utf-8")


def test_the_manifest_suggests_the_built_in_backends_and_accepts_others() -> None:
    launch = json.loads(manifest())["contributes"]["debuggers"][0]["configurationAttributes"]["launch"]
    schema = launch["properties"]["backend"]
    assert schema["anyOf"][0] == {"enum": [*extensions.BUILT_IN[extensions.BACKENDS]]}
    for value, valid in (("cupy", True), ("rounding", True), (3, False)):
        assert Draft7Validator(schema).is_valid(value) is valid


# -- completion of a configuration -------------------------------------------------------------


def test_an_explicit_setting_overrides_the_base_even_with_the_default_value() -> None:
    given = RunConfiguration(backend="numpy", given=frozenset({"backend"}))
    completed = given.completed({"backend": "onnxruntime", "seed": 7})
    assert (completed.backend, completed.seed) == ("numpy", 7)


def test_a_completed_setting_is_not_replaced_by_the_next_base() -> None:
    assert RunConfiguration().completed({"seed": 7}).completed({"seed": 8}).seed == 7


def test_inputs_and_sizes_are_completed_by_name() -> None:
    given = RunConfiguration(inputs={"%x": 1}, dims={"N": 4}, given=frozenset({"inputs", "dims"}))
    completed = given.completed({"inputs": {"x": 2, "y": 3}, "dims": {"N": 5, "M": 6}})
    assert completed.inputs == {"x": 1, "y": 3}
    assert completed.dims == {"N": 4, "M": 6}


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("m --input x", "is not NAME=VALUE"),
        ("m --input x=1 --input x=2", '--input sets "x" twice'),
        ("m --dim N=1 --dim N=2", '--dim sets "N" twice'),
        ("m --allow-store /nonexistent", "no such folder"),
        ("m --kernel Conv", "is not OP|%VALUE|LINE=BACKEND"),
        ("m --kernel Conv=a --kernel Conv=b", '--kernel sets "Conv" twice'),
    ],
)
def test_a_malformed_setting_is_an_error_before_files_are_read(line: str, error: str) -> None:
    with pytest.raises(UsageError, match=re.escape(error)):
        configuration_of(parser().parse_args(line.split()))


def test_a_command_with_fewer_options_gives_a_configuration() -> None:
    assert text.main.options(["m.onnx"]).flat is None
    assert configuration_of(text.main.options(["m.onnx", "--flat"])).flat
    assert configuration_of(run.main.options(["m.onnx"])).check is None
