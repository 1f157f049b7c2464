// Python + nncdbg: a Python program under debugpy and its graphs, started, stopped and ended together.

import assert from "node:assert/strict";
import fs from "node:fs";
import net from "node:net";
import path from "node:path";
import { STARTING, freePort, launches } from "../screen.mjs";

const DIALOG = ".monaco-dialog-box";

const program = (port) => `import nncdbg

loaded = nncdbg.load("first_steps.nnc")
nncdbg.listen(("127.0.0.1", ${port}))
nncdbg.wait_for_client()
dbg = nncdbg.Debugger(loaded)
dbg.run()
result = "finished"
print("the program has ended")
`;

/** Writes the program and one launch configuration for both sessions, and returns the port. */
async function compound(workspace, script = program, port = undefined) {
  port ??= await freePort();
  fs.writeFileSync(path.join(workspace, "both.py"), script(port));
  launches(workspace, {
    request: "attach",
    debugpy: { program: "${workspaceFolder}/both.py", cwd: "${workspaceFolder}" },
    connect: { host: "127.0.0.1", port },
  });
  return port;
}

const sessions = async (page, screen) => (await screen.texts(screen.rows("debug-call-stack"))).join(" | ");

export const tests = {
  async "both sessions start with one key, stop at their breakpoints, continue, and end together"({ page, screen, workspace, open }) {
    await compound(workspace);
    await open("debugpy");
    await screen.openFile("first_steps.nnc");
    await screen.breakIn("both.py", "dbg = ");
    await screen.breakIn("both.py", "result = ");
    await screen.pressUntil("F5", STARTING, "the start of the sessions");
    await screen.stoppedAt("dbg = ");
    await screen.picture("python-stopped");
    // The server of the graphs answers while Python is stopped.
    await screen.breakIn("first_steps.nnc", "%scores");
    await screen.row("debug-breakpoints", /first_steps\.nnc/);
    await screen.continueTo("%scores");
    await screen.picture("graph-stopped");
    // VS Code drops the key until the session of the graphs has the focus.
    await screen.pressUntil("F10", '.view-line:has-text("%scores"):has-text("MatMul"):has-text("[[")', "a step of the graph");
    assert.match(await sessions(page, screen), /the one.*the one: Python/);
    await screen.continueTo("result = ");
    await screen.stop();
  },

  async "the end of the graphs' session ends the program"({ page, screen, workspace, open }) {
    await compound(workspace, (port) => `${program(port)}import time\ntime.sleep(600)\n`);
    await open("debugpy");
    await screen.openFile("first_steps.nnc");
    await screen.breakIn("first_steps.nnc", "%scores");
    await screen.pressUntil("F5", STARTING, "the start of the sessions");
    await screen.stoppedAt("%scores");
    await screen.stop();
  },

  async "the session waits for a slow program to listen; a restart restarts the graph and keeps the program"({ page, screen, workspace, open }) {
    const slow = (port) => program(port).replace("loaded = ", "import time\ntime.sleep(15)\nloaded = ");
    await compound(workspace, slow);
    await open("debugpy");
    await screen.openFile("first_steps.nnc");
    await screen.breakIn("first_steps.nnc", "%scores");
    await screen.pressUntil("F5", STARTING, "the start of the sessions");
    await screen.stoppedAt("%scores");
    const computed = '.view-line:has-text("%scores"):has-text("MatMul"):has-text("[[")';
    await screen.pressUntil("F10", computed, "a step of the graph");
    await page.locator('.debug-toolbar [aria-label^="Restart"]').click();
    await screen.stoppedAt("%h = ");
    await screen.continueTo("%scores");
    assert.equal(await screen.rows("debug-call-stack", { hasText: "the one: Python" }).count(), 1);
    await screen.stop();
  },

  async "a program that ends before it listens ends the wait with a message"({ page, screen, workspace, open }) {
    await compound(workspace, () => 'print("nothing to debug")\n');
    await open("debugpy");
    await screen.openFile("first_steps.nnc");
    await screen.pressUntil("F5", `${STARTING}, ${DIALOG}`, "the start of the session");
    const dialog = page.locator(DIALOG, { hasText: "ended before it listened" });
    await dialog.waitFor();
    await screen.picture("python-ended-early");
    assert.match(await dialog.innerText(), /check its terminal/);
    await page.keyboard.press("Escape");
    await screen.expectHidden(".debug-toolbar");
  },

  async "a port in use is reported, and the program is not started"({ page, screen, workspace, open }) {
    const server = net.createServer().listen(0, "127.0.0.1");
    await new Promise((resolve) => server.once("listening", resolve));
    try {
      const { port } = server.address();
      await compound(workspace, () => 'open("started", "w")\n', port);
      await open("debugpy");
      await screen.openFile("first_steps.nnc");
      await screen.pressUntil("F5", `${STARTING}, ${DIALOG}`, "the start of the session");
      await page.locator(DIALOG, { hasText: `another program is already listening on 127.0.0.1:${port}` }).waitFor();
      await page.keyboard.press("Escape");
      assert.equal(fs.existsSync(path.join(workspace, "started")), false);
    } finally {
      server.close();
    }
  },

  async "without a debugger for Python the message names the extension"({ screen, workspace, open }) {
    await compound(workspace);
    await open();
    await screen.openFile("first_steps.nnc");
    const toast = await screen.expectStartFailure("cannot start");
    await screen.picture("no-debugpy");
    assert.match(await toast.innerText(), /install or enable the Python Debugger extension \(ms-python\.debugpy\)/);
    assert.equal(await toast.locator(".monaco-button", { hasText: "Show Extension" }).count(), 1);
  },
};
