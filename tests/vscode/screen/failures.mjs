// Messages in VS Code when nncdbg cannot start, or ends too soon.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import fs from "node:fs";
import path from "node:path";
import { BREAKPOINT, STOPPED, launches } from "../screen.mjs";

const DEADLY = `import os
import signal

import nncdbg


@nncdbg.op("deadly.Op")
def deadly(xp, x):
    os.kill(os.getpid(), signal.SIGSEGV)
`;

const GRAPH = `#nncdbg 1

graph @main(%x: f32[4]) -> (%z) {
  %y: f32[4] = Neg(%x)
  %z: f32[4] = deadly.Op(%y)
  return %z
}
`;

/** Creates a virtual environment that runs `more` at its start, and returns its Python. */
function environment(python, folder, more) {
  const home = path.join(folder, "venv");
  execFileSync(python, ["-m", "venv", "--without-pip", home]);
  const lib = path.join(home, "lib");
  fs.writeFileSync(path.join(lib, fs.readdirSync(lib)[0], "site-packages", "more.pth"), more);
  return path.join(home, "bin", "python");
}

/** Returns the import path of a Python. */
function packages(python) {
  const output = execFileSync(python, ["-c", "import sys, nncdbg, json; print(json.dumps(sys.path))"], { cwd: "/" });
  return JSON.parse(output).filter((each) => each);
}

export const tests = {
  async "a server that dies at its start is reported, with a Restart button"({ screen, workspace, open }) {
    fs.writeFileSync(path.join(workspace, "dies.py"), "import os\n\nos._exit(3)\n");
    launches(workspace, { request: "launch", program: "nan_softmax.nnc", opLibrary: ["dies.py"] });
    await open();
    await screen.openFile("nan_softmax.nnc");
    await screen.click("Softmax");
    const toast = await screen.expectStartFailure("nncdbg ended with exit code 3");
    await screen.picture("died");
    assert.equal(await toast.locator(".monaco-button", { hasText: "Restart" }).count(), 1);
  },

  async "a kernel that crashes is named, and Restart keeps the breakpoints"({ page, screen, workspace, open }) {
    fs.writeFileSync(path.join(workspace, "deadly.py"), DEADLY);
    fs.writeFileSync(path.join(workspace, "deadly.nnc"), GRAPH);
    launches(workspace, { request: "launch", program: "deadly.nnc", opLibrary: ["deadly.py"], stopOnEntry: false });
    await open();
    await screen.openFile("deadly.nnc");
    await screen.click("deadly.Op");
    await screen.breakHere();
    await screen.start();
    await screen.stoppedAt("deadly.Op");
    await page.keyboard.press("F10");
    const toast = await screen.holdToast("nncdbg ended during");
    await screen.toast("inside deadly.Op at line 5").waitFor();
    await screen.picture("crashed");
    await screen.see(BREAKPOINT);
    await screen.expectHidden(STOPPED);
    await toast.locator(".monaco-button", { hasText: "Restart" }).click();
    await screen.stoppedAt("deadly.Op");
    await screen.stop();
  },

  async "without Python the message offers to select one"({ screen, open, settings }) {
    settings({ "nncdbg.python": "/nowhere/python" });
    await open();
    await screen.openFile("nan_softmax.nnc");
    await screen.click("Softmax");
    const toast = await screen.expectStartFailure("there is no Python at /nowhere/python");
    await screen.picture("no-python");
    await toast.locator(".monaco-button", { hasText: "Select Python" }).click();
    await screen.see('.tab:has-text("Settings")');
  },

  async "if the selected Python has no nncdbg, the message offers the extension's own"({ screen, workspace, open, settings, python }) {
    settings({ "nncdbg.python": environment(python, path.dirname(workspace), "") });
    await open();
    await screen.openFile("nan_softmax.nnc");
    await screen.click("Softmax");
    const toast = await screen.expectStartFailure("nncdbg is not installed for");
    await screen.picture("not-installed");
    assert.equal(await toast.locator(".monaco-button", { hasText: "Use nncdbg's Own Python" }).count(), 1);
  },

  async "another version of nncdbg is reported, and the session starts"({ screen, workspace, open, settings, python }) {
    const more = [...packages(python), "import nncdbg; nncdbg.__version__ = '9.9.9'"].join("\n");
    settings({ "nncdbg.python": environment(python, path.dirname(workspace), more) });
    await open();
    await screen.openFile("nan_softmax.nnc");
    const toast = screen.toast("nncdbg 9.9.9 is installed for");
    await toast.waitFor();
    // VS Code hides it after some seconds.
    assert.match(await toast.innerText(), /this extension needs 0\.\d/);
    await screen.picture("other-version");
    await screen.click("Softmax");
    await screen.start();
    await screen.stop();
  },
};
