// The views in the panel: what they request, and when.

const assert = require("node:assert/strict");
const vscode = require("vscode");
const { FIRST_STEPS, MODEL, request, listen, move, endSession, start, stopped, top, until } = require("../session");

const OWN = ["nncdbg/timeline", "nncdbg/nearby", "nncdbg/explain", "nncdbg/map"];

/** ms without a request after which a view is complete at a stop. */
const QUIET = 500;

/** Returns the number of requests of a view, once there are no more. */
async function settled({ requested }) {
  for (let before = -1; before !== requested.length; ) {
    before = requested.length;
    await new Promise((resolve) => setTimeout(resolve, QUIET));
  }
  return requested.length;
}

exports.tests = {
  async "hidden views request nothing"() {
    await vscode.commands.executeCommand("workbench.action.closePanel");
    await start(FIRST_STEPS);
    await stopped("entry");
    const wires = await Promise.all(OWN.map(listen));
    for (let step = 0; step < 3; step++) {
      await move("workbench.action.debug.stepOver");
    }
    await request("nncdbg/marks", { action: "list" });
    assert.deepEqual(wires.map(({ requested }) => requested.length), [0, 0, 0, 0]);
    wires.forEach((each) => each.dispose());
  },

  async "the timeline follows each stop, and commands of the console"() {
    await start(FIRST_STEPS);
    await stopped("entry");
    const wire = await listen("nncdbg/timeline");
    await vscode.commands.executeCommand("nncdbg.timeline.focus");
    const last = () => wire.answered.at(-1);
    const now = () => last()?.branches[0].moments.find(({ kind }) => kind === "now");
    await until(() => now()?.line === 10, "the first place");
    await move("workbench.action.debug.stepOver");
    await until(() => now()?.line === 11, "the second place");
    const frameId = (await top()).id;
    await request("evaluate", { expression: "mark here", context: "repl", frameId });
    await until(() => last().branches[0].moments.some(({ name }) => name === "here"), "the mark");
    await request("setExpression", { expression: "%h", value: "0", frameId });
    await request("evaluate", { expression: "set %h = 1", context: "repl", frameId });
    await until(() => last().branches.length === 3, "the branches of two edits");
    wire.dispose();
  },

  async "a moment of the timeline can be visited"() {
    await start(FIRST_STEPS);
    await stopped("entry");
    const branch = { number: 0, moments: [] };
    await move("workbench.action.debug.stepOver");
    await vscode.commands.executeCommand("nncdbg.timeline.goTo", { branch, moment: { kind: "start", statements: 0 } });
    await stopped("entry");
    await vscode.commands.executeCommand("nncdbg.timeline.goTo", { branch, moment: { kind: "left", statements: 5 } });
    await stopped("goto");
    assert.equal((await top()).line, 11);
  },

  async "statistics, explained value and map are requested once at a stop"() {
    for (const [view, command] of [["statistics", "nncdbg/nearby"], ["explain", "nncdbg/explain"], ["map", "nncdbg/map"]]) {
      // A view that is visible at the stop already has its answer.
      await vscode.commands.executeCommand("workbench.action.closePanel");
      await start(FIRST_STEPS);
      await stopped("entry");
      const wire = await listen(command);
      await vscode.commands.executeCommand(`nncdbg.${view}.focus`);
      // The value that an earlier test explained may have no answer here.
      await until(() => wire.requested.length, `${command} is requested`);
      // A page that loads late causes one more request.
      for (let requests = 0, steps = 0; requests !== 1; steps++) {
        assert.ok(steps < 4, `${command} is requested ${requests} times at a stop`);
        const before = await settled(wire);
        await move("workbench.action.debug.stepOver");
        await until(() => wire.requested.length > before, "it is requested again");
        requests = (await settled(wire)) - before;
      }
      wire.dispose();
      await endSession();
    }
  },

  async "the graph tab requests the graph once, and its state at each stop"() {
    await start(FIRST_STEPS);
    await stopped("entry");
    const [graph, state] = await Promise.all(["nncdbg/graph", "nncdbg/graphState"].map(listen));
    await vscode.commands.executeCommand("nncdbg.openGraph");
    await until(() => graph.answered.length === 1 && state.answered.length, "the graph");
    assert.deepEqual(graph.answered[0].nodes.slice(0, 2).map(({ label }) => label), ["@layer", "MatMul"]);
    const before = state.answered.length;
    await move("workbench.action.debug.stepOver");
    await until(() => state.answered.length > before, "the state at the next stop");
    assert.equal(graph.answered.length, 1);
    assert.equal(state.answered.at(-1).stack[0].pc, 1 + state.answered[before - 1].stack[0].pc);
    [graph, state].forEach((each) => each.dispose());
  },

  async "a model opens in Netron, a text does not"() {
    const { opened } = await vscode.extensions.getExtension("tests.vscode-netron").activate();
    const wire = await listen("nncdbg/map");
    await vscode.commands.executeCommand("nncdbg.map.focus");
    const open = () => vscode.commands.executeCommand("nncdbg.map.openInNetron");
    await start(FIRST_STEPS);
    await stopped("entry");
    await until(() => wire.answered.length, "the map of a text");
    await open();
    await endSession();
    await start(MODEL);
    await stopped("entry");
    await until(async () => (await open(), opened.length), "the model in Netron");
    assert.deepEqual([...new Set(opened)], [MODEL]);
    wire.dispose();
  },
};
