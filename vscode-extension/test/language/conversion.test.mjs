// Records of the language protocol as records of the editor, and back.

import assert from "node:assert/strict";
import { test } from "node:test";
import { bundled } from "../bundled.mjs";
import { editor } from "../editor.mjs";

const convert = await bundled("language/conversion");

const range = { start: { line: 2, character: 4 }, end: { line: 2, character: 9 } };
const uri = "file:///w/m.nnc";

test("a range has the same lines and characters on both sides", () => {
  assert.deepEqual(convert.protocolRange(convert.editorRange(range)), range);
});

test("severities and kinds count from 0 in the editor", () => {
  const diagnostic = convert.editorDiagnostic({ range, message: "unknown op", severity: 2, code: "op", source: "nncdbg" });
  assert.deepEqual([diagnostic.severity, diagnostic.code], [editor.DiagnosticSeverity.Warning, "op"]);
  assert.deepEqual(convert.protocolDiagnostic(diagnostic), { range, message: "unknown op", source: "nncdbg", code: "op", severity: 2 });
  assert.equal(convert.editorSymbol({ name: "@main", kind: 12, range, selectionRange: range }).kind, 11);
});

test("a diagnostic without a severity is an error, without a code it has none", () => {
  const diagnostic = convert.editorDiagnostic({ range, message: "unknown op" });
  assert.equal(diagnostic.severity, editor.DiagnosticSeverity.Error);
  assert.ok(!("code" in diagnostic));
});

test("the related information of a diagnostic has its location", () => {
  const diagnostic = convert.editorDiagnostic({ range, message: "defined twice", relatedInformation: [{ location: { uri, range }, message: "first" }] });
  const [{ location, message }] = diagnostic.relatedInformation;
  assert.deepEqual([location.uri.toString(), location.range.start.line, message], [uri, 2, "first"]);
});

test("a snippet is inserted as one, other texts as they are", () => {
  const completion = (insertTextFormat) => new convert.CompletionItem({ label: "Conv", kind: 3, insertTextFormat, textEdit: { range, newText: "Conv($1)" } });
  assert.ok(completion(2).insertText instanceof editor.SnippetString);
  assert.equal(completion(1).insertText, "Conv($1)");
  assert.equal(completion(1).kind, 2);
});

test("the edits of a rename are kept by document", () => {
  const change = { textDocument: { uri }, edits: [{ range, newText: "%y" }] };
  const { edits } = convert.editorWorkspaceEdit({ changes: { "file:///w/other.nnc": [] }, documentChanges: [change, { kind: "create", uri }] });
  assert.deepEqual([...edits.keys()], ["file:///w/other.nnc", uri]);
  assert.equal(edits.get(uri)[0].newText, "%y");
});

test("tokens are whole, or edits of the last ones", () => {
  const whole = convert.editorTokenEdits({ resultId: "2", data: [0, 1, 2, 3, 4] });
  assert.deepEqual([whole.data, whole.resultId], [new Uint32Array([0, 1, 2, 3, 4]), "2"]);
  const { edits, resultId } = convert.editorTokenEdits({ resultId: "3", edits: [{ start: 5, deleteCount: 5 }, { start: 10, deleteCount: 0, data: [9] }] });
  assert.equal(resultId, "3");
  assert.deepEqual(edits.map(({ start, deleteCount, data }) => [start, deleteCount, data]), [[5, 5, undefined], [10, 0, new Uint32Array([9])]]);
});

test("a call keeps the item of the server, for the next request", () => {
  const sent = { name: "@layer", kind: 12, uri, range, selectionRange: range };
  const { from, fromRanges } = convert.editorIncomingCall({ from: sent, fromRanges: [range] });
  assert.equal(from.sent, sent);
  assert.equal(fromRanges[0].end.character, 9);
});

test("a hover without text shows nothing", () => {
  assert.equal(convert.editorHover({ contents: undefined }), undefined);
  assert.equal(convert.editorHover({ contents: { value: "**Conv**" }, range }).contents.value, "**Conv**");
});
