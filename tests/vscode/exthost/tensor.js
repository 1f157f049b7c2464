// The tensor view in the extension host: its panels, and their requests.

const assert = require("node:assert/strict");
const vscode = require("vscode");
const { FIRST_STEPS, listen, move, start, stopped, until } = require("../session");

const panels = () =>
  vscode.window.tabGroups.all.flatMap(({ tabs, viewColumn }) =>
    tabs
      .filter(({ input }) => input instanceof vscode.TabInputWebview && input.viewType.endsWith("nncdbg.tensor"))
      .map(({ label }) => `${label} in column ${viewColumn}`),
  );

const view = (of) => vscode.commands.executeCommand("nncdbg.viewTensor", of);

exports.tests = {
  async "View Tensor opens one panel for each value, beside the listing"() {
    await start(FIRST_STEPS);
    await stopped("entry");
    await move("workbench.action.debug.stepOver");
    await view({ variable: { name: "%h", evaluateName: "%h" } });
    await until(() => panels().join() === "%h in column 2", "the panel of %h");
    await view({ expression: "%x * 2" });
    await until(() => panels().join() === "%h in column 2,%x * 2 in column 2", "the panel of an expression");
    await view({ variable: { name: "%h", evaluateName: "%h" } });
    await view({ variable: { name: "[1]" }, container: { name: "%h", evaluateName: "%h" } });
    await until(() => panels().length === 3, "the panel of an item");
    assert.deepEqual(panels().toSorted(), ["%h in column 2", "%h[1] in column 2", "%x * 2 in column 2"]);
  },

  async "a panel sends one request at each stop, gets numbers as bytes, and keeps its frame"() {
    const wire = await listen("nncdbg/slice");
    await start(FIRST_STEPS);
    await stopped("entry");
    await view({ expression: "%x" });
    await until(() => wire.answered.length === 2, "type and shape, then the picture");
    const body = wire.answered[1];
    assert.deepEqual([body.type, body.elements, body.shape, typeof body.data], ["f32[2,4]", "f32", [2, 4], "string"]);
    const frame = wire.requested[0].frameId;
    await move("workbench.action.debug.stepInto");
    await until(() => wire.answered.length === 3, "one more at the next stop");
    assert.equal(wire.requested[2].frameId, frame, "%x is a value of @main, and the program is in @layer");
    wire.dispose();
  },
};
