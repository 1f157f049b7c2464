"""The Neovim configuration of docs/LANGUAGE_SERVER.md works in Neovim."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TRIAL = r"""
local ok, fault = pcall(function()
  local buffer = vim.api.nvim_get_current_buf()
  local function line() return vim.api.nvim_buf_get_lines(buffer, 9, 10, false)[1] end
  local function until_(test) assert(vim.wait(30000, test, 50), "nothing came") end
  local function say(...) io.stdout:write(table.concat({ ... }, " ") .. "\n") end
  local function ask(method, row, column, more)
    local params = vim.tbl_extend("force", {
      textDocument = { uri = vim.uri_from_bufnr(buffer) },
      position = { line = row, character = column },
    }, more or {})
    local found = vim.lsp.buf_request_sync(buffer, "textDocument/" .. method, params, 30000)
    local _, answer = next(found)
    return answer.result
  end
  vim.api.nvim_buf_set_lines(buffer, 9, 9, false, { "    %half = Mul( %siz, 0.5)" })
  until_(function()
    for _, each in ipairs(vim.diagnostic.get(buffer)) do
      if each.code == "undefined" then say((each.message:gsub("\n.*", ""))); return true end
    end
  end)
  say((ask("hover", 8, 18).contents.value:sub(1, 12):gsub("\n", " ")))
  say(ask("completion", 9, 17).items[1].label)
  say(ask("signatureHelp", 9, 17).signatures[1].label)
  say(tostring(ask("definition", 8, 21).range.start.line))
  local range = { start = { line = 9, character = 18 }, ["end"] = { line = 9, character = 18 } }
  local action = ask("codeAction", 9, 18, { range = range, context = { diagnostics = {} } })[1]
  say(action.title)
  vim.lsp.util.apply_workspace_edit(action.edit, "utf-16")
  vim.lsp.buf.formatting_sync(nil, 30000)
  say(line())
  vim.fn.cursor(9, 5)
  vim.lsp.buf.rename("tiny one")
  until_(function() return vim.api.nvim_buf_get_lines(buffer, 8, 9, false)[1]:find("tiny one") ~= nil end)
  say(vim.api.nvim_buf_get_lines(buffer, 8, 9, false)[1])
  say(ask("codeLens", 0, 0)[1].command.title, #ask("documentSymbol", 0, 0), #ask("foldingRange", 0, 0))
end)
if not ok then io.stdout:write(tostring(fault) .. "\n") end
vim.cmd("qa!")
"""
EXPECTED = """\
%siz is not defined
```nnc Add(A
%a
Mul(A: T, B: T) -> (C: T)
7
Replace by %size
  %half = Mul(%size, 0.5)
  %"tiny one": f32[4] = Add(%size, 0.5)
Debug graph 1 3
"""


@pytest.mark.e2e
@pytest.mark.skipif(shutil.which("nvim") is None, reason="Neovim is not installed")
def test_the_configuration_of_the_page_works(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "LANGUAGE_SERVER.md").read_text("utf-8")
    block = re.search(r"^```lua\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert block is not None
    (tmp_path / "init.lua").write_text(block[1])
    (tmp_path / "trial.lua").write_text(TRIAL)
    shutil.copy(ROOT / "examples" / "refine_loop.nnc", tmp_path)
    (tmp_path / "nncdbg").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m nncdbg "$@"\n')
    (tmp_path / "nncdbg").chmod(0o755)
    ran = subprocess.run(
        ["nvim", "-n", "--headless", "-u", "init.lua", "refine_loop.nnc", "-c", "luafile trial.lua"],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "XDG_STATE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ran.stdout == EXPECTED, ran.stderr
