// The watch command as a process, and the options that a launch configuration gives it.

import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { after, test } from "node:test";
import { bundled } from "../bundled.mjs";

const folder = mkdtempSync(path.join(tmpdir(), "nncdbg-"));
after(() => rmSync(folder, { recursive: true }));

const { WatchError, configurationFor, optionsOf, runWatch } = await bundled("nanWatch/command", "nanWatch/configuration");

/** A process in place of Python that runs a script of Node.js. */
function watch(script, { limit = 30, signal = new AbortController().signal, said = () => {}, python = process.execPath } = {}) {
  return runWatch({ python, arguments: ["-e", script], cwd: folder, env: process.env, limit }, said, signal);
}

const prints = (document, code) => `console.log(${JSON.stringify(JSON.stringify(document))}); process.exitCode = ${code}`;

test("a report is returned, and standard error is passed on as it comes", async () => {
  let seen = "";
  const script = `console.error("half"); ${prints({ status: "tripped", ops: 3, findings: [{ line: 6 }] }, 1)}`;
  const report = await watch(script, { said: (text) => (seen += text) });
  assert.equal(report.findings[0].line, 6);
  assert.equal(seen, "half\n");
});

test("a failure has its message, hint and line", async () => {
  const error = { message: "Log failed", hint: "use f32", line: 7 };
  await assert.rejects(watch(prints({ status: "failed", error }, 4)), (caught) => {
    assert.ok(caught instanceof WatchError);
    assert.equal(caught.message, "Log failed\nhint: use f32");
    assert.equal(caught.line, 7);
    return true;
  });
});

test("a process without a report is an error with its last words", async () => {
  await assert.rejects(watch('console.error("no memory"); process.exitCode = 9'), /no report \(exit code 9\):\nno memory/);
  await assert.rejects(watch("", { python: path.join(folder, "missing") }), /cannot start .*: .*ENOENT/);
});

test("the time limit ends a process that ignores the interrupt", async () => {
  const script = 'process.on("SIGINT", () => {}); setInterval(() => {}, 1000)';
  await assert.rejects(watch(script, { limit: 0.5 }), /did not finish within 0.5 s/);
});

test("cancelling ends the process", async () => {
  const abort = new AbortController();
  const said = () => abort.abort();
  await assert.rejects(watch('console.error("up"); setInterval(() => {}, 1000)', { signal: abort.signal, said }), { name: "AbortError" });
  await assert.rejects(watch("", { signal: abort.signal }), { name: "AbortError" });
});

test("the launch configuration of a model is found and becomes options", () => {
  const other = { type: "debugpy", request: "launch", name: "script", program: "m.onnx" };
  const inputs = { x: "${workspaceFolder}/x.npy", n: 3, s: [1, 2] };
  const mine = { type: "nncdbg", request: "launch", name: "m", program: "${workspaceFolder}/m.onnx", inputs, dims: { N: 4 }, seed: 0 };
  const attach = { type: "nncdbg", request: "attach", name: "a", connect: { port: 1 } };
  const found = configurationFor("/w/m.onnx", "/w", [other, attach, { ...mine, fallback: true, flat: false, opLibrary: ["ops.py"] }]);
  assert.deepEqual(optionsOf(found), [
    ...["--input", "x=/w/x.npy", "--input", "n=3", "--input", "s=[1,2]", "--dim", "N=4"],
    ...["--seed=0", "--fallback", "--op-library=ops.py"],
  ]);
  assert.equal(configurationFor("/w/other.onnx", "/w", [other, mine]), undefined);
  assert.equal(configurationFor("/w/sub/m.onnx", "/w", [{ ...mine, program: "m.onnx", cwd: "${workspaceFolder}/sub" }]).cwd, "/w/sub");
});
