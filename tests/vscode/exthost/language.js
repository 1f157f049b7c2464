// The language server in the editor.

const assert = require("node:assert/strict");
const vscode = require("vscode");
const { FIRST_STEPS, NAN, at, forget, settings, stopped, top, until } = require("../session");

exports.tests = {
  async "commands, language and debugger are registered"() {
    const extension = vscode.extensions.getExtension("nncdbg.nncdbg");
    await vscode.workspace.openTextDocument(FIRST_STEPS);
    await until(() => extension.isActive, "activation");
    const known = await vscode.commands.getCommands(true);
    const declared = extension.packageJSON.contributes.commands.map((each) => each.command);
    assert.deepEqual(declared.filter((each) => !known.includes(each)), []);
    assert.ok((await vscode.languages.getLanguages()).includes("nnc"));
  },

  async "the language server reports an error and the symbols of a file"() {
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
    forget();
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
};
