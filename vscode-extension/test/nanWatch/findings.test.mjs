// Findings as diagnostics and test messages.

import assert from "node:assert/strict";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { after, test } from "node:test";
import { bundled } from "../bundled.mjs";
import { editor } from "../editor.mjs";

const { ProgramText, diagnosticsOf, messageOf } = await bundled("nanWatch/findings");

const folder = mkdtempSync(path.join(tmpdir(), "nncdbg-"));
after(() => rmSync(folder, { recursive: true }));
const file = path.join(folder, "m.nnc");
writeFileSync(file, "graph @main() {\n  %y = Log(%x)\n  %z = Add(%y, %y)\n}\n");
writeFileSync(path.join(folder, "net.py"), "");
const text = await ProgramText.read(file, folder);

const finding = (more) => ({
  ...{ kind: "nan", role: "birth", line: 2, graph: "main", op: "Log", value: "%y", message: "NaN originates at Log", cause: "log of a negative number" },
  ...{ evidence: "x = -1", hint: "", location: null, reaches_output: true, other: null, calls: [], trips: true, ...more },
});

test("a diagnostic is at the statement, with its cause", () => {
  const [{ range, message, code }] = diagnosticsOf([finding()], text);
  assert.deepEqual([range.start.line, range.start.character, range.end.character], [1, 2, 14]);
  assert.equal(message, "NaN originates at Log\ncause: log of a negative number: x = -1");
  assert.equal(code, "nan");
});

test("a failed gate is an error, an effect on an output a warning, and others are information", () => {
  const findings = [finding(), finding({ trips: false }), finding({ trips: false, reaches_output: false })];
  const { Error, Warning, Information } = editor.DiagnosticSeverity;
  assert.deepEqual(diagnosticsOf(findings, text).map(({ severity }) => severity), [Error, Warning, Information]);
});

test("a propagated finding names its origin, its calls and its source", () => {
  const propagated = finding({ role: "entrance", line: 3, op: "Add", calls: [{ graph: "outer", op: "@main", line: 1 }], location: { file: "net.py", line: 12 } });
  const [, { relatedInformation }] = diagnosticsOf([finding(), propagated], text);
  assert.deepEqual(
    relatedInformation.map(({ location, message }) => [path.basename(location.uri.fsPath), message]),
    [["m.nnc", "called by @outer (@main)"], ["m.nnc", "NaN originates at Log"], ["net.py", "source of this statement"]],
  );
});

test("a line that the text lacks is its last one", () => {
  assert.equal(text.locationOf(99).range.start.line, 4);
  assert.equal(text.locationOf(null).range.start.line, 0);
});

test("a test message links to the line, a debug session and the bundle", () => {
  const { message, location, stackTrace } = messageOf(finding({ calls: [{ graph: "outer", op: "@main", line: 1 }] }), text, file, "/bundles/m");
  assert.match(message.value, /\[Open line 2\]\(command:vscode\.open\?/);
  assert.ok(message.value.includes(`(command:nncdbg.watch.debug?${encodeURIComponent(JSON.stringify([file, "nan"]))})`));
  assert.ok(message.value.includes(`(command:nncdbg.watch.openBundle?${encodeURIComponent(JSON.stringify(["/bundles/m"]))})`));
  assert.doesNotMatch(messageOf(finding(), text, file, undefined).message.value, /openBundle/);
  assert.equal(location.range.start.line, 1);
  assert.deepEqual(stackTrace.map(({ label }) => label), ["@main: Log", "@outer: @main"]);
});
