// Events of a session, and the time at which views show a stop.

import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout } from "node:timers/promises";
import { bundled } from "../bundled.mjs";
import { editor } from "../editor.mjs";

const { SessionEvents } = await bundled("views/sessionEvents");
const session = { id: "1" };

function events() {
  const values = new editor.EventEmitter();
  const sessions = new SessionEvents({}, values.event);
  const fired = [];
  sessions.onEvent(({ event }) => fired.push(event));
  const tracker = sessions.tracker(session);
  return { sessions, fired, tracker, values, stop: () => tracker.onDidSendMessage({ type: "event", event: "stopped" }) };
}

/** Whether a promise is settled. */
const settled = (promise) => Promise.race([promise.then(() => true), setTimeout(0, false)]);

test("views wait until VS Code has the values of a stop", async () => {
  const { sessions, values, stop } = events();
  assert.ok(await settled(sessions.valuesShown(session)), "no stop");
  stop();
  const shown = sessions.valuesShown(session);
  assert.equal(await settled(shown), false);
  values.fire(session);
  assert.ok(await settled(shown));
});

test("views do not wait longer than 150 ms, nor after the program moves on", async () => {
  const { sessions, tracker, stop } = events();
  stop();
  const first = sessions.valuesShown(session);
  tracker.onDidSendMessage({ type: "event", event: "continued" });
  assert.ok(await settled(first));
  stop();
  const start = Date.now();
  await sessions.valuesShown(session);
  assert.ok(Date.now() - start >= 140);
});

test("the place is the innermost frame that VS Code has received", () => {
  const { sessions, fired, tracker } = events();
  tracker.onWillReceiveMessage({ type: "request", seq: 4, command: "stackTrace", arguments: { startFrame: 20 } });
  tracker.onDidSendMessage({ type: "response", request_seq: 4, body: { stackFrames: [{ name: "@outer", line: 1 }] } });
  assert.equal(sessions.placeOf(session), "");
  tracker.onWillReceiveMessage({ type: "request", seq: 5, command: "stackTrace" });
  tracker.onDidSendMessage({ type: "response", request_seq: 5, body: { stackFrames: [{ name: "@main", line: 12 }] } });
  assert.equal(sessions.placeOf(session), "@main, line 12");
  assert.deepEqual(fired, ["stackTrace"]);
});
