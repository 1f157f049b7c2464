// A model opens as its listing, which is updated with the model; F5 needs no launch.json.

const assert = require("node:assert/strict");
const fs = require("node:fs");
const vscode = require("vscode");
const {
  LISTING,
  MODEL,
  NAN,
  request,
  at,
  breakAt,
  forget,
  inlineValues,
  lineOf,
  move,
  root,
  start,
  stopped,
  top,
  until,
} = require("../session");

exports.tests = {
  async "an .onnx opens as its listing, and a breakpoint there binds"() {
    await vscode.commands.executeCommand("vscode.open", vscode.Uri.file(MODEL));
    await until(() => vscode.window.activeTextEditor?.document.uri.fsPath === LISTING, "the listing is shown");
    const document = vscode.window.activeTextEditor.document;
    assert.equal(document.languageId, "nnc");
    assert.match(document.getText(), /%"conv:0".* = Relu\(%x\)/);
    const tabs = () => vscode.window.tabGroups.all.flatMap((group) => group.tabs).map((tab) => tab.label);
    await until(() => tabs().join() === "model.nnc", "the tab of the model is replaced");
    const line = lineOf(LISTING, '%"sum + 1"');
    breakAt(LISTING, line);
    forget();
    await vscode.commands.executeCommand("workbench.action.debug.start");
    await stopped("entry");
    assert.match(vscode.debug.activeDebugSession.configuration.program, /model\.onnx$/);
    assert.equal(await move("workbench.action.debug.continue", "breakpoint"), line);
    const hover = await request("evaluate", { expression: '%"conv:0"', context: "hover", frameId: (await top()).id });
    assert.match(hover.result, /^f32\[2\] \[/);
    assert.match((await inlineValues(LISTING, line)).get(line - 1), /^\[/);
  },

  async "a listing is updated with its model"() {
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

  async "the listing of a model that changes during a session is updated after the session"() {
    await vscode.commands.executeCommand("vscode.open", vscode.Uri.file(MODEL));
    await until(() => vscode.window.activeTextEditor?.document.uri.fsPath === LISTING, "the listing is shown");
    const document = vscode.window.activeTextEditor.document;
    await start(MODEL);
    await stopped("entry");
    const before = fs.readFileSync(MODEL);
    const watcher = vscode.workspace.createFileSystemWatcher(new vscode.RelativePattern(root, "model.onnx"));
    const changed = new Promise((resolve) => watcher.onDidChange(resolve));
    fs.copyFileSync(at("changed.bin"), MODEL);
    await changed;
    watcher.dispose();
    assert.doesNotMatch(document.getText(), /Tanh/);
    await vscode.debug.stopDebugging();
    await until(() => document.getText().includes("Tanh"), "the text of the changed model");
    fs.writeFileSync(MODEL, before);
    await until(() => !document.getText().includes("Tanh"), "the text of the first model");
  },

  async "F5 without launch.json debugs the open text"() {
    await vscode.window.showTextDocument(vscode.Uri.file(NAN));
    forget();
    await vscode.commands.executeCommand("workbench.action.debug.start");
    await stopped("entry");
    assert.equal(vscode.debug.activeDebugSession.configuration.program, NAN);
  },
};
