// Launching, breakpoints, and steps in both directions.

const assert = require("node:assert/strict");
const vscode = require("vscode");
const { FIRST_STEPS, NAN, request, breakAt, lineOf, move, start, stopped, top, until, variable } = require("../session");

exports.tests = {
  async "a launch stops before the first statement"() {
    await start(FIRST_STEPS);
    await stopped("entry");
    const frame = await top();
    assert.equal(frame.line, lineOf(FIRST_STEPS, "%h ="));
    assert.equal(frame.source.name, "first_steps.nnc");
    await until(() => vscode.window.activeTextEditor?.document.uri.fsPath === FIRST_STEPS, "the text is shown");
  },

  async "a breakpoint with a condition is hit in the iteration where it is true"() {
    breakAt(FIRST_STEPS, lineOf(FIRST_STEPS, "%best ="), "$iter == 2");
    await start(FIRST_STEPS, { stopOnEntry: false });
    await stopped("breakpoint");
    assert.equal((await top()).line, lineOf(FIRST_STEPS, "%best ="));
    assert.equal((await request("evaluate", { expression: "$iter" })).result, "2");
  },

  async "step over, into and out, and back"() {
    await start(FIRST_STEPS);
    await stopped("entry");
    assert.equal(await move("workbench.action.debug.stepInto"), lineOf(FIRST_STEPS, "%mean ="));
    assert.equal(await move("workbench.action.debug.stepOut"), lineOf(FIRST_STEPS, "%scores ="));
    assert.equal(await move("workbench.action.debug.stepOver"), lineOf(FIRST_STEPS, "while"));
    assert.equal(await move("workbench.action.debug.stepBack"), lineOf(FIRST_STEPS, "%scores ="));
    assert.equal((await variable("Values", "%scores")).value, "<not computed>");
  },

  async "reverse continue goes to the previous breakpoint"() {
    breakAt(FIRST_STEPS, lineOf(FIRST_STEPS, "%best ="));
    await start(FIRST_STEPS, { stopOnEntry: false });
    await stopped("breakpoint");
    await move("workbench.action.debug.continue", "breakpoint");
    assert.equal((await request("evaluate", { expression: "$iter" })).result, "1");
    await move("workbench.action.debug.reverseContinue", "breakpoint");
    assert.equal((await request("evaluate", { expression: "$iter" })).result, "0");
  },

  async "the buttons of the toolbar step back into a layer, and out of it"() {
    await start(FIRST_STEPS);
    await stopped("entry");
    await move("workbench.action.debug.stepOver");
    assert.equal(await move("nncdbg.reverseStepInto"), lineOf(FIRST_STEPS, "return %out"));
    // The program starts there.
    assert.equal(await move("nncdbg.reverseStepOut", "entry"), lineOf(FIRST_STEPS, "%h ="));
  },

  async "a NaN is caught where it originates"() {
    await start(NAN);
    await stopped("entry");
    await request("setExceptionBreakpoints", { filters: ["nan"] });
    assert.equal(await move("workbench.action.debug.continue", "exception"), lineOf(NAN, "%terms ="));
  },

  async "Break When NaN stops where the value becomes NaN"() {
    await start(NAN);
    await stopped("entry");
    const context = { variable: { name: "%terms", evaluateName: "%terms" } };
    await vscode.commands.executeCommand("nncdbg.breakWhenNaN", context);
    await request("setExceptionBreakpoints", { filters: [] });
    assert.equal(await move("workbench.action.debug.continue", "data breakpoint"), lineOf(NAN, "%terms ="));
  },
};
