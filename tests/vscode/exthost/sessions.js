// Sessions that cannot start, that end in an error, and that attach to a program.

const assert = require("node:assert/strict");
const { spawn } = require("node:child_process");
const net = require("node:net");
const vscode = require("vscode");
const {
  FIRST_STEPS,
  NAN,
  at,
  breakAt,
  forget,
  lineOf,
  plan,
  root,
  settings,
  start,
  stopped,
  events,
  top,
  until,
} = require("../session");

exports.tests = {
  async "without Python no session starts, and with Python the next one does"() {
    await settings().update("python", at("nowhere/python"), vscode.ConfigurationTarget.Workspace);
    await until(() => settings().get("python").includes("nowhere"), "the setting");
    const configuration = { type: "nncdbg", request: "launch", name: "t", program: NAN };
    const began = await vscode.debug.startDebugging(vscode.workspace.workspaceFolders[0], configuration);
    assert.equal(began, false);
    assert.equal(vscode.debug.activeDebugSession, undefined);
    await settings().update("python", undefined, vscode.ConfigurationTarget.Workspace);
    await until(() => settings().get("python") === plan.python, "the setting as before");
    await start(NAN);
    await stopped("entry");
  },

  async "when the server dies the session ends, and breakpoints stay"() {
    breakAt(NAN, lineOf(NAN, "%probs ="));
    await start(NAN);
    await stopped("entry");
    const { body } = events.findLast((each) => each.event === "process");
    process.kill(body.systemProcessId, "SIGKILL");
    await until(() => !vscode.debug.activeDebugSession, "the end of the session");
    assert.equal(vscode.debug.breakpoints.length, 1);
    await start(NAN, { stopOnEntry: false });
    await stopped("breakpoint");
  },

  async "attaching to a server of another protocol or to a closed port ends the session"() {
    const server = net.createServer((socket) => socket.end("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"));
    await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
    const { port } = server.address();
    const configuration = { type: "nncdbg", request: "attach", name: "a", connect: { host: "127.0.0.1", port } };
    let begun = 0;
    const begin = () => vscode.debug.startDebugging(vscode.workspace.workspaceFolders[0], configuration).then(() => begun++, () => begun++);
    void begin();
    await until(() => begun === 1 && !vscode.debug.activeDebugSession, "the end of the first", 15_000);
    server.close();
    void begin();
    await until(() => begun === 2 && !vscode.debug.activeDebugSession, "the end of the second", 15_000);
    await start(NAN);
    await stopped("entry");
  },

  async "a session attaches to a listening Python program"() {
    breakAt(FIRST_STEPS, lineOf(FIRST_STEPS, "%scores ="));
    const child = spawn(plan.python, [at("listening.py")], { cwd: root, stdio: ["ignore", "pipe", "inherit"] });
    try {
      const [port] = await new Promise((resolve) => child.stdout.once("data", (data) => resolve(/\d+/.exec(data))));
      forget();
      const connect = { host: "127.0.0.1", port: Number(port) };
      const configuration = { type: "nncdbg", request: "attach", name: "a", connect };
      assert.equal(await vscode.debug.startDebugging(vscode.workspace.workspaceFolders[0], configuration), true);
      await stopped("breakpoint");
      assert.equal((await top()).line, lineOf(FIRST_STEPS, "%scores ="));
    } finally {
      child.kill();
    }
  },
};
