// Debug configurations: addresses, tokens and the debugpy extension.

import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { after, test } from "node:test";
import { bundled } from "../bundled.mjs";
import { editor } from "../editor.mjs";

const { Configurations } = await bundled("session/configurations");

const folder = mkdtempSync(path.join(tmpdir(), "nncdbg-"));
after(() => rmSync(folder, { recursive: true }));
process.env.XDG_STATE_HOME = folder;
mkdirSync(path.join(folder, "nncdbg"));
writeFileSync(path.join(folder, "nncdbg", "dap-127.0.0.1:5679.token"), "secret", { mode: 0o600 });

const attach = (more) => new Configurations().resolveDebugConfigurationWithSubstitutedVariables(undefined, { type: "nncdbg", request: "attach", name: "a", ...more });
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
  const launch = await new Configurations().resolveDebugConfiguration(undefined, {});
  assert.deepEqual(launch, { type: "nncdbg", request: "launch", name: "Debug model.onnx", program: "/work/model.onnx", stopOnEntry: true });
  open("/work/model.pt2", "plaintext");
  assert.equal((await new Configurations().resolveDebugConfiguration(undefined, {})).program, "/work/model.pt2");
  const chosen = { type: "nncdbg", request: "launch", name: "mine" };
  assert.equal(await new Configurations().resolveDebugConfiguration(undefined, chosen), chosen);
});

test("for a Python file, the debugger is attached to the program", async () => {
  open("/work/train.py", "python");
  const [configuration] = await new Configurations().provideDebugConfigurations();
  assert.deepEqual([configuration.request, configuration.debugpy], ["attach", { program: "${file}" }]);
});

test("for a listing, its model is launched", async () => {
  const listings = path.join(folder, ".nncdbg");
  mkdirSync(listings);
  const listing = path.join(listings, "net.nnc");
  writeFileSync(listing, "graph @main() {}\n## the listing of models/net.onnx\n");
  open(listing, "nnc");
  const [launch] = await new Configurations().provideDebugConfigurations();
  assert.equal(launch.program, path.join(folder, "models", "net.onnx"));
});

test("for the text of a program folder, the folder is launched", async () => {
  const step = path.join(folder, "step7");
  mkdirSync(step);
  writeFileSync(path.join(step, "program.nnc"), "graph @main() {}\n");
  open(path.join(step, "program.nnc"), "nnc");
  const launched = async () => (await new Configurations().provideDebugConfigurations())[0].program;
  assert.equal(await launched(), path.join(step, "program.nnc"));
  writeFileSync(path.join(step, "nncdbg.json"), "{}");
  assert.equal(await launched(), step);
  assert.equal((await new Configurations().resolveDebugConfiguration(undefined, {})).name, "Debug step7");
});
