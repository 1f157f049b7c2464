// VS Code's test client for adapters against the server, over stdio and TCP.
// NNCDBG is the command (default: the one on the path).

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { createInterface } from "node:readline";
import { afterEach, beforeEach, describe, test } from "node:test";
import { fileURLToPath } from "node:url";

import testsupport from "@vscode/debugadapter-testsupport";

const NNCDBG = process.env.NNCDBG ?? "nncdbg";
const EXAMPLES = resolve(dirname(fileURLToPath(import.meta.url)), "../../../examples");
const FIRST_STEPS = join(EXAMPLES, "first_steps.nnc");
const NAN_SOFTMAX = join(EXAMPLES, "nan_softmax.nnc");
const PATIENCE = 30_000;
const THREAD = { threadId: 1 };

const LOUD = `
import nncdbg

@nncdbg.op("loud.Say")
def say(xp, x):
    print("said", x.shape[0])
    return x
`;
const LOUD_MODEL = `#nncdbg 1
graph @main(%x: f32[3]) -> (%y) {
  %y: f32[3] = loud.Say(%x)
  return %y
}
`;

async function listening(folder) {
  const server = spawn(NNCDBG, ["dap", "--listen", "127.0.0.1:0"], { cwd: folder, stdio: ["ignore", "ignore", "pipe"] });
  const [line] = await once(createInterface(server.stderr), "line");
  return { server, port: Number(line.split(":").at(-1)) };
}

function client(folder) {
  const made = new testsupport.DebugClient(NNCDBG, "dap", "nncdbg", { cwd: folder });
  made.defaultTimeout = PATIENCE;
  return made;
}

for (const transport of ["stdio", "tcp"]) {
  describe(transport, { timeout: 60_000 }, () => {
    let folder, server, port, dc;

    beforeEach(async () => {
      folder = mkdtempSync(join(tmpdir(), "nncdbg-e2e-"));
      if (transport === "tcp") ({ server, port } = await listening(folder));
      dc = client(folder);
      await dc.start(port);
    });

    afterEach(async () => {
      await dc?.stop();
      if (server !== undefined) {
        server.kill();
        await once(server, "exit");
      }
      rmSync(folder, { recursive: true, force: true });
    });

    const stopped = (reason, line) => dc.assertStoppedLocation(reason, { path: FIRST_STEPS, line });
    const entered = (options = {}) =>
      Promise.all([
        dc.configurationSequence(),
        dc.launch({ program: FIRST_STEPS, stopOnEntry: true, ...options }),
        stopped("entry", 10),
      ]);
    const moved = (request, reason, line) => Promise.all([request, stopped(reason, line)]);
    const innermost = async () => (await dc.stackTraceRequest(THREAD)).body.stackFrames[0];
    const variables = async () => {
      const { scopes } = (await dc.scopesRequest({ frameId: (await innermost()).id })).body;
      const pages = scopes.map(({ variablesReference }) => dc.variablesRequest({ variablesReference }));
      return (await Promise.all(pages)).flatMap((page) => page.body.variables);
    };

    test("a breakpoint is hit", () => dc.hitBreakpoint({ program: FIRST_STEPS }, { path: FIRST_STEPS, line: 11 }));

    test("a breakpoint on a constant is moved to the next statement", () =>
      dc.hitBreakpoint(
        { program: FIRST_STEPS },
        { path: FIRST_STEPS, line: 8 },
        { path: FIRST_STEPS, line: 10 },
        { path: FIRST_STEPS, line: 10 },
      ));

    test("steps over, into and out", async () => {
      await entered();
      await moved(dc.stepInRequest(THREAD), "step", 33);
      assert.equal((await dc.stackTraceRequest(THREAD)).body.stackFrames.length, 2);
      await moved(dc.nextRequest(THREAD), "step", 34);
      await moved(dc.stepOutRequest(THREAD), "step", 11);
      await moved(dc.nextRequest(THREAD), "step", 12);
      assert.match((await variables()).map((each) => `${each.name} ${each.value}`).join("\n"), /%scores f32\[2,3\] /);
    });

    test("steps back, and runs back to a breakpoint and to the start", async () => {
      await entered();
      await moved(dc.nextRequest(THREAD), "step", 11);
      await moved(dc.nextRequest(THREAD), "step", 12);
      await moved(dc.stepBackRequest(THREAD), "step", 11);
      await moved(dc.nextRequest(THREAD), "step", 12);
      await dc.setBreakpointsRequest({ source: { path: FIRST_STEPS }, breakpoints: [{ line: 11 }] });
      await moved(dc.reverseContinueRequest(THREAD), "breakpoint", 11);
      await moved(dc.reverseContinueRequest(THREAD), "entry", 10);
    });

    test("stops where a NaN originates, and reports its cause", async () => {
      await Promise.all([
        dc.waitForEvent("initialized").then(async () => {
          await dc.setExceptionBreakpointsRequest({ filters: ["nan"] });
          await dc.configurationDoneRequest();
        }),
        dc.launch({ program: NAN_SOFTMAX }),
        dc.assertStoppedLocation("exception", { path: NAN_SOFTMAX }),
      ]);
      const { exceptionId, details } = (await dc.exceptionInfoRequest(THREAD)).body;
      assert.equal(exceptionId, "nan");
      assert.match(details.stackTrace, /Log/);
    });

    test("sends the output of a kernel and of a logpoint", async () => {
      writeFileSync(join(folder, "ops.py"), LOUD);
      writeFileSync(join(folder, "model.nnc"), LOUD_MODEL);
      const messages = [];
      dc.on("output", ({ body }) => messages.push(body.output));
      const path = join(folder, "model.nnc");
      await Promise.all([
        dc.waitForEvent("initialized").then(async () => {
          const breakpoints = [{ line: 4, logMessage: "the sum is {sum(%y)}" }];
          await dc.setBreakpointsRequest({ source: { path }, breakpoints });
          await dc.configurationDoneRequest();
        }),
        dc.launch({ program: path, opLibrary: ["ops.py"], inputs: { x: "ones" }, cwd: folder }),
        dc.assertOutput("stdout", "said 3\n", PATIENCE),
        dc.waitForEvent("terminated"),
      ]);
      assert.match(messages.join(""), /the sum is 3/);
    });

    test("evaluates expressions, also after a value is set", async () => {
      await entered({ inputs: { x: "ones" } });
      assert.equal((await dc.evaluateRequest({ expression: "sum(%x)", context: "watch" })).body.result, "8.0");
      const frame = await innermost();
      const { scopes } = (await dc.scopesRequest({ frameId: frame.id })).body;
      const { variablesReference } = scopes.find((scope) => scope.name === "Inputs of this op") ?? scopes[0];
      const { name } = (await dc.variablesRequest({ variablesReference })).body.variables[0];
      await dc.setVariableRequest({ variablesReference, name, value: "%x * 2" });
      assert.equal((await dc.evaluateRequest({ expression: "sum(%x)", context: "watch" })).body.result, "16.0");
    });

    test("restarts, and keeps the breakpoints", async () => {
      await dc.hitBreakpoint({ program: FIRST_STEPS }, { path: FIRST_STEPS, line: 11 });
      await moved(dc.nextRequest(THREAD), "step", 12);
      await moved(dc.restartRequest({}), "breakpoint", 11);
      const arguments_ = { program: FIRST_STEPS, stopOnEntry: true };
      await moved(dc.restartRequest({ arguments: arguments_ }), "entry", 10);
    });

    test("refuses invalid requests, and continues", async () => {
      await dc.initializeRequest();
      await assert.rejects(dc.launchRequest({ program: "missing.nnc" }), /missing\.nnc/);
      await assert.rejects(dc.customRequest("noSuchRequest"), /unknown request/);
      await dc.launchRequest({ program: FIRST_STEPS });
      assert.equal((await dc.threadsRequest()).body.threads.length, 1);
    });

    test("a client that disconnects leaves nothing behind", async () => {
      await entered();
      if (transport === "stdio") {
        const exited = once(dc._adapterProcess, "exit");
        await dc.disconnectRequest();
        assert.deepEqual(await exited, [0, null]);
        dc = undefined;
      } else {
        await dc.disconnectRequest();
        dc = client(folder);
        await dc.start(port);
        await entered();
      }
    });
  });
}
