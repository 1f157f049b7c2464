// Shared by the tests in the extension host: the files of the workspace, and the current session.

const assert = require("node:assert/strict");
const fs = require("node:fs");
const path = require("node:path");
const vscode = require("vscode");

const root = vscode.workspace.workspaceFolders[0].uri.fsPath;
const plan = JSON.parse(fs.readFileSync(path.join(root, ".vscode", "tests.json"), "utf8"));
const at = (name) => path.join(root, name);
const FIRST_STEPS = at("first_steps.nnc");
const NAN = at("nan_softmax.nnc");
const MODEL = at("model.onnx");
const LISTING = at(path.join(".nncdbg", "model.nnc"));

/** Timeout in ms, enough for a busy machine. */
const LONG = 60_000;


const events = [];
let unseen = 0;
vscode.debug.registerDebugAdapterTrackerFactory("nncdbg", {
  createDebugAdapterTracker: () => ({ onDidSendMessage: (message) => events.push(message) }),
});

async function until(found, what, limit = LONG) {
  for (const end = Date.now() + limit; Date.now() < end; ) {
    const value = await found();
    if (value) {
      return value;
    }
    await new Promise((resolve) => setTimeout(resolve, 25));
  }
  throw new Error(`not within ${limit} ms: ${what}`);
}

/** Waits for the next unseen `stopped` event. */
async function stopped(reason) {
  const index = await until(() => {
    const found = events.findIndex((each, number) => number >= unseen && each.event === "stopped");
    return found >= 0 && found + 1;
  }, `stopped (${reason})`);
  unseen = index;
  assert.equal(events[index - 1].body.reason, reason);
  await until(() => vscode.debug.activeStackItem instanceof vscode.DebugStackFrame, "a focused frame");
}

/** Ignores all events so far. */
function forget() {
  unseen = events.length;
}

async function start(program, more = {}) {
  forget();
  const configuration = { type: "nncdbg", request: "launch", name: "t", program, stopOnEntry: true, ...more };
  assert.equal(await vscode.debug.startDebugging(vscode.workspace.workspaceFolders[0], configuration), true);
  return until(() => vscode.debug.activeDebugSession, "a session");
}

/** Records the extension's own requests of a command from now on, and their answers. */
async function listen(command) {
  const { onDidSendRequest } = await vscode.extensions.getExtension("nncdbg.nncdbg").activate();
  const requested = [];
  const answered = [];
  const listener = onDidSendRequest((exchange) => {
    if (exchange.command === command) {
      requested.push(exchange.arguments);
      exchange.body.then((body) => answered.push(body), () => undefined);
    }
  });
  return { requested, answered, dispose: () => listener.dispose() };
}

const request = (command, argument = {}) => vscode.debug.activeDebugSession.customRequest(command, { threadId: 1, ...argument });

async function top() {
  return (await request("stackTrace")).stackFrames[0];
}

async function move(command, reason = "step") {
  forget();
  await vscode.commands.executeCommand(command);
  await stopped(reason);
  return (await top()).line;
}

function lineOf(file, text) {
  const found = fs.readFileSync(file, "utf8").split("\n").findIndex((line) => line.trimStart().startsWith(text));
  assert.ok(found >= 0, `${text} is not in ${file}`);
  return found + 1;
}

function breakAt(file, line, ...more) {
  const place = new vscode.Location(vscode.Uri.file(file), new vscode.Position(line - 1, 0));
  vscode.debug.addBreakpoints([new vscode.SourceBreakpoint(place, true, ...more)]);
}

async function variable(scope, name) {
  const { scopes } = await request("scopes", { frameId: (await top()).id });
  const { variablesReference } = scopes.find((each) => each.name === scope);
  const { variables } = await request("variables", { variablesReference });
  return variables.find((each) => each.name === name);
}

/** Returns the inline values by line: of the whole file, or of lines `first` to `last`, counted from 0. */
async function inlineValues(file, stoppedAt, first = 0, last = undefined) {
  const { id } = await top();
  const document = await vscode.workspace.openTextDocument(file);
  const view = new vscode.Range(first, 0, last ?? document.lineCount - 1, 0);
  const context = { frameId: id, stoppedLocation: document.lineAt(stoppedAt - 1).range };
  const values = await vscode.commands.executeCommand("vscode.executeInlineValueProvider", document.uri, view, context);
  return new Map(values.map((each) => [each.range.start.line + 1, each.text]));
}

async function endSession() {
  vscode.debug.removeBreakpoints(vscode.debug.breakpoints);
  await vscode.debug.stopDebugging();
  await until(() => !vscode.debug.activeDebugSession, "the end of the session");
  await vscode.commands.executeCommand("workbench.action.closeAllEditors");
}

const settings = () => vscode.workspace.getConfiguration("nncdbg");

module.exports = {
  FIRST_STEPS,
  LISTING,
  MODEL,
  NAN,
  request,
  at,
  breakAt,
  forget,
  inlineValues,
  lineOf,
  listen,
  move,
  endSession,
  plan,
  root,
  settings,
  start,
  stopped,
  events,
  top,
  until,
  variable,
};
