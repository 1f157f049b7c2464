// A fork is a task with an argument list; names that VS Code or a shell would not take literally are refused.

import assert from "node:assert/strict";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { after, test } from "node:test";
import { bundled } from "../bundled.mjs";
import { editor } from "../editor.mjs";

const { forkArguments, forkRun, literal, openStep, launchOf, readWithNncdbg } = await bundled(
  "journal/actions",
  "environment/process",
  "session/configurations",
);

const HOSTILE = ["a\u0003touch X\r.db", "a\n.db", "a\u001b]0;x\u0007.db", "a\u007f.db", "a\u009b.db", "${command:workbench.action.quit}.db"];

test("a fork is an argument list", () => {
  const found = forkArguments("my run';.db", 2, 38, " lr=1e-4 %w=[1, 2]  17:lr=$(touch X)");
  assert.deepEqual(found.slice(3), ["run", "my run';.db#2@38", "--fork", "--set=lr=1e-4", "--set=%w=[1, 2]", "--set=17:lr=$(touch X)"]);
  assert.deepEqual(forkArguments("--help.db", 1, 0, "").slice(4), ["./--help.db#1@0", "--fork"]);
});

for (const name of HOSTILE) {
  test(`a journal called ${JSON.stringify(name)} starts nothing`, async () => {
    const started = [];
    editor.window.showInputBox = async () => "lr=1";
    editor.workspace.getWorkspaceFolder = () => undefined;
    editor.debug = { startDebugging: async (...each) => started.push(each) };
    editor.tasks = { executeTask: async (each) => started.push(each) };
    assert.throws(() => forkArguments(name, 1, 0, ""), /control characters/);
    assert.throws(() => forkArguments("run.db", 1, 0, `lr=${name}`), /control characters|undefined/);
    assert.throws(() => launchOf(`/tmp/${name}`), /control characters/);
    await assert.rejects(openStep(`/tmp/${name}`, 1, 0), /control characters/);
    await assert.rejects(forkRun(`/tmp/${name}`, 1, 0));
    assert.deepEqual(started, []);
  });
}

test("other names are literal", () => {
  for (const name of ["run.db", "a b.db", "ü-模型.db", "$HOME.db", "a'b\"c;d.db", "{x}.db"]) {
    assert.equal(literal(name), name);
  }
});

test("a reader has limits of memory and processor time", async () => {
  const folder = mkdtempSync(path.join(tmpdir(), "nncdbg-"));
  after(() => rmSync(folder, { recursive: true }));
  const python = path.join(folder, "python");
  writeFileSync(python, `#!/bin/sh\ncode="$3"\nexec python3 -I -c "\${code%%import runpy*}
import resource; print(resource.getrlimit(resource.RLIMIT_CPU)[0], resource.getrlimit(resource.RLIMIT_DATA)[0])"\n`, { mode: 0o755 });
  assert.equal(await readWithNncdbg(python, ["runs", "run.db"]), `120 ${16 * 2 ** 30}\n`);
  writeFileSync(python, "#!/bin/sh\necho error: damaged >&2\nexit 3\n");
  await assert.rejects(readWithNncdbg(python, ["runs", "run.db"]), /^Error: error: damaged$/);
  writeFileSync(python, "#!/bin/sh\nkill -XCPU $$\n");
  await assert.rejects(readWithNncdbg(python, ["runs", "run.db"]), /nncdbg runs was ended: it needs more than/);
});
