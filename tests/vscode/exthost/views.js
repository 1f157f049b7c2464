// The views of the debug side bar: what they ask for, and when.

const assert = require("node:assert/strict");
const vscode = require("vscode");
const { FIRST_STEPS, ask, move, start, stopped, told, top, until } = require("../session");

const OWN = ["nncdbg/timeline", "nncdbg/nearby", "nncdbg/map"];

/** What was answered to the views so far. */
const answered = (command) => told.filter((each) => each.type === "response" && each.command === command);

exports.tests = {
  async "views that nobody sees ask for nothing"() {
    await start(FIRST_STEPS);
    await stopped("entry");
    const before = OWN.map((each) => answered(each).length);
    for (let step = 0; step < 3; step++) {
      await move("workbench.action.debug.stepOver");
    }
    await ask("nncdbg/marks", { action: "list" });
    assert.deepEqual(OWN.map((each) => answered(each).length), before);
  },

  async "the timeline follows each stop, and commands of the console"() {
    await start(FIRST_STEPS);
    await stopped("entry");
    await vscode.commands.executeCommand("nncdbg.timeline.focus");
    const last = () => answered("nncdbg/timeline").at(-1)?.body;
    const now = () => last()?.branches[0].moments.find(({ kind }) => kind === "now");
    await until(() => now()?.line === 10, "the first place");
    await move("workbench.action.debug.stepOver");
    await until(() => now()?.line === 11, "the second place");
    const frameId = (await top()).id;
    await ask("evaluate", { expression: "mark here", context: "repl", frameId });
    await until(() => last().branches[0].moments.some(({ name }) => name === "here"), "the mark");
    await ask("setExpression", { expression: "%h", value: "0", frameId });
    await ask("evaluate", { expression: "set %h = 1", context: "repl", frameId });
    await until(() => last().branches.length === 3, "the branches of two edits");
  },

  async "a marked moment is gone to"() {
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

  async "the statistics and the map are asked for once at a stop"() {
    await start(FIRST_STEPS);
    await stopped("entry");
    for (const [view, command] of [["statistics", "nncdbg/nearby"], ["map", "nncdbg/map"]]) {
      await vscode.commands.executeCommand(`nncdbg.${view}.focus`);
      await until(() => answered(command).length, `${command} is asked`);
      const before = answered(command).filter(({ success }) => success).length;
      await move("workbench.action.debug.stepOver");
      const since = () => answered(command).filter(({ success }) => success).length - before;
      await until(since, "it is asked again");
      await move("workbench.action.debug.stepOver");
      await until(() => since() === 2, "and once more");
    }
  },
};
