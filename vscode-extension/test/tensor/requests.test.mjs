// The requests of a tensor view: early answers, versions, and kept answers.

import assert from "node:assert/strict";
import { test } from "node:test";
import { bundled } from "../bundled.mjs";
import "../editor.mjs";

const { TensorRequests } = await bundled("tensor/requests");

const session = { id: "1" };
const slice = (maxElements, known) => ({ command: "nncdbg/slice", arguments: { expression: "%h", maxElements }, known });

function requests() {
  const sent = [];
  const sessions = {
    placeOf: () => "@main, line 3",
    request: (_session, command, argument) => {
      const request = { command, argument };
      const body = new Promise((resolve, reject) => Object.assign(request, { resolve, reject }));
      sent.push(request);
      return { body, cancel: () => (request.canceled = true) };
    },
  };
  return { sent, made: new TensorRequests(sessions, session, 7) };
}

/** Sends a request and answers it immediately. */
async function answered({ made, sent }, id, request, body) {
  const answer = made.answer(id, request, false);
  sent.at(-1).resolve(body);
  return answer;
}

test("a request has the frame and the known version", async () => {
  const opened = requests();
  await answered(opened, 1, slice(9, 4), {});
  assert.deepEqual(opened.sent[0].argument, { expression: "%h", maxElements: 9, known: 4, frameId: 7 });
});

test("at the next stop, the last picture is requested early with its version, and only once", async () => {
  const opened = requests();
  await answered(opened, 1, slice(9), { version: 5, data: "AA" });
  opened.made.startMoment();
  const early = opened.made.requestEarly();
  const own = opened.made.answer(2, slice(9, 5), false);
  assert.equal(opened.sent.length, 2);
  assert.equal(opened.sent[1].argument.known, 5);
  opened.sent[1].resolve({ version: 6 });
  assert.deepEqual(await own, { version: 6 });
  assert.deepEqual(await early, [{ key: JSON.stringify(["nncdbg/slice", slice(9).arguments, 5]), body: { version: 6 } }]);
});

test("an early request that fails leaves the error to the request of the page", async () => {
  const opened = requests();
  await answered(opened, 1, slice(9), { version: 5 });
  opened.made.startMoment();
  const early = opened.made.requestEarly();
  opened.sent[1].reject(new Error("no %h here"));
  assert.deepEqual(await early, []);
  await assert.rejects(opened.made.answer(2, slice(9, 5), false), /no %h here/);
});

test("a new moment cancels all requests", () => {
  const opened = requests();
  void opened.made.answer(1, slice(1), false);
  void opened.made.answer(2, slice(2), false);
  opened.made.startMoment();
  assert.deepEqual(opened.sent.map(({ canceled }) => canceled), [true, true]);
});

test("kept answers are those of the last moment with answers, complete even if unchanged", async () => {
  const opened = requests();
  assert.equal(opened.made.kept, undefined);
  await answered(opened, 1, slice(9), { version: 5, data: "AA" });
  opened.made.startMoment();
  opened.made.setPlace("@main, line 4");
  await answered(opened, 2, slice(9, 5), { version: 5, unchanged: true });
  opened.made.startMoment();
  assert.deepEqual(opened.made.kept, { moment: 1, place: "@main, line 4" });
  assert.deepEqual(await opened.made.answer(3, slice(9, 5), true), { version: 5, data: "AA" });
  assert.equal(opened.sent.length, 2);
});

test("only the last 12 answers are kept", async () => {
  const opened = requests();
  for (let count = 1; count <= 13; count++) {
    await answered(opened, count, slice(count), { version: count });
  }
  void opened.made.answer(20, slice(2), true);
  assert.equal(opened.sent.length, 13);
  void opened.made.answer(21, slice(1), true);
  assert.equal(opened.sent.length, 14);
});
