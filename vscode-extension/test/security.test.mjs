// What the install button runs, and the token file of a server: pure modules, bundled as the extension bundles them.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { chmodSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { homedir, tmpdir } from "node:os";
import path from "node:path";
import { after, test } from "node:test";
import { build } from "esbuild";

const folder = mkdtempSync(path.join(tmpdir(), "nncdbg-"));
after(() => rmSync(folder, { recursive: true }));

async function bundled(name) {
  const outfile = path.join(folder, `${name}.mjs`);
  const entry = new URL(`../src/${name}.ts`, import.meta.url).pathname;
  await build({ entryPoints: [entry], outfile, bundle: true, platform: "node", format: "esm", logLevel: "error" });
  return import(outfile);
}

const { installTerminal, requirementOf } = await bundled("install");
const { tokenOf } = await bundled("token");

test("the install button runs pip itself, whatever lies in the workspace", (t) => {
  const workspace = path.join(folder, "workspace");
  mkdirSync(workspace);
  for (const name of ["pip.py", "sitecustomize.py", "usercustomize.py", "runpy.py"]) {
    writeFileSync(path.join(workspace, name), 'print("owned")\n');
  }
  const terminal = installTerminal("python3", "/a/nncdbg.whl");
  assert.deepEqual(terminal.shellArgs.slice(3), ["install", "/a/nncdbg.whl"]);
  assert.equal(terminal.cwd, homedir());
  const options = { cwd: workspace, env: { ...process.env, PYTHONPATH: workspace }, encoding: "utf8" };
  let printed;
  try {
    printed = execFileSync(terminal.shellPath, [...terminal.shellArgs.slice(0, 3), "--version"], options);
  } catch (error) {
    t.skip(`python3 has no pip here: ${error.code ?? error.status}`);
    return;
  }
  assert.match(printed, /^pip \d/);
  assert.doesNotMatch(printed, /owned/);
});

test("only what the user has named is installed", () => {
  assert.equal(requirementOf(undefined), undefined);
  assert.equal(requirementOf(" "), undefined);
  assert.equal(requirementOf("--index-url=https://example.invalid nncdbg"), undefined);
  assert.equal(requirementOf(" /a/nncdbg.whl "), "/a/nncdbg.whl");
});

test("a token is read from a file that this user alone can read", async () => {
  process.env.XDG_STATE_HOME = path.join(folder, "state");
  const state = path.join(folder, "state", "nncdbg");
  mkdirSync(state, { recursive: true });
  const file = path.join(state, "dap-127.0.0.1:5679.token");
  assert.equal(await tokenOf("127.0.0.1", 5679), undefined);
  writeFileSync(file, "secret", { mode: 0o600 });
  assert.equal(await tokenOf("127.0.0.1", 5679), "secret");
  assert.equal(await tokenOf("localhost", 5679), "secret");
  assert.equal(await tokenOf("::1", 5679), undefined);
  chmodSync(file, 0o644);
  assert.equal(await tokenOf("127.0.0.1", 5679), undefined);
  writeFileSync(path.join(state, "dap-[::1]:5680.token"), "six", { mode: 0o600 });
  assert.equal(await tokenOf("localhost", 5680), "six");
  symlinkSync(path.join(state, "dap-[::1]:5680.token"), path.join(state, "dap-127.0.0.1:5681.token"));
  assert.equal(await tokenOf("127.0.0.1", 5681), undefined);
});
