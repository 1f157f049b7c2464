// The token file of a server: a module without the editor's API, bundled like in the extension.

import assert from "node:assert/strict";
import { chmodSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { after, test } from "node:test";
import { bundled } from "../bundled.mjs";

const folder = mkdtempSync(path.join(tmpdir(), "nncdbg-"));
after(() => rmSync(folder, { recursive: true }));

const { tokenOf } = await bundled("session/token");

test("a token is read from a file that only this user can read", async () => {
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
