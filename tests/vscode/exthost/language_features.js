// Each feature of the language server, requested through the editor.

const assert = require("node:assert/strict");
const fs = require("node:fs");
const vscode = require("vscode");
const { at, until } = require("../session");

const TEXT = `#nncdbg 1
opset 18

## The whole of it.
graph @main(%x: f32[2,3]) -> (%"odd name": f32[2,3]) {
  %a = Relu(%x)
  %"odd name": f32[2,3] = @layer(%a)
  return %"odd name"
}

graph @layer(%t: f32[2,3]) -> (%u: f32[2,3]) {
  %u: f32[2,3] = Add(%t, %t)
  return %u
}
`;

const execute = (command, ...more) => vscode.commands.executeCommand(`vscode.${command}`, ...more);

let count = 0;

/** Opens a text in the editor, and waits until the server has read it. */
async function shown(text = TEXT) {
  const path = at(`features ${(count += 1)}.nnc`);
  fs.writeFileSync(path, text);
  const uri = vscode.Uri.file(path);
  const editor = await vscode.window.showTextDocument(uri);
  await until(async () => (await execute("executeDocumentSymbolProvider", uri))?.length, "the outline");
  return { uri, editor, document: editor.document };
}

/** Returns the position after a piece of the text. */
function after(document, piece) {
  return document.positionAt(document.getText().indexOf(piece) + piece.length);
}

async function applied(document, edits) {
  const edit = new vscode.WorkspaceEdit();
  edit.set(document.uri, edits);
  assert.ok(await vscode.workspace.applyEdit(edit));
  return document.getText();
}

exports.tests = {
  async "an edit adds a diagnostic with its hint, and its quick fix removes it"() {
    const { uri, editor, document } = await shown();
    const place = after(document, "Relu(%x");
    assert.ok(await editor.edit((edit) => edit.insert(place, "q")));
    const [found] = await until(() => {
      const all = vscode.languages.getDiagnostics(uri);
      return all.length > 0 && all;
    }, "a diagnostic");
    assert.match(found.message, /%xq is not defined\ndid you mean %x/);
    assert.equal(found.severity, vscode.DiagnosticSeverity.Error);
    assert.equal(document.getText(found.range), "%xq");
    const actions = await execute("executeCodeActionProvider", uri, found.range);
    const fix = actions.find((each) => each.isPreferred && each.kind.value === "quickfix");
    assert.ok(await vscode.workspace.applyEdit(fix.edit));
    assert.equal(document.getText(), TEXT);
    await until(() => vscode.languages.getDiagnostics(uri).length === 0, "no diagnostic");
  },

  async "hover, definition, references, highlight"() {
    const { uri, document } = await shown();
    const [hover] = await execute("executeHoverProvider", uri, after(document, "= Rel"));
    assert.match(hover.contents[0].value, /Relu\(X: T\) -> \(Y: T\)/);
    const use = after(document, "@layer(%a");
    const [definition] = await execute("executeDefinitionProvider", uri, use);
    assert.equal(document.getText(definition.range), "%a");
    assert.equal((await execute("executeReferenceProvider", uri, use)).length, 2);
    assert.equal((await execute("executeDocumentHighlights", uri, use)).length, 2);
  },

  async "completion of values, of ops with their documentation, of attributes"() {
    const { uri, document } = await shown(TEXT.replace("Relu(%x)", "Softmax(%x, )"));
    const values = await execute("executeCompletionItemProvider", uri, after(document, "Softmax(%"));
    assert.deepEqual(values.items.filter((each) => each.label === "%x").map((each) => each.detail), ["f32[2,3]"]);
    const ops = await execute("executeCompletionItemProvider", uri, after(document, "%a = Sof"), undefined, 500);
    const softmax = ops.items.find((each) => each.label === "Softmax");
    assert.match(softmax.documentation.value, /normalized exponential/);
    assert.equal(softmax.insertText.value, "Softmax($0)");
    const attributes = await execute("executeCompletionItemProvider", uri, after(document, "Softmax(%x, "));
    assert.match(attributes.items.find((each) => each.label === "axis").detail, /-1/);
  },

  async "signature help marks the argument under the cursor"() {
    const { uri, document } = await shown();
    const help = await execute("executeSignatureHelpProvider", uri, after(document, "Add(%t, "), ",");
    const { label, parameters } = help.signatures[0];
    assert.equal(label, "Add(A: T, B: T) -> (C: T)");
    assert.equal(label.slice(...parameters[help.activeParameter].label), "B: T");
  },

  async "rename keeps quotes, and refuses a name that is taken"() {
    const { uri, document } = await shown();
    const place = after(document, '%"odd');
    const edit = await execute("executeDocumentRenameProvider", uri, place, "odder name");
    assert.ok(await vscode.workspace.applyEdit(edit));
    assert.equal(document.getText(), TEXT.replaceAll("odd name", "odder name"));
    await assert.rejects(execute("executeDocumentRenameProvider", uri, place, "x"), /%x/);
    const prepared = await execute("prepareRename", uri, place);
    assert.equal(document.getText(prepared.range), '"odder name"');
  },

  async "symbols of the document and of the workspace, folding, selection"() {
    const { uri, document } = await shown();
    const symbols = await execute("executeDocumentSymbolProvider", uri);
    assert.deepEqual(symbols.map((each) => each.name), ["@main", "@layer"]);
    const found = await execute("executeWorkspaceSymbolProvider", "layer");
    assert.ok(found.some((each) => each.location.uri.toString() === uri.toString()));
    const folds = await execute("executeFoldingRangeProvider", uri);
    assert.deepEqual(folds.map((each) => [each.start, each.end]), [[4, 7], [10, 12]]);
    const [selection] = await execute("executeSelectionRangeProvider", uri, [after(document, "Relu(%")]);
    assert.equal(document.getText(selection.range), "%x");
    assert.ok(selection.parent.range.contains(selection.range));
  },

  async "colours of the whole text and of a range"() {
    const { uri } = await shown();
    const legend = await execute("provideDocumentSemanticTokensLegend", uri);
    assert.ok(legend.tokenTypes.includes("function"));
    const whole = await execute("provideDocumentSemanticTokens", uri);
    const part = await execute("provideDocumentRangeSemanticTokens", uri, new vscode.Range(4, 0, 8, 0));
    assert.ok(part.data.length > 0 && part.data.length < whole.data.length);
  },

  async "an inlay hint is the omitted type, and its edit writes the type"() {
    const { uri, document } = await shown();
    const all = new vscode.Range(0, 0, document.lineCount, 0);
    const hints = await execute("executeInlayHintProvider", uri, all);
    assert.deepEqual(hints.map((each) => each.label), [" : f32[2,3]"]);
    const written = TEXT.replace("Relu(%x)", "Relu(%x) : f32[2,3]");
    assert.equal(await applied(document, hints[0].textEdits), written);
  },

  async "formatting is the canonical print"() {
    const { uri, document } = await shown(TEXT.replace("  %a = Relu(%x)", "%a   =  Relu( %x )"));
    const edits = await execute("executeFormatDocumentProvider", uri, { tabSize: 2, insertSpaces: true });
    assert.match(await applied(document, edits), /\n {2}%a = Relu\(%x\)\n/);
  },

  async "a layer is flattened, and statements are grouped into one"() {
    const { uri, document } = await shown();
    const call = after(document, "= @lay");
    const actions = await execute("executeCodeActionProvider", uri, new vscode.Range(call, call));
    const flatten = actions.find((each) => each.kind.value === "refactor.inline");
    assert.ok(await vscode.workspace.applyEdit(flatten.edit));
    assert.match(document.getText(), /%"odd name": f32\[2,3\] = Add\(%a, %a\)/);
    const lines = new vscode.Range(5, 0, 6, 5);
    const group = (await execute("executeCodeActionProvider", uri, lines)).find(
      (each) => each.kind.value === "refactor.extract",
    );
    assert.ok(await vscode.workspace.applyEdit(group.edit));
    assert.match(document.getText(), /= @layer\(%x\)/);
  },

  async "code lenses and call hierarchy"() {
    const { uri, document } = await shown();
    const lenses = await execute("executeCodeLensProvider", uri);
    const titles = lenses.map((each) => each.command.title);
    assert.deepEqual(titles, ["Debug graph", "3 statements", "inputs: x = random · change", "2 statements", "1 call"]);
    const { command, arguments: given } = lenses[4].command;
    await vscode.commands.executeCommand(command, ...given);
    const [item] = await execute("prepareCallHierarchy", uri, after(document, "graph @lay"));
    assert.equal(item.name, "@layer");
    const incoming = await execute("provideIncomingCalls", item);
    assert.deepEqual(incoming.map((each) => each.from.name), ["@main"]);
    const outgoing = await execute("provideOutgoingCalls", incoming[0].from);
    assert.deepEqual(outgoing.map((each) => [each.to.name, document.getText(each.fromRanges[0])]), [
      ["@layer", "@layer"],
    ]);
  },

  async "an existing store is a link"() {
    fs.writeFileSync(at("weights.safetensors"), "");
    const { uri, document } = await shown(TEXT.replace("opset 18", 'opset 18\nstore "weights.safetensors"'));
    const [link] = await execute("executeLinkProvider", uri);
    assert.match(document.getText(link.range), /weights\.safetensors/);
    assert.equal(link.target.fsPath, at("weights.safetensors"));
  },
};
