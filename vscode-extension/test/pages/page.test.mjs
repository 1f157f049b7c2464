// The documents of pages, and their messages.

import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { after, test } from "node:test";
import { setTimeout } from "node:timers/promises";
import { bundled } from "../bundled.mjs";
import { editor } from "../editor.mjs";

const { Page, textDocument } = await bundled("pages/page");

const extension = mkdtempSync(path.join(tmpdir(), "nncdbg-"));
after(() => rmSync(extension, { recursive: true }));
const files = {
  "map.js": 'const text = "</script><!-- ";',
  "map.css": 'a::before { content: "</style>"; }',
  "dagre.js": "var dagre;",
  "layout.js": "onmessage = () => {};",
};
mkdirSync(path.join(extension, "out", "webview"), { recursive: true });
Object.entries(files).forEach(([name, text]) => writeFileSync(path.join(extension, "out", "webview", name), text));

class Webview {
  sent = [];
  onDidReceiveMessage = (listener) => (this.receive = listener);
  postMessage = async (message) => void this.sent.push(message);
}

async function opened(options, handlers = {}) {
  const webview = new Webview();
  const page = new Page(webview, editor.Uri.file(extension), { name: "map", title: "Map", ...options }, handlers);
  for (let tries = 0; webview.html === undefined && tries < 6000; tries++) {
    await setTimeout(10);
  }
  return { webview, page };
}

test("a page runs its libraries and its script, each with the nonce of the policy", async () => {
  const { webview } = await opened({ libraries: ["dagre"] });
  const [, nonce] = /script-src 'nonce-([^']+)'/.exec(webview.html);
  const scripts = [...webview.html.matchAll(/<script nonce="([^"]+)">(.*?)<\/script>/gs)];
  assert.deepEqual(scripts.map(([, each]) => each), [nonce, nonce]);
  assert.equal(scripts[0][2], files["dagre.js"]);
  assert.match(webview.html, /default-src 'none'/);
  assert.doesNotMatch(webview.html, /worker-src/);
  assert.deepEqual(webview.options, { enableScripts: true, localResourceRoots: [] });
});

test("no text in a script or style ends its element", async () => {
  const { webview } = await opened();
  assert.equal(webview.html.match(/<\/script>/g).length, 1);
  assert.equal(webview.html.match(/<\/style>/g).length, 1);
  assert.doesNotMatch(webview.html, /<!--/);
});

test("each document has another nonce", async () => {
  const [first, second] = await Promise.all([opened(), opened()]);
  assert.notEqual(first.webview.html, second.webview.html);
});

test("the scripts of a worker are text, which the policy lets run only in a worker", async () => {
  const { webview } = await opened({ worker: ["dagre", "layout"] });
  assert.match(webview.html, /worker-src blob:/);
  assert.ok(webview.html.includes(`<script id="worker" type="text/plain">${files["dagre.js"]}\n${files["layout.js"]}</script>`));
});

test("a message goes to the handler of its kind", async () => {
  const received = [];
  const { webview, page } = await opened({}, { ready: () => received.push("ready"), openLine: ({ line }) => received.push(line) });
  webview.receive({ kind: "openLine", line: 7 });
  webview.receive({ kind: "ready" });
  assert.deepEqual(received, [7, "ready"]);
  page.send({ kind: "status", text: "running" });
  assert.deepEqual(webview.sent, [{ kind: "status", text: "running" }]);
});

test("a text document shows markup as text, and allows no scripts", () => {
  const html = textDocument("a < b & <script>");
  assert.match(html, /a &#60; b &#38; &#60;script&#62;/);
  assert.doesNotMatch(html, /script-src|<script/);
});
