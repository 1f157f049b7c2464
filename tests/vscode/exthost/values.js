// Display of values at a stop, and an edit.

const assert = require("node:assert/strict");
const vscode = require("vscode");
const {
  FIRST_STEPS,
  request,
  inlineValues,
  listen,
  lineOf,
  move,
  start,
  stopped,
  top,
  until,
  variable,
} = require("../session");

exports.tests = {
  async "an expression is evaluated, in the console and on a hover"() {
    await start(FIRST_STEPS);
    await stopped("entry");
    await move("workbench.action.debug.stepOver");
    const frameId = (await top()).id;
    assert.equal((await request("evaluate", { expression: "size(%h)", context: "repl", frameId })).result, "8");
    const hover = await request("evaluate", { expression: "%h", context: "hover", frameId });
    assert.match(hover.result, /^f32\[2,4\] \[\[/);
  },

  async "executed lines end with their values"() {
    await start(FIRST_STEPS);
    await stopped("entry");
    await move("workbench.action.debug.stepOver");
    const shown = await inlineValues(FIRST_STEPS, await move("workbench.action.debug.stepOver"));
    const scores = (await variable("Outputs", "%scores")).value;
    assert.equal(`f32[2,3] ${shown.get(lineOf(FIRST_STEPS, "%scores ="))}`, scores);
    assert.ok(shown.has(lineOf(FIRST_STEPS, "graph @main")));
    assert.ok(!shown.has(lineOf(FIRST_STEPS, "%probs =")));
  },

  async "all visible lines are in one request"() {
    await start(FIRST_STEPS, { stopOnEntry: true });
    await stopped("entry");
    // The visible lines are requested at the stop; these lines are among them, or in one further request.
    const wire = await listen("nncdbg/lines");
    const shown = await inlineValues(FIRST_STEPS, 10, 5, 12);
    assert.ok(shown.has(lineOf(FIRST_STEPS, "graph @main")));
    assert.ok(wire.requested.length <= 1, JSON.stringify(wire.requested));
    const before = wire.requested.length;
    await move("workbench.action.debug.stepOver");
    await until(() => wire.requested.length > before, "the visible lines are requested at the next stop");
    wire.dispose();
  },

  async "a value is edited, and dependent values are recomputed"() {
    await start(FIRST_STEPS);
    await stopped("entry");
    await move("workbench.action.debug.stepOver");
    const frameId = (await top()).id;
    await request("setExpression", { expression: "%h", value: "0", frameId });
    await move("workbench.action.debug.stepOver");
    assert.equal((await request("evaluate", { expression: "max(abs(%scores))", frameId: (await top()).id })).result, "0.0");
  },

  async "Explain Value requests the value in the selected frame, and again at each stop"() {
    await start(FIRST_STEPS);
    await stopped("entry");
    await move("workbench.action.debug.stepOver");
    const wire = await listen("nncdbg/explain");
    const { id } = await top();
    await vscode.commands.executeCommand("nncdbg.explain", { variable: { name: "%h", evaluateName: "%h" } });
    const body = await until(() => wire.answered.find(({ value }) => value === "%h"), "the answer");
    assert.match(body.steps.map(({ text }) => text).join("\n"), /Relu\(%centred\)/);
    const requested = wire.requested.find(({ expression }) => expression === "%h");
    assert.equal(requested.frameId, id);
    const before = wire.answered.length;
    await move("workbench.action.debug.stepOver");
    await until(() => wire.answered.length > before, "a request at the next stop");
    assert.deepEqual({ ...wire.requested.at(-1) }, { expression: "%h", frameId: undefined });
    wire.dispose();
  },
};
