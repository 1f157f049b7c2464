// The summary of a run: its message and its buttons.

import assert from "node:assert/strict";
import { test } from "node:test";
import { setImmediate } from "node:timers/promises";
import { bundled } from "../bundled.mjs";
import { editor } from "../editor.mjs";

const { Summaries } = await bundled("session/summary");

/** The messages, lists, starts and requests after one event of a session; the user chooses `button` and then a row. */
async function shown(message, { button, row, configuration = {} } = {}) {
  const log = { messages: [], rows: undefined, started: [], requests: [] };
  const show = async (text) => (log.messages.push(text), button);
  editor.window.showWarningMessage = editor.window.showInformationMessage = show;
  editor.window.showQuickPick = async (rows) => (log.rows = rows).find(({ label }) => label.includes(row));
  editor.debug.stopDebugging = async () => {};
  editor.debug.startDebugging = async (_folder, started) => void log.started.push(started);
  const session = { configuration: { program: "m.onnx", ...configuration }, customRequest: async (...request) => void log.requests.push(request) };
  new Summaries().createDebugAdapterTracker(session).onDidSendMessage(message);
  for (let turn = 0; turn < 10; turn++) {
    await setImmediate();
  }
  return log;
}

const ended = (outputs, more) => ({ event: "nncdbg/summary", body: { program: "m.onnx", outputs, ...more } });
const LOSS = { name: "%loss", text: "f32[] nan", kinds: ["nan", "inf"] };
const Y = { name: "%y", text: "f32[2]" };

test("finite outputs are a short message", async () => {
  assert.deepEqual((await shown(ended([Y]))).messages, ["m.onnx has ended."]);
});

test("abnormal outputs and inputs are listed", async () => {
  const { messages } = await shown(ended([LOSS, Y, { ...LOSS, name: "%z" }], { inputs: [{ name: "%x", text: "" }] }));
  assert.deepEqual(messages, ["m.onnx has ended: %loss and 1 more have NaN and Inf. Input %x already has NaN or Inf."]);
});

test("a restart stops where the NaN originates", async () => {
  const { started } = await shown(ended([LOSS]), { button: "Restart and Stop Where It Originated" });
  assert.deepEqual(started, [{ program: "m.onnx", catch: ["nan"], stopOnEntry: false, noDebug: false }]);
});

test("an output in the list is opened at the end of another run, past all stops", async () => {
  const { rows, started } = await shown(ended([Y], { findings: [{ label: "NaN at Log", text: "", line: 3, source: { path: "/w/m.nnc" } }] }), { button: "Show Outputs", row: "%y" });
  assert.deepEqual(rows.map(({ label, description }) => [label, description]).at(-1), ["$(bug) NaN at Log", "m.nnc line 3"]);
  const [configuration] = started;
  assert.equal(configuration.stopOnExit, true);
  const stop = await shown({ event: "stopped", body: { reason: "breakpoint" } }, { configuration });
  assert.deepEqual(stop.requests, [["continue", { threadId: 1 }]]);
  await shown({ event: "stopped", body: { reason: "exit" } }, { configuration });
  assert.deepEqual(editor.commands.executed.at(-1), ["nncdbg.viewTensor", { expression: "%y" }]);
  assert.deepEqual((await shown(ended([Y]), { configuration })).messages, [], "the second run has no summary");
});
