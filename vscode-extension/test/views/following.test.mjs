// Requests of views and of inline values at a stop.  The tests answer the requests.

import assert from "node:assert/strict";
import { test } from "node:test";
import { setImmediate } from "node:timers/promises";
import { bundled } from "../bundled.mjs";
import { editor } from "../editor.mjs";

const { Follower } = await bundled("views/following");
const { InlineValues } = await bundled("session/inlineValues");

/** Keeps each request until a test answers it. */
class Server {
  requests = [];

  request(session, command, argument) {
    const request = { session, command, argument, canceled: false };
    const body = new Promise((resolve, reject) => Object.assign(request, { resolve, reject }));
    this.requests.push(request);
    return { body, cancel: () => (request.canceled = true) };
  }

  async valuesShown() {}
}

function followed({ visible = true } = {}) {
  const server = new Server();
  const log = [];
  const view = { request: "nncdbg/map", visible, arguments: () => ({}), show: (answer) => log.push(answer), showStatus: (text) => log.push(text) };
  return { server, log, view, follower: new Follower(view, server) };
}

test("a view shows the answer to its request", async () => {
  const { server, log, follower } = followed();
  follower.follow({}, "");
  server.requests[0].resolve("the map");
  await setImmediate();
  assert.equal(server.requests[0].command, "nncdbg/map");
  assert.deepEqual(log, ["the map"]);
});

test("a hidden view sends its request when it becomes visible", async () => {
  const { server, view, follower } = followed({ visible: false });
  follower.follow({}, "");
  assert.equal(server.requests.length, 0);
  view.visible = true;
  await Promise.race([follower.update(), setImmediate()]);
  assert.equal(server.requests.length, 1);
});

test("a new stop cancels the request of the last one, and its answer is not shown", async () => {
  const { server, log, follower } = followed();
  follower.follow({}, "");
  follower.follow({}, "");
  assert.equal(server.requests.length, 1, "one request at a time");
  assert.ok(server.requests[0].canceled);
  server.requests[0].resolve("old");
  await setImmediate();
  server.requests[1].resolve("new");
  await setImmediate();
  assert.deepEqual(log, ["new"]);
});

test("a view shows the error of a request, and why there is no session", async () => {
  const { server, log, follower } = followed();
  follower.follow({}, "");
  server.requests[0].reject(new Error("the graph is too large"));
  await setImmediate();
  follower.follow(undefined, "No graph is being debugged.");
  assert.deepEqual(log, ["the graph is too large", "No graph is being debugged."]);
});

const FRAME = 7;
const session = editor.debug.activeDebugSession;
const shortLines = { lineCount: 40, lineAt: (line) => ({ range: line }) };
const lines = (first, last) => ({ start: { line: first - 1 }, end: { line: last - 1 } });

function inlined(document = shortLines) {
  const server = new Server();
  const values = new InlineValues(server);
  const tracker = values.createDebugAdapterTracker(session);
  const token = { isCancellationRequested: false, onCancellationRequested: (cancel) => ((token.cancel = cancel), { dispose: () => {} }) };
  const provide = (range, frameId = FRAME) => values.provideInlineValues(document, range, { frameId }, token);
  return { server, tracker, token, provide };
}

/** Values of lines 1 to 10, so that the next stop has a range to request. */
async function seen() {
  const opened = inlined();
  const first = opened.provide(lines(1, 10));
  await setImmediate();
  opened.server.requests[0].resolve({ frameId: FRAME, lines: [{ line: 2, text: "%x = 1" }, { line: 30, text: "%y = 2" }] });
  assert.deepEqual(await first, [new editor.InlineValueText(1, "%x = 1")], "line 30 is not in view");
  return opened;
}

test("the values of a stop are requested once, before the editor's request", async () => {
  const { server, tracker, provide } = await seen();
  tracker.onDidSendMessage({ event: "stopped" });
  assert.deepEqual(server.requests[1].argument, { start: 1, end: 10 });
  server.requests[1].resolve({ frameId: FRAME, lines: [{ line: 3, text: "%z = 3" }] });
  assert.deepEqual(await provide(lines(1, 10)), [new editor.InlineValueText(2, "%z = 3")]);
  assert.equal(server.requests.length, 2);
});

for (const [reason, change] of [
  ["of another frame", ({ provide }) => provide(lines(1, 10), FRAME + 1)],
  ["of fewer lines", ({ provide }) => provide(lines(1, 20))],
  ["of the last stop", ({ tracker, provide }) => (tracker.onDidSendMessage({ event: "continued" }), provide(lines(1, 10)))],
]) {
  test(`values ${reason} are requested again`, async () => {
    const opened = await seen();
    opened.tracker.onDidSendMessage({ event: "stopped" });
    opened.server.requests[1].resolve({ frameId: FRAME, lines: [] });
    const provided = change(opened);
    await setImmediate();
    assert.equal(opened.server.requests.length, 3);
    opened.server.requests[2].resolve({ frameId: FRAME, lines: [{ line: 1, text: "%a = 0" }] });
    assert.equal((await provided)[0].text, "%a = 0");
  });
}

test("a canceled request has no values, and other errors are passed on", async () => {
  const { server, token, provide } = inlined();
  const canceled = provide(lines(1, 10));
  await setImmediate();
  token.cancel();
  assert.ok(server.requests[0].canceled);
  token.isCancellationRequested = true;
  server.requests[0].reject(new Error("canceled"));
  assert.deepEqual(await canceled, []);
  token.isCancellationRequested = false;
  editor.debug.activeStackItem = Object.assign(new editor.DebugStackFrame(), { frameId: FRAME });
  const failed = provide(lines(1, 10));
  await setImmediate();
  server.requests[1].reject(new Error("internal error"));
  await assert.rejects(failed, /internal error/);
});

test("the value of a long statement of a listing is behind its outputs, until the program moves", async () => {
  const more = "%argument, ".repeat(9);
  const texts = ["  %a = Relu(%x) : f32[2]", `  %long, %other = nncdbg.Op(${more}%x) : f32[2], f32[2]`, `  while @loop (%s: f32[2] = %a) outer (${more}%x) {`, `  return ${more}%x`];
  const document = {
    languageId: "nnc",
    lineCount: texts.length,
    lineAt: (line) => ({ range: new editor.Range(line, 0, line, texts[line].length) }),
    getText: ({ start }) => texts[start.line],
  };
  const decorated = [];
  const other = { document: {}, setDecorations: (_, values) => assert.deepEqual(values, []) };
  editor.window.visibleTextEditors = [{ document, setDecorations: (_, values) => decorated.push(values) }, other];
  const { server, tracker, provide } = inlined(document);
  const provided = provide(lines(1, 4));
  await setImmediate();
  server.requests[0].resolve({ frameId: FRAME, lines: [1, 2, 3, 4].map((line) => ({ line, text: `value ${line}` })) });
  assert.deepEqual((await provided).map(({ text }) => text), ["value 1", "value 3", "value 4"]);
  assert.deepEqual(
    decorated[0].map(({ range, renderOptions }) => [texts[range.start.line].slice(0, range.end.character), renderOptions.after.contentText]),
    [["  %long, %other", "value 2"]],
  );
  tracker.onDidSendMessage({ event: "continued" });
  assert.deepEqual(decorated[1], []);
  editor.window.visibleTextEditors = [];
});
