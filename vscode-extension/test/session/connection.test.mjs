// The connection to a debug server: a process of Node.js that runs a script in place of the server.

import assert from "node:assert/strict";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { test } from "node:test";
import { setTimeout } from "node:timers/promises";
import { bundled } from "../bundled.mjs";
import { editor } from "../editor.mjs";

const { Connection } = await bundled("session/connection");
assert.ok(editor.EventEmitter);

/** The messages of a server: `receive` handles each request, `send` answers. */
const SERVER = `
  const send = (message) => {
    const body = JSON.stringify({ seq: 0, ...message });
    process.stdout.write("Content-Length: " + Buffer.byteLength(body) + "\\r\\n\\r\\n" + body);
  };
  const respond = ({ seq, command }, rest) => send({ type: "response", request_seq: seq, command, success: true, ...rest });
  let buffer = Buffer.alloc(0);
  process.stdin.on("data", (part) => {
    buffer = Buffer.concat([buffer, part]);
    for (;;) {
      const start = buffer.indexOf("\\r\\n\\r\\n") + 4;
      const length = Number(/Content-Length: (\\d+)/.exec(buffer)?.[1]);
      if (start < 4 || buffer.length < start + length) {
        return;
      }
      const message = JSON.parse(buffer.subarray(start, start + length));
      buffer = buffer.subarray(start + length);
      receive(message);
    }
  });
`;

/** A server that handles each request with `receive`, and what VS Code and the owner of the session receive. */
async function launched(receive, rejected = () => false) {
  const exits = [];
  const rejections = [];
  const listener = {
    exited: (how) => exits.push(how),
    rejected: (...error) => {
      rejections.push(error);
      return rejected(...error);
    },
  };
  const connection = await Connection.launch(process.execPath, ["-e", `${SERVER}\nfunction receive(message) { ${receive} }`], {}, listener);
  const received = [];
  connection.onDidSendMessage((message) => received.push(message));
  return { connection, received, exits, rejections };
}

async function until(condition) {
  for (let tries = 0; !condition(); tries++) {
    assert.ok(tries < 6000, "not within 60 s");
    await setTimeout(10);
  }
}

test("VS Code receives the responses to its own requests only", async (context) => {
  const { connection, received } = await launched("respond(message, { body: { command: message.command } });");
  context.after(() => connection.dispose());
  const { body } = connection.request("nncdbg/map", {});
  connection.handleMessage({ seq: 1, type: "request", command: "threads" });
  assert.deepEqual(await body, { command: "nncdbg/map" });
  await until(() => received.length);
  assert.deepEqual(received.map(({ request_seq: request }) => request), [1]);
});

test("an error has the values of its variables", async (context) => {
  const error = { id: 7, format: "unknown value {name}, {other}", variables: { name: "%h" } };
  const { connection } = await launched(`respond(message, { success: false, body: { error: ${JSON.stringify(error)} } });`);
  context.after(() => connection.dispose());
  await assert.rejects(connection.request("nncdbg/stats", {}).body, { message: "unknown value %h, {other}" });
});

test("a canceled request names the request to cancel", async (context) => {
  const { connection } = await launched('if (message.command === "cancel") respond({ seq: message.arguments.requestId }, { success: false, message: "cancelled" });');
  context.after(() => connection.dispose());
  const { body, cancel } = connection.request("nncdbg/slice", {});
  cancel();
  await assert.rejects(body, { message: "cancelled" });
});

for (const [handling, shown] of [["an error of a launch that the form shows", true], ["another error of a launch", false]]) {
  test(`${handling} is ${shown ? "not shown" : "shown"} by VS Code`, async (context) => {
    const { connection, received, rejections } = await launched(
      'respond(message, { success: false, body: { error: { id: 2003, format: "no input", showUser: true } } });',
      () => shown,
    );
    context.after(() => connection.dispose());
    connection.handleMessage({ seq: 1, type: "request", command: "launch" });
    await until(() => received.length);
    assert.deepEqual(rejections, [[2003, "no input"]]);
    assert.equal(received[0].body.error.showUser, !shown);
  });
}

test("a server that exits fails all requests, ends the session and is reported", async () => {
  const { connection, received, exits } = await launched('console.error("no memory"); process.exit(9);');
  const own = connection.request("nncdbg/map", {});
  connection.handleMessage({ seq: 5, type: "request", command: "threads" });
  await assert.rejects(own.body, { message: "the session has ended" });
  await until(() => received.some(({ event }) => event === "terminated"));
  assert.deepEqual(exits, [" with exit code 9"]);
  const response = received.find(({ type }) => type === "response");
  assert.deepEqual([response.request_seq, response.success, response.message], [5, false, "the debug server has ended"]);
  assert.match(received.find(({ event }) => event === "output").body.output, /no memory/);
  await assert.rejects(connection.request("nncdbg/map", {}).body, { message: "the session has ended" });
});

test("the end after a disconnect or after `exited` is not reported", async () => {
  for (const script of ["process.exit(0);", 'send({ type: "event", event: "exited" }); process.exit(1);']) {
    const { connection, received, exits } = await launched(script);
    connection.handleMessage({ seq: 1, type: "request", command: script.includes("exited") ? "threads" : "disconnect" });
    await until(() => received.some(({ event }) => event === "terminated"));
    assert.deepEqual(exits, []);
  }
});

test("a stop is delivered once the editor has read the text that the server has written, in the order of the messages", async () => {
  const folder = mkdtempSync(path.join(tmpdir(), "nncdbg-"));
  const file = path.join(folder, "main.nnc");
  writeFileSync(file, "new");
  const changed = new editor.EventEmitter();
  const document = { uri: editor.Uri.file(file), text: "old", getText: () => document.text };
  Object.assign(editor.workspace, { textDocuments: [document], onDidChangeTextDocument: changed.event });
  const stop = `send({ type: "event", event: "loadedSource", body: { source: { path: ${JSON.stringify(file)} } } }); send({ type: "event", event: "stopped" });`;
  const { connection, received } = await launched(`${stop} respond(message, {});`);
  try {
    connection.handleMessage({ seq: 1, type: "request", command: "threads" });
    await until(() => received.length);
    await setTimeout(100);
    assert.deepEqual(received.map(({ event }) => event), ["loadedSource"]);
    document.text = "new";
    changed.fire({ document });
    await until(() => received.length === 3);
    assert.deepEqual(received.map(({ type, event }) => event ?? type), ["loadedSource", "stopped", "response"]);
  } finally {
    connection.dispose();
    rmSync(folder, { recursive: true });
  }
});

test("a missing command is an error of the launch", async () => {
  await assert.rejects(Connection.launch("/nowhere/python", [], {}, {}), /ENOENT/);
});
