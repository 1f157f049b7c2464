// Debug configurations: addresses, tokens and the debugpy extension.

import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { after, test } from "node:test";
import { bundled } from "../bundled.mjs";
import { editor } from "../editor.mjs";

const { Configurations, InputsLens, LastRuns } = await bundled("session/configurations", "runForm/inputsLens", "runForm/lastRuns");

const stored = new Map();
const runs = new LastRuns({ get: (key) => stored.get(key), update: async (key, value) => void stored.set(key, value) });

const folder = mkdtempSync(path.join(tmpdir(), "nncdbg-"));
after(() => rmSync(folder, { recursive: true }));
process.env.XDG_STATE_HOME = folder;
mkdirSync(path.join(folder, "nncdbg"));
writeFileSync(path.join(folder, "nncdbg", "dap-127.0.0.1:5679.token"), "secret", { mode: 0o600 });

const attach = (more) => new Configurations(runs).resolveDebugConfigurationWithSubstitutedVariables(undefined, { type: "nncdbg", request: "attach", name: "a", ...more });
const open = (file, languageId) => {
  editor.window.tabGroups.activeTabGroup.activeTab = { input: { uri: editor.Uri.file(file) } };
  editor.window.activeTextEditor = { document: { languageId } };
};

test("a picked listener is an address: host and port, or a socket", async () => {
  for (const [text, address] of [
    ["127.0.0.1:9000", { host: "127.0.0.1", port: 9000 }],
    ["[::1]:9000", { host: "::1", port: 9000 }],
    ["/run/user/1/graph.socket", { socket: "/run/user/1/graph.socket" }],
  ]) {
    assert.deepEqual((await attach({ connect: text })).connect, address);
  }
});

test("an attach has the token of a server of this user, unless it has one", async () => {
  assert.equal((await attach({ connect: { port: 5679 } })).connect.token, "secret");
  assert.equal((await attach({ connect: "localhost:5679" })).connect.token, "secret");
  assert.equal((await attach({ connect: { port: 5679, token: "mine" } })).connect.token, "mine");
  assert.equal((await attach({ connect: { port: 5680 } })).connect.token, undefined);
});

test("without an extension for debugpy, a configuration that needs it starts no session", async () => {
  const shown = [];
  editor.window.showErrorMessage = async (message) => void shown.push(message);
  const configuration = { debugpy: { program: "train.py" }, connect: { port: 5679 } };
  assert.equal(await attach(configuration), undefined);
  assert.match(shown[0], /cannot start train.py under debugpy/);
  editor.extensions.all = [{ packageJSON: {} }, { packageJSON: { contributes: { debuggers: [{ type: "debugpy" }] } } }];
  assert.equal((await attach(configuration)).connect.token, "secret");
});

test("F5 without a configuration launches the open model", async () => {
  open("/work/model.onnx", "onnx");
  const launch = await new Configurations(runs).resolveDebugConfiguration(undefined, {});
  assert.deepEqual(launch, { type: "nncdbg", request: "launch", name: "Debug model.onnx", program: "/work/model.onnx", stopOnEntry: true });
  open("/work/model.pt2", "plaintext");
  assert.equal((await new Configurations(runs).resolveDebugConfiguration(undefined, {})).program, "/work/model.pt2");
  const chosen = { type: "nncdbg", request: "launch", name: "mine" };
  assert.equal(await new Configurations(runs).resolveDebugConfiguration(undefined, chosen), chosen);
});

test("for a Python file, the debugger is attached to the program", async () => {
  open("/work/train.py", "python");
  const [configuration] = await new Configurations(runs).provideDebugConfigurations();
  assert.deepEqual([configuration.request, configuration.debugpy], ["attach", { program: "${file}" }]);
});

test("for a listing, its model is launched", async () => {
  const listings = path.join(folder, ".nncdbg");
  mkdirSync(listings);
  const listing = path.join(listings, "net.nnc");
  writeFileSync(listing, "graph @main() {}\n## the listing of models/net.onnx\n");
  open(listing, "nnc");
  const [launch] = await new Configurations(runs).provideDebugConfigurations();
  assert.equal(launch.program, path.join(folder, "models", "net.onnx"));
});

test("for the text of a program folder, the folder is launched", async () => {
  const step = path.join(folder, "step7");
  mkdirSync(step);
  writeFileSync(path.join(step, "program.nnc"), "graph @main() {}\n");
  open(path.join(step, "program.nnc"), "nnc");
  const launched = async () => (await new Configurations(runs).provideDebugConfigurations())[0].program;
  assert.equal(await launched(), path.join(step, "program.nnc"));
  writeFileSync(path.join(step, "nncdbg.json"), "{}");
  assert.equal(await launched(), step);
  assert.equal((await new Configurations(runs).resolveDebugConfiguration(undefined, {})).name, "Debug step7");
});

test("F5 repeats the last choices of the form, and a lens shows them", async () => {
  const file = path.join(folder, "noise.nnc");
  const text = `#nncdbg 1\n\nstate %w: f32[2] = [1.0, 2.0]\n\ngraph @main(%x: f32[2],\n    %"a b": f32[2], %c: f32[], %d: f32[]) -> (%y: f32[2]) {\n  %y: f32[2] = Add(%x, %"a b")\n`;
  writeFileSync(file, text);
  const lens = new InputsLens(runs);
  const titles = async (content = text) => (await lens.provideCodeLenses({ uri: editor.Uri.file(file), getText: () => content })).map(({ command, range }) => [command.title, range.start.line]);
  assert.deepEqual(await titles(), [["inputs: x = random, a b = random, c = random, and 1 more · change", 4]]);
  let changes = 0;
  lens.onDidChangeCodeLenses(() => changes++);
  await runs.keep(file, { inputs: { x: "/data/x.npy", "a b": "zeros", c: "2.5" }, dims: { N: "4" }, backend: "torch", allocator: "arena", seed: "" });
  assert.equal(changes, 1);
  assert.deepEqual(await titles(), [["inputs: x = x.npy, a b = zeros, c = 2.5, and 1 more · change", 4]]);
  open(file, "nnc");
  const { inputs, dims, backend, allocator } = await new Configurations(runs).resolveDebugConfiguration(undefined, {});
  assert.deepEqual({ inputs, dims, backend, allocator }, { inputs: { x: "/data/x.npy", "a b": "zeros", c: "2.5" }, dims: { N: 4 }, backend: "torch", allocator: "arena" });
  await runs.keep(file, { inputs: {}, dims: { N: "many" }, backend: "", seed: "" });
  assert.equal((await new Configurations(runs).resolveDebugConfiguration(undefined, {})).dims, undefined);
  assert.deepEqual(await titles("graph @main() -> (%y: f32[]) {\n"), []);
  assert.deepEqual(await titles("#nncdbg 1\n"), []);
});
