// What is shown of values while stopped, and editing one.

const assert = require("node:assert/strict");
const vscode = require("vscode");
const {
  FIRST_STEPS,
  ask,
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
    assert.equal((await ask("evaluate", { expression: "size(%h)", context: "repl", frameId })).result, "8");
    const hover = await ask("evaluate", { expression: "%h", context: "hover", frameId });
    assert.match(hover.result, /^f32\[2,4\] \[\[/);
  },

  async "lines end in the values that they have given"() {
    await start(FIRST_STEPS);
    await stopped("entry");
    await move("workbench.action.debug.stepOver");
    const shown = await inlineValues(FIRST_STEPS, await move("workbench.action.debug.stepOver"));
    const scores = (await variable("Outputs", "%scores")).value;
    assert.equal(`f32[2,3] ${shown.get(lineOf(FIRST_STEPS, "%scores:"))}`, scores);
    assert.ok(shown.has(lineOf(FIRST_STEPS, "graph @main")));
    assert.ok(!shown.has(lineOf(FIRST_STEPS, "%probs:")));
  },

  async "all lines in view are told in one request"() {
    await start(FIRST_STEPS, { stopOnEntry: true });
    await stopped("entry");
    // What is in view is asked for at the stop; these lines are part of it, or are asked for at once.
    const wire = await listen("nncdbg/lines");
    const shown = await inlineValues(FIRST_STEPS, 10, 5, 12);
    assert.ok(shown.has(lineOf(FIRST_STEPS, "graph @main")));
    assert.ok(wire.asked.length <= 1, JSON.stringify(wire.asked));
    const before = wire.asked.length;
    await move("workbench.action.debug.stepOver");
    await until(() => wire.asked.length > before, "the lines in view are asked for at the next stop");
    wire.dispose();
  },

  async "a value is edited, and what depends on it is computed again"() {
    await start(FIRST_STEPS);
    await stopped("entry");
    await move("workbench.action.debug.stepOver");
    const frameId = (await top()).id;
    await ask("setExpression", { expression: "%h", value: "0", frameId });
    await move("workbench.action.debug.stepOver");
    assert.equal((await ask("evaluate", { expression: "max(abs(%scores))", frameId: (await top()).id })).result, "0.0");
  },

  async "Explain Value asks for the value from the selected frame, then follows the stops"() {
    await start(FIRST_STEPS);
    await stopped("entry");
    await move("workbench.action.debug.stepOver");
    const wire = await listen("nncdbg/explain");
    const { id } = await top();
    await vscode.commands.executeCommand("nncdbg.explain", { variable: { name: "%h", evaluateName: "%h" } });
    const body = await until(() => wire.answered.find(({ value }) => value === "%h"), "the answer");
    assert.match(body.steps.map(({ text }) => text).join("\n"), /Relu\(%centred\)/);
    const asked = wire.asked.find(({ expression }) => expression === "%h");
    assert.equal(asked.frameId, id);
    const before = wire.answered.length;
    await move("workbench.action.debug.stepOver");
    await until(() => wire.answered.length > before, "it is asked again at the next stop");
    assert.deepEqual({ ...wire.asked.at(-1) }, { expression: "%h", frameId: undefined });
    wire.dispose();
  },
};
