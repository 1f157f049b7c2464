"""The extension's manifest matches the package and its files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nncdbg
from nncdbg.dap_server.launch_arguments import LaunchArguments

EXTENSION = Path(__file__).parents[2] / "vscode-extension"
MANIFEST: dict[str, Any] = json.loads((EXTENSION / "package.json").read_text(encoding="utf-8"))
CONTRIBUTES = MANIFEST["contributes"]


def test_the_version_is_that_of_the_package() -> None:
    assert MANIFEST["version"] == nncdbg.__version__


def test_each_used_command_is_declared() -> None:
    declared = {each["command"] for each in CONTRIBUTES["commands"]}
    used = {each["command"] for menu in CONTRIBUTES["menus"].values() for each in menu}
    used |= {each["command"] for each in CONTRIBUTES["keybindings"]}
    used |= set(re.findall(r"command:(nncdbg\.\w+)", json.dumps(CONTRIBUTES["walkthroughs"])))
    assert {each for each in used if each.startswith("nncdbg.")} <= declared
    assert "nncdbg.reverseStepInto" in used


def test_each_named_file_exists() -> None:
    named = list(_files(CONTRIBUTES))
    assert [each for each in named if not (EXTENSION / each).is_file()] == []
    assert len(named) > 10


def _files(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        part = list(part.values())
    if isinstance(part, list):
        for each in part:
            yield from _files(each)
    elif isinstance(part, str) and re.fullmatch(r"(\./|media/)[\w./-]+", part):
        yield part


def test_launch_properties_match_the_server() -> None:
    launch = CONTRIBUTES["debuggers"][0]["configurationAttributes"]["launch"]["properties"]
    known = set(LaunchArguments.__struct_encode_fields__)
    # The editor itself has the key `noDebug`.
    assert set(launch) == known - {"noDebug"}


def test_stepping_back_has_its_own_keys() -> None:
    keys = {each["command"]: each["key"] for each in CONTRIBUTES["keybindings"]}
    assert keys["workbench.action.debug.stepBack"] == "alt+f10"
    assert keys["workbench.action.debug.reverseContinue"] == "alt+f5"
    assert len(set(keys.values())) == len(keys)
    assert all("debugType == nncdbg" in each["when"] for each in CONTRIBUTES["keybindings"])
