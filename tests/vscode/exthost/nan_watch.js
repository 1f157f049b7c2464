// A watched model: its findings as diagnostics, until the next run.

const assert = require("node:assert/strict");
const fs = require("node:fs");
const vscode = require("vscode");
const { LISTING, MODEL, NAN, at, lineOf, root, until } = require("../session");

const { Error: ERROR, Warning: WARNING } = vscode.DiagnosticSeverity;
const watch = (file) => vscode.commands.executeCommand("nncdbg.watchModel", vscode.Uri.file(file));
const found = (file) => vscode.languages.getDiagnostics(vscode.Uri.file(file)).filter((each) => each.source === "nncdbg watch");

exports.tests = {
  async "findings are diagnostics at their statements, and disappear with the next run"() {
    const file = at("watched.nnc");
    const text = fs.readFileSync(NAN, "utf8");
    fs.writeFileSync(file, text);
    await watch(file);
    const [first, second, ...rest] = found(file);
    assert.equal(first.range.start.line + 1, lineOf(NAN, "%logq"));
    assert.equal(first.severity, ERROR);
    assert.equal(first.code, "inf");
    assert.match(first.message, /^the first Inf is in %logq: Log.*\ncause: log of zero: .*\nhint: /);
    assert.match(first.relatedInformation[0].message, /called by @main/);
    assert.equal(second.severity, ERROR);
    assert.ok(rest.length);
    assert.deepEqual([...new Set(rest.map((each) => each.severity))], [WARNING]);
    assert.ok(rest.at(-1).relatedInformation.some((each) => /NaN is in %terms/.test(each.message)));
    fs.writeFileSync(file, text.replace("= Log(%q)", "= Neg(%q)"));
    await watch(file);
    assert.deepEqual(found(file), []);
  },

  async "findings of an .onnx are in its listing"() {
    const before = fs.readFileSync(MODEL);
    fs.copyFileSync(at("logarithm.bin"), MODEL);
    try {
      await watch(MODEL);
      const [first] = found(LISTING);
      assert.equal(first.range.start.line + 1, lineOf(LISTING, "%\"conv:0\""));
      assert.match(first.message, /Log/);
    } finally {
      fs.writeFileSync(MODEL, before);
      await watch(MODEL);
    }
    assert.deepEqual(found(LISTING), []);
  },

  async "a model that cannot be read has no diagnostics, and the command ends"() {
    await watch(at("junk.onnx"));
    assert.deepEqual(found(at("junk.onnx")), []);
  },

  async "the inputs of the launch configuration are watched"() {
    const settings = vscode.workspace.getConfiguration("launch");
    const inputs = { logits: "zeros" };
    const launch = { type: "nncdbg", request: "launch", name: "zeros", program: "${workspaceFolder}/nan_softmax.nnc", inputs };
    await settings.update("configurations", [launch], vscode.ConfigurationTarget.Workspace);
    try {
      await until(() => vscode.workspace.getConfiguration("launch").get("configurations").length, "the launch configuration");
      await watch(NAN);
      assert.deepEqual(found(NAN), []);
    } finally {
      await settings.update("configurations", undefined, vscode.ConfigurationTarget.Workspace);
      fs.rmSync(`${root}/.vscode/launch.json`, { force: true });
    }
  },
};
