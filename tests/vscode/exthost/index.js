// Tests that run inside the extension host of a real VS Code.  One after the other, each with no session left over.

const assert = require("node:assert/strict");
const { spawn } = require("node:child_process");
const fs = require("node:fs");
const path = require("node:path");
const vscode = require("vscode");

const root = vscode.workspace.workspaceFolders[0].uri.fsPath;
const { python, result } = JSON.parse(fs.readFileSync(path.join(root, ".vscode", "tests.json"), "utf8"));
const at = (name) => path.join(root, name);
const FIRST_STEPS = at("first_steps.nnc");
const NAN = at("nan_softmax.nnc");
const MODEL = at("model.onnx");
const LISTING = at(path.join(".nncdbg", "model.nnc"));

const LONG = 20_000;

// -- what the tests share ------------------------------------------------------------------------

const told = [];
let unseen = 0;
vscode.debug.registerDebugAdapterTrackerFactory("nncdbg", {
  createDebugAdapterTracker: () => ({ onDidSendMessage: (message) => told.push(message) }),
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

/** The next `stopped` event that no test has seen yet. */
async function stopped(reason) {
  const index = await until(() => {
    const found = told.findIndex((each, number) => number >= unseen && each.event === "stopped");
    return found >= 0 && found + 1;
  }, `stopped (${reason})`);
  unseen = index;
  assert.equal(told[index - 1].body.reason, reason);
  await until(() => vscode.debug.activeStackItem instanceof vscode.DebugStackFrame, "a focused frame");
}

async function start(program, more = {}) {
  unseen = told.length;
  const configuration = { type: "nncdbg", request: "launch", name: "t", program, stopOnEntry: true, ...more };
  assert.equal(await vscode.debug.startDebugging(vscode.workspace.workspaceFolders[0], configuration), true);
  return until(() => vscode.debug.activeDebugSession, "a session");
}

const ask = (command, argument = {}) => vscode.debug.activeDebugSession.customRequest(command, { threadId: 1, ...argument });

async function top() {
  return (await ask("stackTrace")).stackFrames[0];
}

async function move(command, reason = "step") {
  unseen = told.length;
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
  const { scopes } = await ask("scopes", { frameId: (await top()).id });
  const { variablesReference } = scopes.find((each) => each.name === scope);
  const { variables } = await ask("variables", { variablesReference });
  return variables.find((each) => each.name === name);
}

async function inlineValues(file, stoppedAt) {
  const { id } = await top();
  const document = await vscode.workspace.openTextDocument(file);
  const whole = new vscode.Range(0, 0, document.lineCount - 1, 0);
  const context = { frameId: id, stoppedLocation: document.lineAt(stoppedAt - 1).range };
  const values = await vscode.commands.executeCommand("vscode.executeInlineValueProvider", document.uri, whole, context);
  return new Map(values.map((each) => [each.range.start.line + 1, each.text]));
}

async function over() {
  vscode.debug.removeBreakpoints(vscode.debug.breakpoints);
  await vscode.debug.stopDebugging();
  await until(() => !vscode.debug.activeDebugSession, "the end of the session");
  await vscode.commands.executeCommand("workbench.action.closeAllEditors");
}

const settings = () => vscode.workspace.getConfiguration("nncdbg");

// -- the tests -----------------------------------------------------------------------------------

const tests = {
  async "commands, language and debugger are known"() {
    const extension = vscode.extensions.getExtension("nncdbg.nncdbg");
    await vscode.workspace.openTextDocument(FIRST_STEPS);
    await until(() => extension.isActive, "activation");
    const known = await vscode.commands.getCommands(true);
    const declared = extension.packageJSON.contributes.commands.map((each) => each.command);
    assert.deepEqual(declared.filter((each) => !known.includes(each)), []);
    assert.ok((await vscode.languages.getLanguages()).includes("nnc"));
  },

  async "a launch stops before the first statement"() {
    await start(FIRST_STEPS);
    await stopped("entry");
    const frame = await top();
    assert.equal(frame.line, lineOf(FIRST_STEPS, "%h:"));
    assert.equal(frame.source.name, "first_steps.nnc");
    await until(() => vscode.window.activeTextEditor?.document.uri.fsPath === FIRST_STEPS, "the text is shown");
  },

  async "a breakpoint is hit, and one with a condition in the iteration where it holds"() {
    breakAt(FIRST_STEPS, lineOf(FIRST_STEPS, "%best:"), "$iter == 2");
    await start(FIRST_STEPS, { stopOnEntry: false });
    await stopped("breakpoint");
    assert.equal((await top()).line, lineOf(FIRST_STEPS, "%best:"));
    assert.equal((await ask("evaluate", { expression: "$iter" })).result, "2");
  },

  async "step over, into and out, and back"() {
    await start(FIRST_STEPS);
    await stopped("entry");
    assert.equal(await move("workbench.action.debug.stepInto"), lineOf(FIRST_STEPS, "%mean:"));
    assert.equal(await move("workbench.action.debug.stepOut"), lineOf(FIRST_STEPS, "%scores:"));
    assert.equal(await move("workbench.action.debug.stepOver"), lineOf(FIRST_STEPS, "while"));
    assert.equal(await move("workbench.action.debug.stepBack"), lineOf(FIRST_STEPS, "%scores:"));
    assert.equal(await variable("Values", "%scores"), undefined);
  },

  async "reverse continue goes to the breakpoint before"() {
    breakAt(FIRST_STEPS, lineOf(FIRST_STEPS, "%best:"));
    await start(FIRST_STEPS, { stopOnEntry: false });
    await stopped("breakpoint");
    await move("workbench.action.debug.continue", "breakpoint");
    assert.equal((await ask("evaluate", { expression: "$iter" })).result, "1");
    await move("workbench.action.debug.reverseContinue", "breakpoint");
    assert.equal((await ask("evaluate", { expression: "$iter" })).result, "0");
  },

  async "the buttons of the toolbar step back into a layer, and out of it"() {
    await start(FIRST_STEPS);
    await stopped("entry");
    await move("workbench.action.debug.stepOver");
    assert.equal(await move("nncdbg.reverseStepInto"), lineOf(FIRST_STEPS, "return %out"));
    // There the program begins.
    assert.equal(await move("nncdbg.reverseStepOut", "entry"), lineOf(FIRST_STEPS, "%h:"));
  },

  async "an expression is evaluated, in the console and on a hover"() {
    await start(FIRST_STEPS);
    await stopped("entry");
    await move("workbench.action.debug.stepOver");
    const frameId = (await top()).id;
    assert.equal((await ask("evaluate", { expression: "size(%h)", context: "repl", frameId })).result, "8");
    const hover = await ask("evaluate", { expression: "%h", context: "hover", frameId });
    assert.match(hover.result, /^f32\[2,4\] \[\[/);
  },

  async "lines end in the values that they have given"() {
    await start(FIRST_STEPS);
    await stopped("entry");
    await move("workbench.action.debug.stepOver");
    const shown = await inlineValues(FIRST_STEPS, await move("workbench.action.debug.stepOver"));
    const scores = (await variable("Outputs", "%scores")).value;
    assert.equal(`f32[2,3] ${shown.get(lineOf(FIRST_STEPS, "%scores:"))}`, scores);
    assert.ok(shown.has(lineOf(FIRST_STEPS, "graph @main")));
    assert.ok(!shown.has(lineOf(FIRST_STEPS, "%probs:")));
  },

  async "all lines in view are told in one request"() {
    const asked = [];
    const watcher = vscode.debug.registerDebugAdapterTrackerFactory("nncdbg", {
      createDebugAdapterTracker: () => ({ onWillReceiveMessage: ({ command }) => asked.push(command) }),
    });
    await start(FIRST_STEPS, { stopOnEntry: true });
    await stopped("entry");
    watcher.dispose();
    const count = () => asked.filter((each) => each === "nncdbg/lines").length;
    await until(count, "the editor asks for the lines");
    await new Promise((resolve) => setTimeout(resolve, 2000));
    const before = count();
    await inlineValues(FIRST_STEPS, 10);
    assert.equal(count(), before + 1);
  },

  async "a value is edited, and what depends on it is computed again"() {
    await start(FIRST_STEPS);
    await stopped("entry");
    await move("workbench.action.debug.stepOver");
    const frameId = (await top()).id;
    await ask("setExpression", { expression: "%h", value: "0", frameId });
    await move("workbench.action.debug.stepOver");
    assert.equal((await ask("evaluate", { expression: "max(abs(%scores))", frameId: (await top()).id })).result, "0.0");
  },

  async "a NaN is caught where it is born"() {
    await start(NAN);
    await stopped("entry");
    await ask("setExceptionBreakpoints", { filters: ["nan"] });
    assert.equal(await move("workbench.action.debug.continue", "exception"), lineOf(NAN, "%terms:"));
  },

  async "Break When NaN stops where the value becomes NaN"() {
    await start(NAN);
    await stopped("entry");
    const context = { variable: { name: "%terms", evaluateName: "%terms" } };
    await vscode.commands.executeCommand("nncdbg.breakWhenNaN", context);
    await ask("setExceptionBreakpoints", { filters: [] });
    assert.equal(await move("workbench.action.debug.continue", "data breakpoint"), lineOf(NAN, "%terms:"));
  },

  async "Why Is It So? opens the statements that a value comes from"() {
    await start(FIRST_STEPS);
    await stopped("entry");
    await move("workbench.action.debug.stepOver");
    await vscode.commands.executeCommand("nncdbg.why", { variable: { name: "%h", evaluateName: "%h" } });
    const shown = await until(
      () => vscode.workspace.textDocuments.find((each) => each.uri.scheme === "nncdbg-answer"),
      "the answer",
    );
    assert.match(shown.getText(), /Relu\(%centred\)/);
    assert.doesNotMatch(shown.getText(), /\u001b/);
  },

  async "an .onnx opens as its listing, and a breakpoint there binds"() {
    await vscode.commands.executeCommand("vscode.open", vscode.Uri.file(MODEL));
    await until(() => vscode.window.activeTextEditor?.document.uri.fsPath === LISTING, "the listing is shown");
    const document = vscode.window.activeTextEditor.document;
    assert.equal(document.languageId, "nnc");
    assert.match(document.getText(), /%"conv:0".* = Relu\(%x\)/);
    const tabs = () => vscode.window.tabGroups.all.flatMap((group) => group.tabs).map((tab) => tab.label);
    await until(() => tabs().join() === "model.nnc", "the tab of the model gives way");
    const line = lineOf(LISTING, '%"sum + 1"');
    breakAt(LISTING, line);
    unseen = told.length;
    await vscode.commands.executeCommand("workbench.action.debug.start");
    await stopped("entry");
    assert.match(vscode.debug.activeDebugSession.configuration.program, /model\.onnx$/);
    assert.equal(await move("workbench.action.debug.continue", "breakpoint"), line);
    const hover = await ask("evaluate", { expression: '%"conv:0"', context: "hover", frameId: (await top()).id });
    assert.match(hover.result, /^f32\[2\] \[/);
    assert.match((await inlineValues(LISTING, line)).get(line - 1), /^\[/);
  },

  async "a listing follows its model"() {
    await vscode.commands.executeCommand("vscode.open", vscode.Uri.file(MODEL));
    await until(() => vscode.window.activeTextEditor?.document.uri.fsPath === LISTING, "the listing is shown");
    const document = vscode.window.activeTextEditor.document;
    assert.doesNotMatch(document.getText(), /Tanh/);
    const before = fs.readFileSync(MODEL);
    fs.copyFileSync(at("changed.bin"), MODEL);
    await until(() => document.getText().includes("Tanh"), "the text of the changed model");
    fs.writeFileSync(MODEL, before);
    await until(() => !document.getText().includes("Tanh"), "the text of the first model");
  },

  async "a model that cannot be read says so where it would be shown"() {
    await vscode.commands.executeCommand("vscode.open", vscode.Uri.file(at("junk.onnx")));
    const tab = await until(() => vscode.window.tabGroups.activeTabGroup.activeTab, "a tab");
    await new Promise((resolve) => setTimeout(resolve, 3000));
    assert.equal(vscode.window.tabGroups.activeTabGroup.activeTab.label, "junk.onnx");
    assert.equal(tab.input.viewType, "nncdbg.model");
  },

  async "F5 without launch.json debugs the text that is open"() {
    await vscode.window.showTextDocument(vscode.Uri.file(NAN));
    unseen = told.length;
    await vscode.commands.executeCommand("workbench.action.debug.start");
    await stopped("entry");
    assert.equal(vscode.debug.activeDebugSession.configuration.program, NAN);
  },

  async "the language server finds an error, and knows what a file has"() {
    const uri = vscode.Uri.file(at("broken.nnc"));
    await vscode.window.showTextDocument(uri);
    const [found] = await until(() => {
      const all = vscode.languages.getDiagnostics(uri);
      return all.length > 0 && all;
    }, "a diagnostic");
    assert.match(found.message, /%nothing/);
    assert.equal(found.range.start.line, 4);
    const symbols = await vscode.commands.executeCommand("vscode.executeDocumentSymbolProvider", uri);
    assert.match(symbols[0].name, /main/);
  },

  async "the code lens of the language server debugs its graph"() {
    const uri = vscode.Uri.file(NAN);
    await vscode.window.showTextDocument(uri);
    const lens = await until(async () => {
      const all = await vscode.commands.executeCommand("vscode.executeCodeLensProvider", uri);
      return all.find((each) => each.command?.command === "nncdbg.debugGraph");
    }, "a code lens");
    unseen = told.length;
    await vscode.commands.executeCommand(lens.command.command, ...lens.command.arguments);
    await stopped("entry");
    assert.equal((await top()).source.name, "nan_softmax.nnc");
  },

  async "the language server starts again with another Python"() {
    const uri = vscode.Uri.file(at("broken.nnc"));
    await vscode.window.showTextDocument(uri);
    await until(() => vscode.languages.getDiagnostics(uri).length > 0, "a diagnostic");
    await settings().update("python", at("nowhere/python"), vscode.ConfigurationTarget.Workspace);
    await until(() => vscode.languages.getDiagnostics(uri).length === 0, "no language server, no diagnostics");
    await settings().update("python", undefined, vscode.ConfigurationTarget.Workspace);
    await until(() => vscode.languages.getDiagnostics(uri).length > 0, "a diagnostic again");
  },

  async "without Python no session begins, and the next one does"() {
    await settings().update("python", at("nowhere/python"), vscode.ConfigurationTarget.Workspace);
    await until(() => settings().get("python").includes("nowhere"), "the setting");
    const configuration = { type: "nncdbg", request: "launch", name: "t", program: NAN };
    const began = await vscode.debug.startDebugging(vscode.workspace.workspaceFolders[0], configuration);
    assert.equal(began, false);
    assert.equal(vscode.debug.activeDebugSession, undefined);
    await settings().update("python", undefined, vscode.ConfigurationTarget.Workspace);
    await until(() => settings().get("python") === python, "the setting as before");
    await start(NAN);
    await stopped("entry");
  },

  async "when the server dies the session ends, and breakpoints stay"() {
    breakAt(NAN, lineOf(NAN, "%loss:"));
    await start(NAN);
    await stopped("entry");
    const { body } = told.findLast((each) => each.event === "process");
    process.kill(body.systemProcessId, "SIGKILL");
    await until(() => !vscode.debug.activeDebugSession, "the end of the session");
    assert.equal(vscode.debug.breakpoints.length, 1);
    await start(NAN, { stopOnEntry: false });
    await stopped("breakpoint");
  },

  async "a Python program that listens is attached to"() {
    breakAt(FIRST_STEPS, lineOf(FIRST_STEPS, "%scores:"));
    const child = spawn(python, [at("listening.py")], { cwd: root, stdio: ["ignore", "pipe", "inherit"] });
    try {
      const [port] = await new Promise((resolve) => child.stdout.once("data", (data) => resolve(/\d+/.exec(data))));
      unseen = told.length;
      const connect = { host: "127.0.0.1", port: Number(port) };
      const configuration = { type: "nncdbg", request: "attach", name: "a", connect };
      assert.equal(await vscode.debug.startDebugging(vscode.workspace.workspaceFolders[0], configuration), true);
      await stopped("breakpoint");
      assert.equal((await top()).line, lineOf(FIRST_STEPS, "%scores:"));
    } finally {
      child.kill();
    }
  },
};

// ------------------------------------------------------------------------------------------------

exports.run = async () => {
  const results = [];
  for (const [name, test] of Object.entries(tests)) {
    const began = Date.now();
    let error;
    try {
      await test();
    } catch (caught) {
      error = caught.stack;
    }
    try {
      await over();
    } catch (caught) {
      error ??= caught.stack;
    }
    results.push({ name, milliseconds: Date.now() - began, error });
    fs.writeFileSync(`${result}.part`, JSON.stringify(results, null, 1));
  }
  fs.renameSync(`${result}.part`, result);
};
