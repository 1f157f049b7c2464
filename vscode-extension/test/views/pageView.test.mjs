// Views with a page: the content of a new page, and the choices of the user.

import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { after, test } from "node:test";
import { setImmediate } from "node:timers/promises";
import { bundled } from "../bundled.mjs";
import { editor } from "../editor.mjs";

const { PageView } = await bundled("views/pageView");

const extension = mkdtempSync(path.join(tmpdir(), "nncdbg-"));
/** One for each page: it has its HTML, which is read from files of the extension. */
const written = [];
after(async () => {
  await Promise.all(written);
  rmSync(extension, { recursive: true });
});
mkdirSync(path.join(extension, "out", "webview"), { recursive: true });
["explain.js", "explain.css"].forEach((name) => writeFileSync(path.join(extension, "out", "webview", name), ""));

const session = { id: "1", type: "nncdbg" };

/** A view with its requests.  `open` gives it a page; a page that VS Code has discarded is replaced by the next. */
function view() {
  const requests = [];
  const sessions = {
    request: (_session, command, argument) => {
      const request = { command, argument };
      const body = new Promise((resolve) => (request.resolve = resolve));
      requests.push(request);
      return { body, cancel: () => (request.canceled = true) };
    },
    valuesShown: async () => {},
  };
  const opened = new PageView(editor.Uri.file(extension), sessions, "nncdbg/explain", { name: "explain", title: "Explain Value" });
  const open = () => {
    const sent = [];
    const webview = { onDidReceiveMessage: (listener) => (webview.receive = listener), postMessage: async (message) => void sent.push(message) };
    written.push(new Promise((resolve) => Object.defineProperty(webview, "html", { set: resolve })));
    opened.resolveWebviewView({ visible: true, webview, onDidChangeVisibility: () => {}, onDidDispose: (listener) => (webview.dispose = listener) });
    return { sent, receive: (message) => webview.receive(message), close: () => webview.dispose() };
  };
  return { opened, open, requests };
}

test("a new page receives the last answer", async () => {
  const { opened, open, requests } = view();
  const first = open();
  opened.follower.follow(session, "");
  requests[0].resolve("answer 1");
  await setImmediate();
  assert.deepEqual(first.sent, [{ kind: "answer", answer: "answer 1" }]);
  first.close();
  const second = open();
  second.receive({ kind: "ready", choice: {} });
  assert.deepEqual(second.sent, [{ kind: "answer", answer: "answer 1" }]);
  assert.equal(requests.length, 1);
});

test("the choice on a page is part of the next request", () => {
  const { opened, open, requests } = view();
  const page = open();
  page.receive({ kind: "choose", choice: { expression: "%h" } });
  opened.follower.follow(session, "");
  assert.deepEqual(requests.at(-1).argument, { expression: "%h" });
});

test("a choice that VS Code kept with the page is used if there is no other", () => {
  const { opened, open, requests } = view();
  const page = open();
  opened.follower.follow(session, "");
  page.receive({ kind: "ready", choice: { expression: "%old" } });
  assert.ok(requests[0].canceled);
  assert.deepEqual(opened.arguments(), { expression: "%old" });
});

test("a choice by a command replaces the one that VS Code kept with a hidden page", () => {
  const { opened, open } = view();
  opened.choose({ expression: "%new" });
  const page = open();
  page.receive({ kind: "ready", choice: { expression: "%old" } });
  assert.deepEqual(page.sent[0], { kind: "choice", choice: { expression: "%new" } });
  assert.deepEqual(opened.arguments(), { expression: "%new" });
});

test("a link to a tensor opens its view", () => {
  const page = view().open();
  page.receive({ kind: "viewTensor", expression: "%h" });
  assert.deepEqual(editor.commands.executed.at(-1), ["nncdbg.viewTensor", { expression: "%h" }]);
});
